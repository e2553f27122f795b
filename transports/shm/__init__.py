"""Transport on one host: small frames on an abstract Unix socket, large payloads in shared memory."""
