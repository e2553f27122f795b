"""The handshake: what two sides exchange before the first message.

authentication     the part of a handshake in which one side approves the other, as ZeroMQ's mechanisms do
choice             chooses the transport for a pair's data
client_hello       reads from the first bytes of a TLS client which protocols it offers (ALPN)
compatibility      which socket types talk to each other, as in ZeroMQ
curve              the keys of one connection of CURVE: the key of its TLS, and the client's proof
exchange           drives one handshake over a non-blocking socket in the reactor's thread
foreign_protocols  recognizes peers of other protocols by their first bytes
handshake          the exchange of hellos as a state machine
hello              the messages that two sides exchange before the first payload
identity           the identity of this process in hellos
peer_type          detects the socket type of a peer from the first bytes of its connection
proving            the part of a handshake in which both sides prove that they know the token
upgrade            from an agreed TCP connection to a faster transport
"""
