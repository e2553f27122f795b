"""A run on the wire and in the log: addresses, requests, rows, the order of an epoch."""
