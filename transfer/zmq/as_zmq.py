"""Gives programs that import `zmq` this package instead: `install` puts it into `sys.modules`.

Modules of this package have pyzmq's names then (`zmq.asyncio` is `transfer.zmq.asyncio`). Other modules of
pyzmq that are pure Python, like `zmq.green` or `zmq.eventloop`, are loaded from an installed pyzmq and run
over the sockets of this package. What needs libzmq cannot be imported, and the error says why.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from pathlib import Path

from transfer.transports.errors import UsageError

__all__ = ["install"]

#: modules of pyzmq, and where this package has their contents
_OURS = {
    "zmq.asyncio": "transfer.zmq.asyncio",
    "zmq.constants": "transfer.zmq.constants",
    "zmq.decorators": "transfer.zmq.decorators",
    "zmq.error": "transfer.zmq.error",
    "zmq.sugar.context": "transfer.zmq.context",
    "zmq.sugar.frame": "transfer.zmq.frame",
    "zmq.sugar.poll": "transfer.zmq.poll",
    "zmq.sugar.socket": "transfer.zmq.socket",
    "zmq.sugar.stopwatch": "transfer.zmq.missing",
    "zmq.sugar.tracker": "transfer.zmq.tracker",
    "zmq.sugar.version": "transfer.zmq.version",
    "zmq.utils.jsonapi": "transfer.zmq.utils.jsonapi",
    "zmq.utils.monitor": "transfer.zmq.utils.monitor",
    "zmq.utils.strtypes": "transfer.zmq.utils.strtypes",
    "zmq.utils.z85": "transfer.zmq.utils.z85",
}
#: not imported by `import zmq`
_LAZY = ("zmq.asyncio", "zmq.decorators", "zmq.utils.monitor")
#: packages of pyzmq that have the names of `zmq` itself, and utilities: some of ours, the others of pyzmq
_PACKAGES = ("zmq.backend", "zmq.sugar", "zmq.utils")
#: modules that would load and not do what they promise
_REFUSED = {
    "zmq.backend.cffi": "there is no libzmq behind transfer.zmq",
    "zmq.backend.cython": "there is no libzmq behind transfer.zmq",
}


def install() -> types.ModuleType:
    """Makes `import zmq` give this package, in this process and from now on. Returns the module `zmq`.

    Raises:
        UsageError: pyzmq itself is imported already.
    """
    present = sys.modules.get("zmq")
    if getattr(present, "__transfer__", False):
        return sys.modules["zmq"]
    if present is not None:
        raise UsageError("pyzmq is imported already", hint="call install() before the program's imports")
    found = importlib.machinery.PathFinder.find_spec("zmq")
    pyzmq = list(found.submodule_search_locations or ()) if found is not None else []
    zmq = sys.modules["zmq"] = types.ModuleType("zmq")
    zmq.__spec__ = importlib.machinery.ModuleSpec("zmq", None, is_package=True)
    _take_names(zmq)
    vars(zmq).update(__path__=pyzmq, __transfer__=True)
    sys.meta_path.insert(0, _Finder(pyzmq))
    for name in (*_PACKAGES, *_OURS):
        if name not in _LAZY:
            importlib.import_module(name)
    return zmq


def _take_names(module: types.ModuleType) -> None:
    ours = vars(importlib.import_module("transfer.zmq"))
    vars(module).update({name: value for name, value in ours.items() if name[:2] != "__"})
    vars(module).update({name: ours[name] for name in ("__all__", "__doc__", "__revision__", "__version__")})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules of this package by pyzmq's names, and refuses those that need libzmq."""

    def __init__(self, pyzmq: list[str]) -> None:
        self._pyzmq = pyzmq

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != "zmq":
            return None
        if fullname in _REFUSED:
            raise ModuleNotFoundError(f"{fullname}: {_REFUSED[fullname]}", name=fullname)
        if fullname in _OURS:
            return importlib.machinery.ModuleSpec(fullname, self)
        if fullname in _PACKAGES:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        if not self._pyzmq:
            raise ModuleNotFoundError(
                f"{fullname} runs over transfer.zmq where pyzmq is installed, which has this module",
                name=fullname,
            )
        return None  # pyzmq's file

    def exec_module(self, module: types.ModuleType) -> None:
        name = module.__name__
        if name in _OURS:
            sys.modules[name] = importlib.import_module(_OURS[name])
        elif name == "zmq.utils":
            vars(module)["__path__"] = [str(Path(folder) / "utils") for folder in self._pyzmq]
        else:
            _take_names(module)
            if name == "zmq.backend":
                vars(module)["monitored_queue"] = None  # then pyzmq has one in Python
