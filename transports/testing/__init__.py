"""The transport contract executed (`checks`), and a transport that injects faults (`faults`).

Both are part of the product: whoever writes a transport runs the same checks on it.
"""
