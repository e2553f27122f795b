"""The ucx transport: frames as UCX messages, between processes that met by TCP.

Importing this package loads nothing of UCX.

driver         the interface to UCX: a dozen calls, so that more than one binding can implement it
failures       translates UCX's errors
incoming       the receiving half of a UCX stream
installed      which UCX is installed here, as files and names of modules; loads nothing of it
libucp         UCX's C interface by ctypes, as far as the driver needs it
libucp_driver  UCX through its own library: contexts, workers and endpoints of its C interface
outgoing       the sending half of a UCX stream: queued and pending messages, and the grants of the peer
packing        the content of a UCX message: frames as on any wire, but large payloads in separate messages
port           a socket's UCX worker, which the streams to all its peers share, and the wake-ups between them
probe          which UCX this machine and this process have, without loading it
stream         frames to one peer by UCX messages: the foreign stream of the ucx transport
upgrade        upgrades a TCP connection to a UCX stream: the two peers exchange their workers' addresses
"""
