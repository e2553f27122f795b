"""The broker's TCP connections: listeners, TLS, input and output. On the broker's loop."""
