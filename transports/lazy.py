"""The names that a package exports, each loaded at its first use."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

from transfer.transports.errors import MissingLibrary, missing_library
from transfer.transports.forking import undivided


def exports(package: str, homes: Mapping[str, str], extra: str = "") -> None:
    """Sets the `__getattr__` of a package. A type checker does not see it: a misspelt name is an error there.

    homes: the names, with spaces between, by the module of the package that has them. extra: our extra that
    installs the libraries they need; `MissingLibrary` names it if one is missing.
    """
    owner = sys.modules[package]
    where = {name: f"{package}.{module}" for module, names in homes.items() for name in names.split()}

    def find(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            with undivided():  # one thread may load the module while another one forks
                value = getattr(importlib.import_module(where[name]), name)
        except (ModuleNotFoundError, MissingLibrary) as error:
            if not extra:
                raise
            raise missing_library(f"{package}.{name}", error, extra) from error
        setattr(owner, name, value)
        return value

    owner.__getattr__ = find  # type: ignore[method-assign]
