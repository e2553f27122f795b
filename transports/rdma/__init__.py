"""The rdma transport: RC queue pairs of libibverbs, which nothing here loads until a device is opened.

control_messages  the messages of the rdma transport on the TCP connection next to its queue pair
credits           how many eager buffers a sender may fill
device_selection  selects device, port and GID
domain            an open device with its protection domain, which all sockets of a context share
driver            the interface to libibverbs
eager             the eager stream: frames of the common layout in buffers of 8 KiB
failures          what an error of libibverbs means
half              the interface of the whole stream (`stream.py`) that both halves use
incoming          the receiving half of a stream
libibverbs_driver the driver over libibverbs itself, for any Python
memory            registered memory of one protection domain
outgoing          the sending half of a stream
port              the queues of one socket on one device
probe             whether this process can use RDMA, and the details for `transfer doctor`
pyverbs_driver    the driver over pyverbs, of rdma-core 44 (Debian 12) and later
pyverbs_library   loads the installed pyverbs, and keeps track of its open objects in this process
rendezvous        large payloads
stream            one connection by rdma: a queue pair for the messages, a TCP connection for control frames
upgrade           upgrades a TCP connection to a queue pair: both ends exchange the addresses of theirs
"""
