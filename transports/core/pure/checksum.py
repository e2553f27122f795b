"""CRC-32C (Castagnoli, RFC 3720 appendix B.4), a byte at a time: correct, and slow."""

from __future__ import annotations

from typing import Any

_POLYNOMIAL = 0x82F63B78


def _row(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (_POLYNOMIAL if byte & 1 else 0)
    return byte


_TABLE = tuple(_row(byte) for byte in range(256))


def crc32c(data: Any, value: int = 0, *, software: bool = False) -> int:
    """See `crc32c` in core/contract.pyi."""
    value ^= 0xFFFFFFFF
    for byte in memoryview(data).cast("B"):
        value = (value >> 8) ^ _TABLE[(value ^ byte) & 255]
    return value ^ 0xFFFFFFFF
