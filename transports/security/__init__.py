"""Who may come in: TLS 1.3 on TCP, and a token that both sides prove to know.

`settings.py` is what is wished for, `credentials.py` what is made of it (and made anew when files change),
`proof.py` and `proving.py` the token's part of the handshake, `guard.py` what may be listened on.
"""
