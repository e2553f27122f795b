"""The interpreter imports this when it starts, in programs that `transfer as-zmq` runs and their children."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _start() -> None:
    own = sys.modules[__name__]
    # The environment may have a file of this name: it comes next on the path.
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != _HERE]
    del sys.modules[__name__]
    with contextlib.suppress(ImportError):
        importlib.import_module(__name__)
    sys.modules[__name__] = own
    from transfer.zmq import as_zmq

    as_zmq.install()


try:
    if __name__ == "sitecustomize":  # not imported as a part of this package
        _start()
except Exception as error:  # noqa: BLE001 - the program would go on with pyzmq, and nothing would tell
    sys.stderr.write(f"transfer as-zmq: {sys.executable} cannot use transfer.zmq: {error}\n")
    sys.stderr.flush()
    os._exit(1)
