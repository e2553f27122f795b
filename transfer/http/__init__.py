"""The HTTP client of the commands, and TLS for this process's HTTP servers."""
