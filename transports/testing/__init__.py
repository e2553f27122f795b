"""Checks a transport against the contract (`checks`), and injects faults into it (`faults`).

Both are part of the product: an author of a transport runs the same checks on it.
"""
