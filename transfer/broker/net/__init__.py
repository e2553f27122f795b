"""The broker's TCP connections: listeners, TLS, what is read and written. On the broker's loop."""
