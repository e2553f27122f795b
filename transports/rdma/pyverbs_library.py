"""Loads the installed pyverbs, and keeps track of its open objects in this process."""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import threading
from types import SimpleNamespace
from typing import Any

from transfer.transports.forking import undivided
from transfer.transports.rdma import failures

_MODULES = ("device", "pd", "mr", "cq", "srq", "qp", "wr", "addr", "pyverbs_error")
#: the module of the enums: up to rdma-core 44, and since
_ENUMS = ("pyverbs.enums", "pyverbs.libibverbs_enums")

#: held while modules are loaded, and while an object is opened whose descriptor has to be found
lock = threading.Lock()
_library: SimpleNamespace | None = None
#: pyverbs' objects that this process opened, by id. pyverbs closes collected objects, and a forked child
#: shares the device's descriptor: its collector would end the parent's connections.
_open: dict[int, Any] = {}


def opened(thing: Any) -> Any:
    """Keeps the object until `close`."""
    _open[id(thing)] = thing
    return thing


def is_open(thing: Any) -> bool:
    """False in a forked child for an object that the parent opened."""
    return id(thing) in _open


def close(*things: Any) -> None:
    """Closes the open ones in this order. Leaves objects that a parent opened before a fork."""
    for thing in things:
        if _open.pop(id(thing), None) is not None:
            thing.close()


def _keep_for_ever() -> None:
    """In a forked child: objects that are never collected are never closed, not even when the child exits."""
    for thing in _open.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    _open.clear()


def load_library() -> SimpleNamespace:
    """pyverbs' modules by name, `enums` too. Raises DeviceError."""
    global _library
    with undivided(), lock:
        if _library is None:
            root = logging.getLogger()
            handlers, level = list(root.handlers), root.level
            try:
                _library = _imported()
            except ImportError as error:
                raise failures.import_failed(error) from error
            finally:
                # pyverbs calls logging.basicConfig, which only the program should do.
                for handler in [one for one in root.handlers if one not in handlers]:
                    root.removeHandler(handler)
                root.setLevel(level)
            os.register_at_fork(after_in_child=_keep_for_ever)
        return _library


def _imported() -> SimpleNamespace:
    made = SimpleNamespace(**{name: importlib.import_module(f"pyverbs.{name}") for name in _MODULES})
    for name in _ENUMS:
        try:
            made.enums = importlib.import_module(name)
            return made
        except ModuleNotFoundError:
            continue
    raise ImportError("none of " + ", ".join(_ENUMS) + " is there")
