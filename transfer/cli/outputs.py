"""Where the receiving commands put messages: lines for people, JSON, raw bytes, files."""

from __future__ import annotations

import base64
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transfer.cli.tables import print_json
from transfer.transports.errors import NotATensor, UsageError

#: payloads up to this long are repeated in JSON, in bytes
JSON_PAYLOAD = 4096


@dataclass(frozen=True, slots=True)
class Incoming:
    """One message that arrived: its byte parts, or a tensor, or a dict of tensors with metadata."""

    kind: str  # bytes, tensor, tensors
    payload: Any
    nbytes: int
    topic: bytes | None = None
    meta: Any = None


class Writer:
    """Puts out each message as the options say.

    folder: into files there, and nothing is printed without as_json. as_json: an object a line, with
    the payload if it is small. raw: the bytes as they are. Else a line for people.
    """

    def __init__(self, *, folder: Path | None = None, as_json: bool = False, raw: bool = False) -> None:
        if raw and (as_json or folder is not None):
            raise UsageError("--raw goes with neither --json nor --out")
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._json = as_json
        self._raw = raw
        self._number = 0

    def write(self, message: Incoming) -> None:
        """Raises OSError when the disk is full or the reader of a pipe has left."""
        self._number += 1
        file = None if self._folder is None else self._save(message, self._folder)
        if self._json:
            print_json(self._describe(message, file))
        elif self._raw:
            for part in raw_parts(message):
                sys.stdout.buffer.write(part)
            sys.stdout.buffer.flush()
        elif file is None:
            print(self._line(message), flush=True)

    def _save(self, message: Incoming, folder: Path) -> Path:
        stem = folder / f"message-{self._number:06d}"
        if message.kind == "bytes":
            path = stem.with_suffix(".bin")
            with path.open("wb") as file:
                file.writelines(message.payload)
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

    def _describe(self, message: Incoming, file: Path | None) -> dict[str, Any]:
        told: dict[str, Any] = {"number": self._number, "kind": message.kind, "bytes": message.nbytes}
        if message.topic is not None:
            told["topic"] = message.topic.decode(errors="replace")
        if message.kind == "bytes":
            told["parts"] = [_describe_part(part) for part in message.payload]
        elif message.kind == "tensor":
            told |= _describe_tensor(message.payload)
        else:
            told["tensors"] = {name: _describe_tensor(tensor) for name, tensor in message.payload.items()}
            told["meta"] = message.meta
        if file is not None:
            told["file"] = str(file)
        return told

    def _line(self, message: Incoming) -> str:
        topic = "" if message.topic is None else message.topic.decode(errors="replace") + "\t"
        if message.kind == "tensor":
            return topic + _show_tensor(message.payload)
        if message.kind == "tensors":
            return topic + ", ".join(
                f"{name}: {_show_tensor(tensor)}" for name, tensor in message.payload.items()
            )
        return topic + "\t".join(bytes(part).decode(errors="replace") for part in message.payload)


def raw_parts(message: Incoming) -> list[Any]:
    """The payload as bytes-like parts, in row-major order for tensors."""
    if message.kind == "tensor":
        return [message.payload.tobytes()]
    if message.kind == "tensors":
        return [tensor.tobytes() for tensor in message.payload.values()]
    return list(message.payload)


def _describe_part(part: Any) -> dict[str, Any]:
    data = memoryview(part)
    told: dict[str, Any] = {"bytes": data.nbytes}
    if data.nbytes <= JSON_PAYLOAD:
        try:
            told["text"] = bytes(data).decode()
        except UnicodeDecodeError:
            told["base64"] = base64.b64encode(data).decode()
    return told


def _describe_tensor(tensor: Any) -> dict[str, Any]:
    return {"dtype": str(tensor.dtype), "shape": list(tensor.shape)}


def _show_tensor(tensor: Any) -> str:
    shape = "×".join(map(str, tensor.shape)) or "scalar"
    return f"{tensor.dtype} {shape} ({tensor.nbytes} B)"


def _as_text(meta: Any) -> dict[str, str] | None:
    """Metadata as a .safetensors file can hold it: text by name; what is no text becomes JSON."""
    if meta is None:
        return None
    items = meta.items() if isinstance(meta, dict) else [("meta", meta)]
    return {str(name): value if isinstance(value, str) else json.dumps(value) for name, value in items}
