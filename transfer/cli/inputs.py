"""Reads messages to send: from files, standard input or texts."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from transfer.transports.errors import UsageError

STDIN = Path("-")


@dataclass(frozen=True, slots=True)
class InputMessage:
    """A message to send: bytes-like, a tensor, or a dict of tensors with small metadata."""

    payload: Any
    nbytes: int
    kind: str = "bytes"  # bytes, tensor, tensors
    meta: Any = None


@dataclass(frozen=True, slots=True)
class Inputs:
    """The messages to send. Iteration reads each file when its turn comes."""

    files: Sequence[Path] = ()
    texts: Sequence[str] = ()
    lines: bool = False
    whole: bool = False
    chunk: int | None = None
    repeat: int = 1
    _sources: tuple[Path, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Raises UsageError for missing files and options that contradict, and what `load` raises, before
        anything is sent."""
        ways = [way for way in ("lines", "whole", "chunk") if getattr(self, way) not in (False, None)]
        if len(ways) > 1:
            raise UsageError(f"--{ways[0]} and --{ways[1]} contradict", hint="give one of them")
        for path in self.files:
            if path != STDIN and not path.is_file():
                what = f"{path} is no file" if path.exists() else f"there is no file {path}"
                raise UsageError(what, hint="name files, or - for standard input")
            if self._has_tensors(path):
                _read_tensors(path)  # only maps it: an unreadable one is found before the others are sent
        sources = tuple(self.files) or (() if self.texts else (STDIN,))
        if self.repeat > 1 and STDIN in sources:
            raise UsageError(
                "standard input can be read once only", hint="leave out --repeat, or name a file"
            )
        object.__setattr__(self, "_sources", sources)

    @property
    def total_bytes(self) -> int | None:
        """Bytes to send; None if it reads standard input."""
        if STDIN in self._sources:
            return None
        size = sum(path.stat().st_size for path in self._sources) + sum(
            len(text.encode()) for text in self.texts
        )
        return size * self.repeat

    def __iter__(self) -> Iterator[InputMessage]:
        for _ in range(self.repeat):
            for text in self.texts:
                data = text.encode()
                yield InputMessage(data, len(data))
            for path in self._sources:
                yield from self._read(path)

    def _read(self, path: Path) -> Iterator[InputMessage]:
        if path == STDIN:
            yield from self._split(sys.stdin.buffer, lines=not self.whole)
        elif self.lines or self.chunk is not None:
            with path.open("rb") as file:
                yield from self._split(file, lines=self.lines)
        elif self._has_tensors(path):
            yield _read_tensors(path)
        else:
            data = path.read_bytes()
            yield InputMessage(data, len(data))

    def _has_tensors(self, path: Path) -> bool:
        return path.suffix in (".npy", ".safetensors") and not self.lines and self.chunk is None

    def _split(self, file: BinaryIO, *, lines: bool) -> Iterator[InputMessage]:
        if self.chunk is not None:
            while data := file.read(self.chunk):
                yield InputMessage(data, len(data))
        elif lines:
            for line in file:
                data = line.rstrip(b"\r\n")
                yield InputMessage(data, len(data))
        else:
            data = file.read()
            yield InputMessage(data, len(data))


def _read_tensors(path: Path) -> InputMessage:
    """Maps the tensors of a file into memory. It never unpickles."""
    from transfer.tensors import load

    tensors, meta = load(path)
    size = path.stat().st_size
    if path.suffix == ".npy":
        return InputMessage(tensors[""], size, "tensor")
    return InputMessage(tensors, size, "tensors", meta or None)
