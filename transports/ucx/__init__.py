"""The ucx transport: frames as UCX messages, between processes that met by TCP.

Importing this package loads nothing of UCX. `probe` checks without loading, `driver` is the interface that
ucxx or UCX's C library implements, `port` is a socket's worker, `stream` a peer, `upgrade` the exchange of
addresses.
"""
