"""Damaged frames, by seed: no core may do anything but decode or refuse them, and both do the same.

    python -m tests.core.fuzz --frames 1000000            # compares twin and native
    python -m tests.core.fuzz --frames 20000 --save DIR   # and keeps one input for each way to end

A case is a few good frames, cut and changed at random, and the end of the stream. Its outcome is
the messages decoded and how it ended: a reason of ProtocolError, or "end".
"""

from __future__ import annotations

import argparse
import gc
import importlib
import random
import socket
import sys
import time
import zlib
from pathlib import Path
from types import ModuleType

from tests.core.raw_frames import CONTROL, CRC, EXTENDED, EXTENDED_META, META, MORE, TENSOR, TOPIC, Raw
from transfer.transports.errors import Broken, ProtocolError

#: limit of a frame's data: a damaged length below it is believed
MAX_MESSAGE = 300_000
_SIZES = (0, 1, 33, 34, 35, 100, 4095, 4096, 5000, 65_536, 70_000)
_WEIGHTS = (3, 3, 3, 3, 3, 6, 2, 2, 2, 1, 1)
_NOISE = random.Random(0).randbytes(70_000)

Outcome = tuple[list[list[tuple[object, ...]]], str]


def frame(rng: random.Random) -> bytes:
    """A good frame of any kind."""
    if rng.random() < 0.15:
        return Raw(_NOISE[: rng.randrange(1, 60)], CONTROL | rng.choice((0, CRC))).encode()
    flags = rng.choice((0, 0, MORE)) | rng.choice((0, CRC))
    meta = topic = b""
    kind = rng.randrange(4)
    if kind == 1:
        flags, meta = flags | TENSOR, META
    elif kind == 2:
        flags, meta = flags | TENSOR | EXTENDED, EXTENDED_META
    if rng.random() < 0.3:
        flags, topic = flags | TOPIC, _NOISE[: rng.randrange(40)]
    size = rng.choices(_SIZES, _WEIGHTS)[0]
    return Raw(_NOISE[:size], flags, rng.getrandbits(64), meta, topic).encode()


def damage(rng: random.Random, data: bytes) -> bytes:
    """Changes bits and bytes, mostly in headers, and cuts, doubles or inserts pieces."""
    changed = bytearray(data)
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        at = rng.randrange(len(changed)) if changed else 0
        at = rng.choice((at, at % 82))
        way = rng.randrange(5)
        if not changed or at >= len(changed):
            break
        if way == 0:
            changed[at] ^= 1 << rng.randrange(8)
        elif way == 1:
            changed[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif way == 2:
            del changed[at:]
        elif way == 3:
            del changed[at : at + rng.randrange(1, 50)]
        else:
            changed[at:at] = changed[: rng.randrange(1, 50)]
    return bytes(changed)


def case(seed: int) -> tuple[bytes, int]:
    """The bytes of one case, and how many frames it was made of."""
    rng = random.Random(seed)
    count = rng.randrange(1, 8)
    return damage(rng, b"".join(frame(rng) for _ in range(count))), count


class Bench:
    """Feeds cases to one core."""

    def __init__(self, core: ModuleType) -> None:
        self.core = core
        self.flusher = core.Flusher()
        self.pool = core.Pool()

    def close(self) -> None:
        self.flusher.close()
        self.pool.close()

    def run(self, data: bytes, piece: int = 1 << 16) -> Outcome:
        """What becomes of these bytes when they arrive in pieces. Other errors than ours get out."""
        near, far = socket.socketpair()
        near.setblocking(False)
        stream = self.core.Stream(near.detach(), 5, self.flusher, self.pool, max_message=MAX_MESSAGE)
        messages: list[list[tuple[object, ...]]] = []
        rest = memoryview(data)
        try:
            while True:
                if rest:
                    rest = rest[far.send(rest[:piece]) :]
                    if not rest:
                        far.shutdown(socket.SHUT_WR)
                elif not data:
                    far.shutdown(socket.SHUT_WR)
                while (frames := stream.receive()) is not None:
                    messages.append([(f.flags, f.sequence, f.topic, f.meta, f.bytes) for f in frames])
        except ProtocolError as error:
            return messages, error.reason
        except Broken:
            return messages, "end"
        finally:
            stream.close()
            far.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--frames", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--core", choices=("both", "pure", "native"), default="both")
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    names = ("pure", "native") if options.core == "both" else (options.core,)
    benches = [Bench(importlib.import_module(f"transfer.transports.core.{name}")) for name in names]
    seed, frames, seen = options.seed, 0, dict[str, int]()
    while frames < options.frames:
        data, count = case(seed)
        piece = random.Random(seed).choice((1 << 16, 1 << 16, 4096, 100))
        outcomes = [bench.run(data, piece) for bench in benches]
        messages, end = outcomes[0]
        # Where a frame breaks two rules at once, which of them is named may differ.
        if any((m, e == "end") != (messages, end == "end") for m, e in outcomes[1:]):
            print(f"seed {seed}, pieces of {piece}: {[(len(m), e) for m, e in outcomes]}")
            return 1
        if options.save and seen.get(end, 0) < 3 and len(data) < 1000:
            options.save.mkdir(parents=True, exist_ok=True)
            (options.save / f"{end}-{zlib.crc32(data):08x}.bin").write_bytes(data)
        seen[end] = seen.get(end, 0) + 1
        frames += count
        seed += 1
    gc.collect()
    leaked = [bench.pool.in_use for bench in benches]
    for bench in benches:
        bench.close()
    print(f"{frames} frames in {seed - options.seed} cases from seed {options.seed}: {seen}, leaked {leaked}")
    return int(any(leaked))


if __name__ == "__main__":
    sys.exit(main())
