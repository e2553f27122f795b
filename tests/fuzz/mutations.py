"""Values and changes that parsers get wrong, by a random generator that the caller seeds. Pure."""

from __future__ import annotations

import json
import random
from typing import Any

#: numbers at the edges of what fields hold
EDGES = (0, 1, 2, 3, 127, 128, 255, 256, 32_767, 65_535, 65_536, (1 << 31) - 1, 1 << 31, (1 << 32) - 1,
         1 << 32, (1 << 62), (1 << 63) - 1, 1 << 63, (1 << 64) - 1)  # fmt: skip
#: names of topics, groups, runs; none of them is a good client's
NAMES = ("fuzz", "fuzz.a", "fuzz.b.c", "fuzz/*", "fuzz.>", "*", "fuzz.#", "ü" * 20, "x" * 255, "..", "fuzz\n")
BAD_NAMES = (b"", b"\0", b"\xff\xfe", b"fuzz\0", b"x" * 256, b"\xed\xa0\x80", b"x" * 70_000, b"../fuzz")
#: JSON where other JSON should stand
VALUES = (
    "null", "true", "0", "-1", "1e0", "0.5", "1e999", "-1e999", "NaN", "-Infinity", "9007199254740993",
    "18446744073709551616", "9" * 400, "9" * 5000, '""', '"fuzz"', '"\\ud800"', '"\\u0000"', '"old"', '"1"',
    '"' + "x" * 5000 + '"', "[]", "{}", "[[]]", '{"":{}}', "[" * 50 + "]" * 50, "[" * 3000 + "]" * 3000,
    '{"a":' * 1100 + "1" + "}" * 1100, "[" * 5000, '"\xff', "01", "", "[1,]", '[0,"a",null]', '{"a":1,"a":2}',
)  # fmt: skip


def number(rng: random.Random, bits: int) -> int:
    """One that fits into so many bits, mostly at an edge."""
    if rng.random() < 0.2:
        return rng.getrandbits(bits)
    return rng.choice([edge for edge in EDGES if edge < 1 << bits])


def name(rng: random.Random) -> bytes:
    """A name, now and then none that is allowed."""
    return rng.choice(BAD_NAMES) if rng.random() < 0.15 else rng.choice(NAMES).encode()


def payload(rng: random.Random) -> bytes:
    """Bytes of a message."""
    return rng.randbytes(rng.choice((0, 1, 10, 100, 100, 1000, 5000, 70_000)))


def rewritten(rng: random.Random, words: dict[str, Any], most: int = 3) -> bytes:
    """An object as JSON; fields may have other values, be gone, unknown or twice there."""
    fields = [(key, json.dumps(value)) for key, value in words.items()]
    for _ in range(rng.randrange(most + 1)):
        at = rng.randrange(len(fields)) if fields else 0
        dial = rng.randrange(4)
        if dial < 2 and fields:
            fields[at] = fields[at][0], rng.choice(VALUES)
        elif dial == 2 and fields:
            del fields[at]
        else:
            key = fields[at][0] if fields and rng.random() < 0.5 else rng.choice(("", "later", "ask", "type"))
            fields.append((key, rng.choice(VALUES)))
    text = "{" + ",".join(f"{json.dumps(key)}:{value}" for key, value in fields) + "}"
    return text.encode("utf-8", "surrogatepass")


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Bits and bytes changed, cut out, doubled or inserted, mostly near the beginning."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        if not changed:
            break
        at = rng.randrange(len(changed))
        at = rng.choice((at, at % 40))
        dial = rng.randrange(5)
        if dial == 0:
            changed[at] ^= 1 << rng.randrange(8)
        elif dial == 1:
            changed[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF))
        elif dial == 2:
            del changed[at : at + rng.randrange(1, 50)]
        elif dial == 3:
            changed[at:at] = changed[at : at + rng.randrange(1, 50)]
        else:
            changed[at : at + 8] = number(rng, 64).to_bytes(8, rng.choice(("little", "big")))
    return bytes(changed)


def disordered(rng: random.Random, pieces: list[bytes]) -> list[bytes]:
    """A conversation as it is, or with words in another order, twice, gone, cut off or damaged."""
    pieces = list(pieces)
    if rng.random() < 0.4 or not pieces:
        return pieces
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.randrange(len(pieces))
        dial = rng.randrange(6)
        if dial == 0:
            pieces.insert(rng.randrange(len(pieces)), pieces.pop(at))
        elif dial == 1:
            pieces[at:at] = [pieces[at]] * rng.choice((1, 1, 20))
        elif dial == 2 and len(pieces) > 1:
            del pieces[at]
        elif dial == 3:
            pieces[at] = pieces[at][: rng.randrange(len(pieces[at]) + 1)]
        else:
            pieces[at] = damaged(rng, pieces[at])
    return pieces
