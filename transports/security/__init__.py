"""Authentication and encryption: TLS 1.3 on TCP, and a token that both sides prove to know.

credentials  the current certificates and tokens: files that change are read again, for later connections
exposure     what other users of the host can do to the files of certificates, keys and tokens
guard        limits who may listen: beyond this machine only an endpoint that authenticates its clients
hints        hints for failed TLS
mechanism    how the two sides of an endpoint authenticate as in ZeroMQ: NULL, PLAIN or CURVE
proof        proofs that a side knows the token, valid for one connection only
settings     the credentials of a process, and what it requires of its peers
strength     estimates how hard a secret is to guess; secrets that people make up count for little
"""
