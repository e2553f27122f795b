"""The ucx transport: frames as UCX messages, between processes that met by TCP.

Importing this package loads nothing of UCX. `probe` looks without loading, `driver` is the seam behind
which ucxx or UCX's C library answers, `port` is a socket's worker, `stream` a peer, `upgrade` how they
meet.
"""
