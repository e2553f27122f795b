"""Moves bytes between two processes: frames, memory, errors, transports. Importing it loads nothing else.

address        endpoints as users write them: `scheme://where?options`
arguments      checks arguments
base           the contract of a transport, in one file
callbacks      callbacks that do not keep their object
config         reads the environment variables of the transports
connect        connects endpoints: handshakes, listeners, and reconnection after a loss
countdown      calls back once, when the last party of several has ended
core           the core in use: the compiled one, or the one in Python
cuda           the CUDA driver: what it says of memory, dma-bufs, and the contexts of GPUs
descriptors    the limit of file descriptors of this process, and the errors when it is reached
discovery      endpoints that stand for many
errors         every error of the project: three families and four plain classes
forking        steps that a fork must not interrupt
gpu            how a GPU's memory reaches a transport: one pure decision
gpu_receiving  memory on GPUs that a transport receives payloads into, which tensors are views of
handshake      the handshake: what two sides exchange before the first message
inproc         `inproc://name`: two sockets of one context
inproc_gpu     tensors on a GPU within one process: passed by reference, or copied on that GPU
inproc_stream  a pair of streams inside one process: messages pass by reference, under one lock
ipc            Unix sockets: `ipc:///path/to.sock`, `ipc://@name`
lazy           the names that a package exports, each loaded at its first use
peercred       the process at the other end of a Unix socket
plugins        classes that other distributions provide by entry points
prefixes       subscriptions of streams in Python
probe          which faster transports this process can use: probed once, cheaply, never fatal
rdma           the rdma transport: RC queue pairs of libibverbs
reactor        the one Python thread of a context: accept, handshake, reconnect, heartbeats, subscriptions
registry       finds the transport of a scheme
req_rep_turn   the state of the dialogue of a REQ or a REP
security       authentication and encryption: TLS 1.3 on TCP, and a token that both sides prove to know
shm            transport on one host: small frames on an abstract Unix socket, large payloads in shared memory
sizes          the two sizes from which on a payload takes another way
slab_pool      blocks of memory that devices read or write, cut out of slabs that are used again
tcp            TCP, and what all transports over socket descriptors share
testing        checks a transport against the contract (`checks`), and injects faults into it (`faults`)
ucx            the ucx transport: frames as UCX messages, between processes that met by TCP
uninterrupted  runs steps to their end, although a signal handler may raise between any two of them
variables      the environment variables: a misspelt one is refused, so that it is not ignored
waiters        threads that wait until what a lock guards has changed
"""

if __name__ != "transfer.transports":
    raise ImportError("the package is transfer.transports: `from transfer.transports import ...`")
