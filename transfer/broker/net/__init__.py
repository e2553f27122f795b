"""The broker's TCP connections: listeners, TLS, input and output. On the broker's loop.

connection           a TCP connection of the broker, on its loop: reads and writes without copies
connection_group     the shared state of one loop's connections
listener             a listening TCP socket on the broker's loop
listener_set         the TCP listeners of a broker's fronts
pending_connections  connections of a listener that have not authenticated, or sent a request, yet
splice               passes payloads through the broker without copies
tls_acceptor         performs the TLS handshake of accepted connections, on the broker's loop
tls_socket           a TCP connection with TLS, after its handshake
"""
