"""Authentication and encryption: TLS 1.3 on TCP, and a token that both sides prove to know.

`settings.py` has the settings, `credentials.py` makes contexts and tokens of them (again when files change),
`proof.py` and `proving.py` are the token's part of the handshake, `guard.py` limits who may listen.
"""
