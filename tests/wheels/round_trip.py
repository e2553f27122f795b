"""Sends a message and a tensor through an installed package: `python round_trip.py`. It uses nothing else.

The compiled core has to be there, and no checkout in the way.
"""

import os
import sys

os.environ["TRANSFER_CORE"] = "native"

import transfer
from transfer.transports import core

assert "site-packages" in transfer.__file__, f"{transfer.__file__} is not installed"
with transfer.Context() as c, c.socket(transfer.PULL) as pull, c.socket(transfer.PUSH) as push:
    pull.rcvtimeo = 10_000
    pull.bind("tcp://127.0.0.1:0")
    push.connect(pull.last_endpoint)
    push.send(b"there")
    push.send_tensor(memoryview(bytes(range(24))).cast("B", (2, 3, 4)))
    first, second = bytes(pull.recv()), bytearray(24)
    pull.recv_tensor(out=second)
    assert (first, second) == (b"there", bytes(range(24))), (first, second)
python = ".".join(map(str, sys.version_info[:3]))
print(f"transfer {transfer.__version__}, core {core.IMPLEMENTATION}, python {python}: {first.decode()}")
