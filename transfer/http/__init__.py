"""The HTTP client of the commands, and TLS for this process's HTTP servers.

client  the HTTP client of the commands: a request has one deadline, and its answer a limit of bytes
tls     certificates and tokens for this process's HTTP servers, by Python's `ssl`
"""
