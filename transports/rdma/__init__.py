"""The rdma transport: RC queue pairs of libibverbs, which nothing here loads until a device is opened.

The bytes of a connection go through rings in registered memory: `core/native/ring.pyx`.

carrier             large payloads: announced by the sender, READ by the receiver
device_events       what a device reports by itself: that it is gone, that a link went down or came back
device_selection    selects device, port and GID
domain              an open device with its protection domain, which all sockets of a context share
driver              the interface to libibverbs
failures            what an error of libibverbs means
given_up            why rdma is not used with a host for now
libibverbs_driver   the driver over libibverbs, bound by the compiled core
memory              registered memory of one protection domain
probe               whether this process can use RDMA, and the details for `transfer doctor`
registration_cache  registrations that outlive a send, of arrays that are sent again and again
upgrade             upgrades a TCP connection to a queue pair: both ends exchange the addresses of theirs
"""
