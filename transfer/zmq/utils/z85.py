"""Z85: four bytes as five printable characters (ZeroMQ RFC 32)."""

from __future__ import annotations

import struct

__all__ = ["decode", "encode"]

Z85CHARS = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
Z85MAP = {char: value for value, char in enumerate(Z85CHARS)}
_POWERS = (85**4, 85**3, 85**2, 85, 1)


def encode(rawbytes: bytes | bytearray | memoryview) -> bytes:
    """Encodes `rawbytes` in Z85. Raises ValueError unless the length is a multiple of 4."""
    if len(rawbytes) % 4:
        raise ValueError(f"the length must be a multiple of 4, not {len(rawbytes)}")
    words = struct.unpack(f">{len(rawbytes) // 4}I", rawbytes)
    return bytes(Z85CHARS[word // power % 85] for word in words for power in _POWERS)


def decode(z85bytes: str | bytes | bytearray | memoryview) -> bytes:
    """Decodes Z85 text. Raises ValueError for invalid text."""
    text = z85bytes.encode() if isinstance(z85bytes, str) else bytes(z85bytes)
    if len(text) % 5:
        raise ValueError(f"the length must be a multiple of 5, not {len(text)}")
    try:
        digits = [Z85MAP[char] for char in text]
    except KeyError as error:
        raise ValueError(f"{chr(error.args[0])!r} is no character of Z85") from None
    words = [
        sum(digit * power for digit, power in zip(digits[start : start + 5], _POWERS, strict=True))
        for start in range(0, len(digits), 5)
    ]
    if any(word > 0xFFFFFFFF for word in words):
        raise ValueError("five characters stand for more than 32 bits")
    return struct.pack(f">{len(words)}I", *words)
