"""`transfer as-zmq`: runs a program in whose Python processes `zmq` is `transfer.zmq`."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import transfer
from transfer.config import environment
from transfer.transports import config
from transfer.transports.errors import UsageError
from transfer.zmq import startup

#: what comes first where the interpreter itself is to run it
_FOR_PYTHON = ("-m", "-c")


def run(program: Sequence[str], transport: str | None, policy: str | None) -> NoReturn:
    """Becomes the program. Raises UsageError, OptionError."""
    environ = environment()
    if transport is not None:
        environ["MC_RPC_PROTOCOL"] = transport
    if policy is not None:
        environ["MC_RPC_POLICY"] = policy
    config.load(environ)  # a wrong value is this command's error
    folders = [str(Path(startup.__file__).parent), environ.get("PYTHONPATH", "")]
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*folders, _needed_for_transfer()]))
    if program[0][:1] == "-" and program[0] not in _FOR_PYTHON:
        raise UsageError(f"no such option: {program[0]}", hint="`transfer as-zmq --help` shows them")
    command = [sys.executable, *program] if _is_python(program[0]) else list(program)
    found = shutil.which(command[0])
    if found is None:
        hint = "a file of Python ends with .py; -m MODULE runs a module"
        raise UsageError(f"there is no program {command[0]!r}", hint=hint)
    sys.stdout.flush()
    os.execve(found, command, environ)


def _is_python(first: str) -> bool:
    return first in _FOR_PYTHON or first.endswith(".py")


def _needed_for_transfer() -> str:
    """The folder from which this package is imported, if the interpreter does not find it by itself."""
    folder = str(Path(transfer.__file__).parents[1])
    return "" if "site-packages" in folder else folder
