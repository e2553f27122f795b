"""Endpoints that stand for many: a name service lists the members, and connections follow the list.

`directory` is the interface of a name service, `dns` queries DNS, `membership` decides (pure) what an answer
changes, `liveness` detects a vanished host. For a broker's registry see `transfer.broker.clients`.
"""
