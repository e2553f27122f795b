"""Transport on one host: small frames on an abstract Unix socket, large payloads in shared memory.

blocks             memory that is shareable from its allocation
control_channel    the control socket of a connection
exported_blocks    which of our blocks a connection's peer sees, and the callbacks when it has released them
fd_passing         passes descriptors between processes over a Unix socket
gpu_blocks         memory of a GPU that a peer may map
gpu_mappings       the receiver's side of memory of GPUs: the peer's announcements, checked before use
gpu_shares         what a connection's peer sees of our GPUs' memory
mapped_gpu_blocks  memory of a peer's GPU, mapped here
mappings           the receiver's side of shared memory: the peer's announcements, checked before use
memory             shared memory that cannot shrink while it is mapped
probe              whether this machine supports the shared memory transport
segments           the sender's shared memory
shm_stream         carries large payloads between two processes of one host
shm_streams        all shared memory streams of one context, which end with it; calls those in need
unix_listener      accepts peers on this host: one abstract Unix socket for each context
upgrade            upgrades a TCP connection to shared memory
"""
