"""The classes beyond those of the codec whose objects may travel: TRANSFER_PICKLE_ALLOW.

An entry is the full name of a class, or `module.*` for the classes that this module defines. A name is looked
up only if it is allowed, and counts only if the class found calls itself so. Thus `module.*` reaches nothing
that the module imports, such as `os.system`. Functions and metaclasses are never found.
"""

from __future__ import annotations

import importlib
import sys
from functools import lru_cache
from typing import Any

from transfer.config import pickle_allow_list, pickle_allowed
from transfer.objects.format import caused, quoted
from transfer.transports.errors import PickleRefused
from transfer.transports.forking import undivided


class AllowList:
    """Names of classes, and modules all of whose classes are allowed; `everything`: all classes are."""

    def __init__(self, entries: tuple[str, ...] = (), everything: bool = False) -> None:
        self._everything = everything
        self._names = frozenset(entry for entry in entries if not entry.endswith(".*"))
        self._modules = frozenset(entry[:-2] for entry in entries if entry.endswith(".*"))

    def check(self, kind: type) -> None:
        """Raises PickleRefused unless this class, of an object to send, is allowed."""
        full = f"{module_of(kind)}.{kind.__qualname__}"
        if not self._has(module_of(kind), kind.__qualname__):
            raise PickleRefused(
                f"objects of the class {full} are not allowed",
                hint=f"TRANSFER_PICKLE_ALLOW={full} at both ends allows them; only for classes you trust",
            )

    def _has(self, module: str, name: str) -> bool:
        return self._everything or f"{module}.{name}" in self._names or module in self._modules

    def verify(self, kind: type) -> None:
        """Raises PickleRefused unless this class is allowed, and is found by its name."""
        self.check(kind)
        self._found(module_of(kind), kind.__qualname__, kind)

    def find(self, module: str, name: str) -> type:
        """Returns the class that a peer names, if it is allowed; imports its module. Raises PickleRefused."""
        if not self._has(module, name):  # no hint to allow it: a hostile peer chooses the name
            raise PickleRefused(
                f"an object of the class {quoted(f'{module}.{name}')} arrived, which is not allowed",
                hint="if you expected this class, see TRANSFER_PICKLE_ALLOW in docs/pyobj.md",
            )
        return self._found(module, name)

    def _found(self, module: str, name: str, expected: type | None = None) -> type:
        found = _defined(sys.modules.get(module), module, name)
        if found is None:  # not imported yet, or not completely
            try:
                with undivided():
                    found = _defined(importlib.import_module(module), module, name)
            except (Exception, SystemExit) as error:  # of any code in the module
                raise PickleRefused(
                    f"the module {quoted(module)} of an allowed class cannot be imported: {caused(error)}",
                    hint="python -c 'import MODULE' at this end shows why",
                ) from error
        if found is None or (expected is not None and expected is not found):
            raise PickleRefused(
                f"{quoted(f'{module}.{name}')} is not a class that this module defines",
                hint="functions, metaclasses, classes in functions and names of other modules do not travel",
            )
        return found


def module_of(kind: type) -> str:
    """The name of the module of a class. In a spawned process the program has another one."""
    return "__main__" if kind.__module__ == "__mp_main__" else kind.__module__


def _defined(owner: Any, module: str, name: str) -> type | None:
    """Returns the class that the module `owner` itself defines by this qualified name, or None."""
    found: Any = owner
    for part in name.split("."):
        # not getattr: a module or a class may answer it with a call, or with what it inherits
        found = None if found is None else vars(found).get(part)
        if not isinstance(found, type):
            return None
    if issubclass(found, type) or (module_of(found), found.__qualname__) != (module, name):
        return None
    kind: type = found
    return kind


_listed = lru_cache(8)(AllowList)
_EVERYTHING = AllowList(everything=True)


def allow_list() -> AllowList:
    """Returns the list of the environment. Raises OptionError."""
    return _EVERYTHING if pickle_allowed() else _listed(pickle_allow_list())
