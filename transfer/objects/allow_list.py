"""The classes beyond those of the codec whose objects may travel: TRANSFER_PICKLE_ALLOW.

An entry is the full name of a class, or `module.*` for the classes that this module defines. A name is looked
up only if it is allowed, and counts only if the class found calls itself so. Thus `module.*` reaches nothing
that the module imports, such as `os.system`. Functions and metaclasses are never found.
"""

from __future__ import annotations

import importlib
import re
from functools import lru_cache
from typing import Any

from transfer.config import pickle_allow_list, pickle_allowed
from transfer.transports.errors import OptionError, PickleRefused
from transfer.transports.forking import undivided

_VARIABLE = "TRANSFER_PICKLE_ALLOW"
_ENTRY = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*\.([^\W\d]\w*|\*)")


class AllowList:
    """Names of classes, and modules all of whose classes are allowed; `everything`: all classes are."""

    def __init__(self, entries: tuple[str, ...] = (), everything: bool = False) -> None:
        for entry in entries:
            if not _ENTRY.fullmatch(entry):
                hint = "names such as package.module.Class or package.module.*, with commas between"
                raise OptionError(f"{_VARIABLE} has the entry {entry!r}", hint=hint)
        self._everything = everything
        self._names = frozenset(entry for entry in entries if not entry.endswith(".*"))
        self._modules = frozenset(entry[:-2] for entry in entries if entry.endswith(".*"))

    def check(self, module: str, name: str) -> None:
        """Raises PickleRefused unless the class of this module and qualified name is allowed."""
        full = f"{module}.{name}"
        if not (self._everything or full in self._names or module in self._modules):
            raise PickleRefused(
                f"objects of the class {full} are not allowed",
                hint=f"{_VARIABLE}={full} allows them, at both ends; allow only classes that you trust",
            )

    def check_class(self, kind: type) -> None:
        """Raises PickleRefused unless the receiver, with the same list, finds the class."""
        self.check(kind.__module__, kind.__qualname__)
        self.find(kind.__module__, kind.__qualname__, kind)

    def find(self, module: str, name: str, expected: type | None = None) -> type:
        """Returns an allowed class; imports its module. Raises PickleRefused."""
        self.check(module, name)
        try:
            with undivided():
                found: Any = importlib.import_module(module)
        except ImportError as error:
            raise PickleRefused(f"the module {module} of an allowed class is not here") from error
        for part in name.split("."):
            # not getattr: a module or a class may answer it with a call, or with what it inherits
            found = vars(found).get(part)
            if not isinstance(found, type):
                break
        if (
            not isinstance(found, type)
            or issubclass(found, type)
            or (found.__module__, found.__qualname__) != (module, name)
            or (expected is not None and expected is not found)
        ):
            raise PickleRefused(
                f"{module}.{name} is not a class that this module defines",
                hint="functions, metaclasses, classes in functions and names of other modules do not travel",
            )
        return found


@lru_cache(8)
def _parsed(text: str) -> AllowList:
    return AllowList(tuple(entry for entry in re.split(r"[\s,]+", text) if entry))


_EVERYTHING = AllowList(everything=True)


def allow_list() -> AllowList:
    """Returns the list of the environment. Raises OptionError."""
    return _EVERYTHING if pickle_allowed() else _parsed(pickle_allow_list())
