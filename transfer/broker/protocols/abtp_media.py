"""Codecs and compressors for payloads of abtp/1. Other distributions can add some by entry points.

An entry point in the group `transfer.codecs` names a class derived from Codec, one in `transfer.compressors`
a class derived from Compressor. Both the broker and its clients need the distribution.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from typing import Any

from transfer.broker.protocols import abtp_lz4
from transfer.broker.protocols.abtp_words import Code, to_json
from transfer.transports import plugins
from transfer.transports.arguments import wrong
from transfer.transports.errors import OptionError, ProtocolError, UsageError, comes_with
from transfer.transports.forking import undivided

with comes_with("fronts", __name__):
    import msgspec

CODEC_POINTS, COMPRESSOR_POINTS = "transfer.codecs", "transfer.compressors"


class Codec(ABC):
    """Converts values to bytes and back. The constructor takes no arguments. Thread-safe: it has no state."""

    @abstractmethod
    def encode(self, value: Any) -> bytes:
        """Raises TypeError or ValueError if it cannot represent the value."""

    @abstractmethod
    def decode(self, data: bytes) -> Any:
        """Raises ValueError if the bytes are incomplete, or if bytes are left over."""

    def check(self, data: bytes) -> None:
        """Validates a payload that the broker received. Raises ValueError. It must not need more memory than
        the payload. The broker does not call it for "json" and "raw"."""


class Compressor(ABC):
    """Compresses bytes and back. The constructor takes no arguments. Thread-safe: it has no state. magic: the
    first bytes of all its output, by which readers recognise it."""

    magic: bytes

    @abstractmethod
    def compress(self, data: bytes) -> bytes: ...

    @abstractmethod
    def decompress(self, data: bytes, limit: int) -> bytes:
        """Returns at most `limit` bytes, and allocates little more. Raises ValueError if the data are damaged
        or incomplete, or if bytes are left over; ProtocolError, reason oversized_payload, above the limit."""


class Raw(Codec):
    """Bytes, unchanged."""

    def encode(self, value: Any) -> bytes:
        return bytes(value)

    def decode(self, data: bytes) -> Any:
        return data


class Json(Codec):
    """JSON. Envelopes contain its text as it is; payloads of other codecs are base64 there."""

    def encode(self, value: Any) -> bytes:
        return msgspec.json.encode(value)

    def decode(self, data: bytes) -> Any:
        return msgspec.json.decode(data)


class Msgpack(Codec):
    """MessagePack."""

    def encode(self, value: Any) -> bytes:
        return msgspec.msgpack.encode(value)

    def decode(self, data: bytes) -> Any:
        return msgspec.msgpack.decode(data)

    def check(self, data: bytes) -> None:
        msgspec.msgpack.decode(data, type=msgspec.Raw)  # checks without making objects


class Lz4(Compressor):
    """An LZ4 frame. It decompresses a block without its size in front, too, if a header declares LZ4."""

    magic = abtp_lz4.FRAME_MAGIC

    def compress(self, data: bytes) -> bytes:
        return abtp_lz4.compress(data)

    def decompress(self, data: bytes, limit: int) -> bytes:
        return abtp_lz4.decompress(data, limit)


class Zstd(Compressor):
    """A Zstandard frame (RFC 8878) with a window of at most 8 MiB."""

    magic = b"\x28\xb5\x2f\xfd"
    _WINDOW = 8 << 20
    #: bytes that are decompressed at once: four bytes may become 128 KiB
    _STEP = 1 << 10

    def compress(self, data: bytes) -> bytes:
        import zstandard

        packed: bytes = zstandard.ZstdCompressor().compress(data)
        return packed

    def decompress(self, data: bytes, limit: int) -> bytes:
        import zstandard

        reader = zstandard.ZstdDecompressor(max_window_size=self._WINDOW).decompressobj()
        parts, size = [], 0
        try:
            for at in range(0, len(data), self._STEP):
                parts.append(reader.decompress(data[at : at + self._STEP]))
                size += len(parts[-1])
                if size > limit:
                    raise ProtocolError(
                        Code.OVERSIZED_PAYLOAD, f"more than {limit:,} bytes when decompressed"
                    )
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from error
        if not reader.eof or reader.unused_data:
            raise ValueError("the frame is incomplete, or bytes follow it")
        return b"".join(parts)


_CODECS: dict[str, type[Codec]] = {"json": Json, "raw": Raw, "msgpack": Msgpack}
_COMPRESSORS: dict[str, type[Compressor]] = {"lz4": Lz4, "zstd": Zstd}


@functools.cache
def codecs() -> dict[str, Codec]:
    """Returns all codecs by name. Raises OptionError if an entry point cannot be loaded."""
    return {name: make() for name, make in _CODECS.items()} | _load_plugins(CODEC_POINTS, Codec)


@functools.cache
def compressors() -> dict[str, Compressor]:
    """Returns all compressors by name. Raises OptionError if an entry point cannot be loaded."""
    known = dict(_COMPRESSORS)
    try:
        with undivided():
            import zstandard  # noqa: F401 - only to check whether it is installed
    except ImportError:
        del known["zstd"]
    added = _load_plugins(COMPRESSOR_POINTS, Compressor)
    for name, one in added.items():
        if not isinstance(getattr(one, "magic", None), bytes) or not one.magic:
            raise OptionError(
                f"the compressor {name} has no magic", hint="set it to the first bytes of its output"
            )
    return {name: make() for name, make in known.items()} | added


def codec(name: object) -> Codec:
    """Returns the codec of this name. Raises ProtocolError, reason unsupported_codec."""
    found = codecs().get(name) if isinstance(name, str) else None
    if found is None:
        raise ProtocolError(Code.UNSUPPORTED_CODEC, f"{name!r:.40}; {', '.join(codecs())} are known")
    return found


def compressor(name: object) -> Compressor | None:
    """Returns the compressor of this name; None for "none". Raises ProtocolError, reason
    unsupported_compression."""
    found = compressors().get(name) if isinstance(name, str) else None
    if found is None and name != "none":
        known = ", ".join(("none", *compressors()))
        raise ProtocolError(Code.UNSUPPORTED_COMPRESSION, f"{name!r:.40}; {known} are known")
    return found


def compressor_of(data: bytes) -> Compressor | None:
    """Returns the compressor whose magic the bytes begin with; None: the bytes are not compressed."""
    return next((one for one in compressors().values() if data.startswith(one.magic)), None)


def decompress_payload(one: Compressor, data: bytes, limit: int) -> bytes:
    """Decompresses a payload. Raises ProtocolError, also for exceptions of a plug-in."""
    try:
        return one.decompress(data, limit)
    except ProtocolError:
        raise
    except Exception as error:
        raise ProtocolError(Code.MALFORMED_ENVELOPE, f"damaged compressed bytes: {error}") from error


def encode_payload(value: Any, name: str) -> bytes:
    """Encodes a value that a producer publishes. Raises UsageError."""
    if name == "json":
        return to_json(value, "the payload")
    if name == "raw" and not isinstance(value, bytes | bytearray | memoryview):
        raise wrong("the payload of codec raw", value, "bytes, or another codec")
    if name not in codecs():
        raise wrong("codec", name, f"one of {', '.join(codecs())}")
    try:
        return codecs()[name].encode(value)
    except Exception as error:
        raise UsageError(f"the payload cannot be written as {name}: {error}") from error


def compress_payload(data: bytes, name: str) -> bytes:
    """Compresses a payload that a producer publishes. Raises UsageError."""
    if name not in compressors():
        raise wrong("compress", name, f"True, False, or one of {', '.join(compressors())}")
    try:
        return compressors()[name].compress(data)
    except Exception as error:
        raise UsageError(f"the payload cannot be compressed as {name}: {error!r:.200}") from error


def _load_plugins(group: str, base: type[Any]) -> dict[str, Any]:
    """Makes instances of the classes that the entry points of a group name. Raises OptionError."""
    made = {}
    for name in plugins.names(group):
        found = plugins.load(group, name, base)
        try:
            made[name] = found()
        except Exception as error:
            what = f"{found.__module__}.{found.__qualname__}, the entry point {name} of {group},"
            hint = "repair or uninstall the distribution that provides it"
            raise OptionError(f"{what} cannot be made: {error!r:.200}", hint=hint) from error
    return made
