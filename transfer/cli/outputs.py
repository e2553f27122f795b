"""Writes received messages: as lines for people, JSON, raw bytes or files."""

from __future__ import annotations

import base64
import errno
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transfer.cli.tables import print_json, printable
from transfer.transports.errors import NotATensor, UsageError

#: largest payload, in bytes, that JSON output includes
JSON_PAYLOAD = 4096


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """A received message: byte parts, a tensor, or a dict of tensors with metadata."""

    kind: str  # bytes, tensor, tensors
    payload: Any
    nbytes: int
    topic: bytes | None = None
    meta: Any = None


class Writer:
    """Writes each message as the options require.

    folder: writes files there, and prints nothing without as_json. as_json: prints an object a line, with the
    payload if it is small. raw: prints the bytes unchanged. Else it prints a line for people.
    """

    def __init__(self, *, folder: Path | None = None, as_json: bool = False, raw: bool = False) -> None:
        if raw and (as_json or folder is not None):
            raise UsageError("--raw goes with neither --json nor --out")
        if folder is not None:
            if folder.exists() and not folder.is_dir():
                raise UsageError(
                    f"--out {folder} is no folder", hint="name a folder: it is made if it is missing"
                )
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):  # found before a message is taken
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
        self._folder = folder
        self._json = as_json
        self._raw = raw
        self._number = 0
        #: files of an earlier run stay
        self._files = 0 if folder is None else max(map(_number_of, folder.glob("message-*")), default=0)

    def write(self, message: ReceivedMessage) -> None:
        """Writes a message. Raises OSError if the disk is full, or the reader of a pipe has gone."""
        self._number += 1
        file = None if self._folder is None else self._save(message, self._folder)
        if self._json:
            print_json(self._describe(message, file))
        elif self._raw:
            for part in raw_parts(message):
                sys.stdout.buffer.write(part)
            sys.stdout.buffer.flush()
        elif file is None:
            line = self._line(message)
            print(printable(line, keep="\t\n") if sys.stdout.isatty() else line, flush=True)

    def _save(self, message: ReceivedMessage, folder: Path) -> Path:
        stem = folder / f"message-{self._files + self._number:06d}"
        if message.kind == "bytes":
            path = stem.with_suffix(".bin")
            try:
                with path.open("wb") as file:
                    file.writelines(message.payload)
            except OSError as error:
                path.unlink(missing_ok=True)
                raise OSError(error.errno, error.strerror, str(path)) from error
            return path
        from transfer.tensors import save

        if message.kind == "tensor":
            try:
                save(stem.with_suffix(".npy"), message.payload)
                return stem.with_suffix(".npy")
            except NotATensor:  # bfloat16 and float8 have no .npy form
                tensors, meta = {"tensor": message.payload}, None
        else:
            tensors, meta = message.payload, _as_text(message.meta)
        save(stem.with_suffix(".safetensors"), tensors, meta)
        return stem.with_suffix(".safetensors")

    def _describe(self, message: ReceivedMessage, file: Path | None) -> dict[str, Any]:
        description: dict[str, Any] = {"number": self._number, "kind": message.kind, "bytes": message.nbytes}
        if message.topic is not None:
            description["topic"] = message.topic.decode(errors="replace")
        if message.kind == "bytes":
            description["parts"] = [_describe_part(part) for part in message.payload]
        elif message.kind == "tensor":
            description |= _describe_tensor(message.payload)
        else:
            description["tensors"] = {
                name: _describe_tensor(tensor) for name, tensor in message.payload.items()
            }
            description["meta"] = message.meta
        if file is not None:
            description["file"] = str(file)
        return description

    def _line(self, message: ReceivedMessage) -> str:
        topic = "" if message.topic is None else message.topic.decode(errors="replace") + "\t"
        if message.kind == "tensor":
            return topic + _show_tensor(message.payload)
        if message.kind == "tensors":
            return topic + ", ".join(
                f"{name}: {_show_tensor(tensor)}" for name, tensor in message.payload.items()
            )
        return topic + "\t".join(bytes(part).decode(errors="replace") for part in message.payload)


def raw_parts(message: ReceivedMessage) -> list[Any]:
    """Returns the payload as bytes-like parts; tensors are in row-major order."""
    if message.kind == "tensor":
        return [message.payload.tobytes()]
    if message.kind == "tensors":
        return [tensor.tobytes() for tensor in message.payload.values()]
    return list(message.payload)


def _describe_part(part: Any) -> dict[str, Any]:
    data = memoryview(part)
    description: dict[str, Any] = {"bytes": data.nbytes}
    if data.nbytes <= JSON_PAYLOAD:
        try:
            description["text"] = bytes(data).decode()
        except UnicodeDecodeError:
            description["base64"] = base64.b64encode(data).decode()
    return description


def _describe_tensor(tensor: Any) -> dict[str, Any]:
    return {"dtype": str(tensor.dtype), "shape": list(tensor.shape)}


def _show_tensor(tensor: Any) -> str:
    shape = "×".join(map(str, tensor.shape)) or "scalar"
    return f"{tensor.dtype} {shape} ({tensor.nbytes} B)"


def _as_text(meta: Any) -> dict[str, str] | None:
    """Converts metadata for a .safetensors file, which has only texts by name; other values become JSON."""
    if meta is None:
        return None
    items = meta.items() if isinstance(meta, dict) else [("meta", meta)]
    return {str(name): value if isinstance(value, str) else json.dumps(value) for name, value in items}


def _number_of(file: Path) -> int:
    """The number in the name of a message's file; 0: there is none."""
    digits = file.stem.removeprefix("message-")
    return int(digits) if digits.isascii() and digits.isdigit() else 0
