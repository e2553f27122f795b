"""Checks a transport against the contract (`checks`), and injects faults into it (`faults`).

Both are part of the product: an author of a transport runs the same checks on it.

carrying  checks of a transport's streams: sent messages arrive, and lost ones are reported
checks    the contract of a transport as checks
ends      two ends of a connection for checks and tests, and waits with a deadline
faults    a transport that wraps another and damages its data
meeting   checks of a transport's addresses, listeners, connecting and handshake
"""
