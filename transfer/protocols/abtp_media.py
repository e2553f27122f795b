"""What payloads of abtp/1 may be in, and how they may be compressed. Other distributions bring more, by entry
points named like what they bring: of the group `transfer.codecs` a class derived from Codec, of the group
`transfer.compressors` one derived from Compressor. The broker and those who read its messages need them."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from importlib import metadata
from typing import Any

from transfer.protocols import abtp_lz4
from transfer.protocols.abtp_words import Code, to_json
from transports.arguments import wrong
from transports.errors import OptionError, ProtocolError, UsageError, comes_with
from transports.forking import undivided

with comes_with("fronts", __name__):
    import msgspec

CODEC_POINTS, COMPRESSOR_POINTS = "transfer.codecs", "transfer.compressors"


class Codec(ABC):
    """How a value is written as bytes. Without state; used by any thread. Made without an argument."""

    @abstractmethod
    def encode(self, value: Any) -> bytes:
        """Raises TypeError or ValueError for what it cannot say."""

    @abstractmethod
    def decode(self, data: bytes) -> Any:
        """Raises ValueError for bytes that are not whole, or not alone."""

    def check(self, data: bytes) -> None:
        """Raises ValueError as `decode`, as far as that costs no more memory than the bytes: the broker asks
        it, of strangers' messages. Not asked of "json" and "raw"."""


class Compressor(ABC):
    """Without state; used by any thread. Made without an argument. magic: what all that it makes begins with,
    by which readers know it."""

    magic: bytes

    @abstractmethod
    def compress(self, data: bytes) -> bytes: ...

    @abstractmethod
    def decompress(self, data: bytes, limit: int) -> bytes:
        """Takes no more memory than `limit` and some buffers. Raises ValueError for what is damaged, not
        whole or not alone, and ProtocolError, reason oversized_payload."""


class Raw(Codec):
    """Bytes, as they are."""

    def encode(self, value: Any) -> bytes:
        return bytes(value)

    def decode(self, data: bytes) -> Any:
        return data


class Json(Codec):
    """Its text stands in envelopes as it is; others are base64 there."""

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
        msgspec.msgpack.decode(data, type=msgspec.Raw)  # it steps over what it makes no objects of


class Lz4(Compressor):
    """A frame; a block without its size in front is understood too, where a header says that it is one."""

    magic = abtp_lz4.FRAME_MAGIC

    def compress(self, data: bytes) -> bytes:
        return abtp_lz4.compress(data)

    def decompress(self, data: bytes, limit: int) -> bytes:
        return abtp_lz4.decompress(data, limit)


class Zstd(Compressor):
    """A frame (RFC 8878), whose window is 8 MiB at most."""

    magic = b"\x28\xb5\x2f\xfd"
    _WINDOW = 8 << 20
    #: bytes that are decompressed at once: four of them may become 128 KiB
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
            raise ValueError("a frame that is not whole, or not alone")
        return b"".join(parts)


_CODECS: dict[str, type[Codec]] = {"json": Json, "raw": Raw, "msgpack": Msgpack}
_COMPRESSORS: dict[str, type[Compressor]] = {"lz4": Lz4, "zstd": Zstd}


@functools.cache
def codecs() -> dict[str, Codec]:
    """All that this process knows, by name. Raises OptionError for one that cannot be loaded."""
    return {name: make() for name, make in _CODECS.items()} | _brought(CODEC_POINTS, Codec)


@functools.cache
def compressors() -> dict[str, Compressor]:
    """The same of compressors."""
    known = dict(_COMPRESSORS)
    try:
        with undivided():
            import zstandard  # noqa: F401 - asked only whether it is there
    except ImportError:
        del known["zstd"]
    brought = _brought(COMPRESSOR_POINTS, Compressor)
    for name, one in brought.items():
        if not isinstance(getattr(one, "magic", None), bytes) or not one.magic:
            raise OptionError(
                f"the compressor {name} has no magic", hint="name the bytes that it begins with"
            )
    return {name: make() for name, make in known.items()} | brought


def codec(name: object) -> Codec:
    """Raises ProtocolError, reason unsupported_codec."""
    found = codecs().get(name) if isinstance(name, str) else None
    if found is None:
        raise ProtocolError(Code.UNSUPPORTED_CODEC, f"{name!r:.40}; {', '.join(codecs())} are known")
    return found


def compressor(name: object) -> Compressor | None:
    """None: "none". Raises ProtocolError, reason unsupported_compression."""
    found = compressors().get(name) if isinstance(name, str) else None
    if found is None and name != "none":
        known = ", ".join(("none", *compressors()))
        raise ProtocolError(Code.UNSUPPORTED_COMPRESSION, f"{name!r:.40}; {known} are known")
    return found


def compressor_of(data: bytes) -> Compressor | None:
    """The one that made these bytes, by what they begin with; None: they are no compressor's."""
    return next((one for one in compressors().values() if data.startswith(one.magic)), None)


def decompressed(one: Compressor, data: bytes, limit: int) -> bytes:
    """Raises ProtocolError."""
    try:
        return one.decompress(data, limit)
    except ProtocolError:
        raise
    except Exception as error:
        raise ProtocolError(Code.MALFORMED_ENVELOPE, f"damaged compressed bytes: {error}") from error


def encoded(value: Any, name: str) -> bytes:
    """As a producer sends it. Raises UsageError."""
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


def packed(data: bytes, name: str) -> bytes:
    """As a producer sends it. Raises UsageError."""
    if name not in compressors():
        raise wrong("compress", name, f"True, False, or one of {', '.join(compressors())}")
    try:
        return compressors()[name].compress(data)
    except Exception as error:
        raise UsageError(f"the payload cannot be compressed as {name}: {error!r:.200}") from error


def _brought(group: str, base: type[Any]) -> dict[str, Any]:
    """What other distributions bring, made. Raises OptionError."""
    found = {}
    for point in metadata.entry_points(group=group):
        what = f"{point.value}, registered as {point.name} in {group}"
        try:
            with undivided():
                made = point.load()
            if not (isinstance(made, type) and issubclass(made, base)):
                raise OptionError(
                    f"{what}, is no {base.__name__}",
                    hint=f"name a class derived from {base.__module__}.{base.__name__}",
                )
            found[point.name] = made()
        except OptionError:
            raise
        except Exception as error:
            hint = "mend or remove the distribution that brings it"
            raise OptionError(f"{what}, cannot be used: {error!r:.200}", hint=hint) from error
    return found
