"""Endpoints that stand for many: who is there is asked again and again, and followed.

`directory` says what a name service is to us, `dns` asks DNS, `membership` decides (pure) what follows from
its answers, `liveness` sees a host that has vanished. Of a broker's registry see `transfer.broker.clients`.
"""
