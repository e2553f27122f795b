"""A class is not cut into mixins or bases by length: few classes of ours are above one of ours."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST = 3
#: classes with more above them, and why
LONGER: dict[str, tuple[int, str]] = {}

#: prints the number of classes of ours above each class of ours. The compiled core counts as one class: its
#: parts are one object, which C has to know whole. Errors do not count: `except` names their families.
PROGRAM = """
import importlib, inspect, json, pkgutil
import transfer, transfer.asyncio

CORE = "transfer.transports.core."

def is_ours(cls):
    return cls.__module__.partition(".")[0] == "transfer" and not issubclass(cls, BaseException)

found = {transfer.Socket, transfer.asyncio.Socket}
for info in pkgutil.walk_packages(transfer.__path__, "transfer."):
    if info.name.rpartition(".")[2] != "__main__":
        try:
            module = importlib.import_module(info.name)
        except ImportError:  # of an optional library
            continue
        found.update(one for one in vars(module).values() if inspect.isclass(one))

above = {}
for cls in filter(is_ours, found):
    bases = [base.__module__ for base in cls.__mro__[1:] if is_ours(base)]
    core = [name for name in bases if name.startswith(CORE)]
    name = f"{cls.__module__}.{cls.__qualname__}"
    if not name.startswith(CORE):
        above[name] = len(bases) - len(core) + bool(core)
print(json.dumps(above))
"""


def test_few_classes_are_above_one() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=50, check=True
    )
    above: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    assert above["transfer.sockets.socket.Socket"] == 2
    assert above["transfer.asyncio.Socket"] == above["transfer.zmq.socket.Socket"] == 3
    assert {name: count for name, count in above.items() if count > MOST} == {
        name: count for name, (count, _) in LONGER.items() if name in above
    }
