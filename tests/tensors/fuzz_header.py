"""Damaged tensor headers, by seed: each is a tensor that can be built, or refused with a reason.

    python -m tests.tensors.fuzz_header --headers 1000000

A case is the header of one tensor or of a bundle: the golden ones, the bad ones that the tests name,
or one made at random, most of them changed. It is read as both kinds. See `judge`.
"""

from __future__ import annotations

import argparse
import math
import random
import struct
import sys
import time
import tracemalloc

from tests.tensors import test_bundle, test_header
from tests.tensors.vectors import VECTORS
from transfer.tensors import dtypes
from transfer.tensors.build import NUMPY, TorchBuilder, recipe_for
from transfer.tensors.bundle import MAX_TENSORS, Index, unpack_bundle
from transfer.tensors.header import MAX_BYTES, MAX_DIMS, TENSOR_FLAGS, TensorSpec, pack, unpack
from transfer.transports.core.wire import EXTENDED_MAX
from transfer.transports.errors import NotSupported, ProtocolError, TensorMismatch

#: bytes that reading one header (at most 4 KiB) or an index of as many may allocate at any moment;
#: numpy keeps its own accounts
MOST_MEMORY = 1 << 20
MEASURED = 50
#: tensors up to here are really built
BUILT = 1 << 16
REASONS = {"tensor", "dtype", "shape", "too_large", "length"}

_KNOWN = [header for header, _ in (*test_header.BAD.values(), *test_bundle.BAD.values())] + [
    frame[3] for vector in VECTORS.values() for frame in vector.frames if frame[3]
]
_TEXTS = (
    '"<f4"', '">f4"', '"<M8[ns]"', '"|V7"', '"<U5"', '[["a","<f4"],["b","|u1",[2,3]]]',
    '[["a",[["b","<i2"]]]]', '["<f4",[2]]', *test_header.DESCRIPTIONS,
)  # fmt: skip
_SIZES = (0, 0, 1, 2, 3, 4, 5, 17, 1 << 31, 1 << 32, 1 << 40, 1 << 62, (1 << 63) - 1, -1, -(1 << 63))
_TORCH = TorchBuilder()


def tensor(rng: random.Random) -> bytes:
    """The header of one tensor: mostly good, sometimes with a size that is none."""
    row = rng.choice(dtypes.TABLE)
    ndim = rng.choice((0, 1, 1, 2, 3, 4, 5, 8, 32))
    small = rng.random() < 0.8
    shape = tuple(rng.randrange(4) if small else rng.choice(_SIZES) for _ in range(ndim))
    axes = None if rng.random() < 0.5 else tuple(rng.sample(range(ndim), ndim))
    axes = None if axes == tuple(range(ndim)) else axes
    device = (1, 0) if rng.random() < 0.9 else (rng.randrange(256), rng.randrange(1 << 16))
    if rng.random() < 0.2:
        itemsize = rng.choice((0, 1, 4, 4, 4, 8, 10, rng.getrandbits(32)))
        return pack(TensorSpec(dtypes.TEXT, shape, itemsize, axes, rng.choice(_TEXTS), device))[1]
    return pack(TensorSpec(row.code, shape, row.itemsize, axes, "", device))[1]


def bundle(rng: random.Random) -> bytes:
    """The header of a bundle with its index, or an index alone that would stand in the data."""
    names = [rng.choice((b"a", b"b", b"layer.weight", b"", "ü".encode(), b"x" * 1024)) for _ in range(4)]
    entries = [
        test_bundle.entry(names[n], tensor(rng), rng.choice((0, 1, 1, 2)) if rng.random() < 0.1 else n % 2)
        for n in range(rng.randrange(5))
    ]
    index = test_bundle.index_of(*entries)
    if len(index) + 16 > EXTENDED_MAX or rng.random() < 0.2:
        return test_bundle.head(b"", where=1, said=len(index)) + index
    return test_bundle.head(index, meta=rng.choice((0, 0, 5, 1 << 24, (1 << 24) + 1)))


def damaged(rng: random.Random, header: bytes) -> bytes:
    """Bytes changed, new and left out; the length at the beginning mostly mended."""
    changed = bytearray(header)
    for _ in range(rng.choice((0, 0, 1, 1, 2, 4))):
        way = rng.random()
        at = rng.randrange(len(changed)) if changed else 0
        if way < 0.6 and changed:
            changed[at] = rng.choice((0, 1, 2, 3, 16, 32, 33, 48, 127, 128, 255, rng.randrange(256)))
        elif way < 0.7:
            changed.insert(at, rng.randrange(256))
        elif way < 0.8 and len(changed) >= 24:
            at = 16 + 8 * rng.randrange((len(changed) - 16) // 8)
            changed[at : at + 8] = struct.pack("<q", rng.choice(_SIZES))
        elif way < 0.9:
            del changed[at : at + 1]
        else:
            changed[at:at] = changed[at : at + 16]
    if len(changed) >= 4 and rng.random() < 0.5:
        changed[:4] = len(changed).to_bytes(4, "little")
    return bytes(changed)


def case(seed: int) -> bytes:
    rng = random.Random(seed)
    way = rng.random()
    if way < 0.3:
        header = rng.choice(_KNOWN)
    elif way < 0.65:
        header = tensor(rng)
    elif way < 0.97:
        header = bundle(rng)
    else:
        return rng.randbytes(rng.randrange(200))
    return damaged(rng, header)


# --- what becomes of it -----------------------------------------------------------------------


def read_tensor(header: bytes) -> str:
    """ "good", or the reason."""
    try:
        spec = unpack(header)
    except ProtocolError as error:
        return error.reason
    ndim = len(spec.shape)
    assert ndim <= MAX_DIMS and all(size >= 0 for size in spec.shape)
    assert 0 <= spec.nbytes == math.prod(spec.shape) * spec.itemsize <= MAX_BYTES
    assert spec.axes is None or sorted(spec.axes) == list(range(ndim))
    assert sorted(spec.stored_shape) == sorted(spec.shape)
    flags, again = pack(spec)
    back = unpack(again)
    assert (back.code, back.shape, back.itemsize, back.text) == (
        spec.code, spec.shape, spec.itemsize, spec.text,
    ), "another one after pack and unpack"  # fmt: skip
    # Where the order of axes makes no difference it need not be said again.
    assert back.axes == spec.axes or spec.axes == tuple(range(ndim)) or ndim < 2
    assert back.device == spec.device or flags == TENSOR_FLAGS
    return "good"


def build_tensor(header: bytes) -> str:
    """Builds what the header describes, if it is small or empty: "built", a reason, or "large"."""
    try:
        recipe = recipe_for(header)
        NUMPY.check(recipe)
        if recipe.nbytes > BUILT:
            return "large"
        array = NUMPY.build(recipe, bytes(recipe.nbytes))
        assert array.shape == recipe.spec.shape
        assert array.flags.writeable and array.nbytes == recipe.nbytes
    except (ProtocolError, NotSupported) as error:
        return getattr(error, "reason", "not supported")
    try:
        made = _TORCH.build(recipe, bytes(recipe.nbytes))
        assert tuple(made.shape) == recipe.spec.shape
    except TensorMismatch:
        return "built, without torch"
    return "built"


def read_bundle(header: bytes) -> str:
    """ "good", or the reason; an index that would follow in the data is what follows here."""
    try:
        try:
            found = unpack_bundle(header)
        except ProtocolError:
            found = unpack_bundle(header[:16])  # an index in the data
        index = found.index_of(header[16:])
    except ProtocolError as error:
        return error.reason
    assert isinstance(index, Index) and len(index.entries) <= MAX_TENSORS
    assert len({entry.name for entry in index.entries}) == len(index.entries)
    assert index.packed >= 0 and found.start >= 0
    offsets = [entry.offset for entry in index.entries if entry.offset is not None]
    assert offsets == sorted(offsets) and all(offset % 64 == 0 for offset in offsets)
    assert found.limit is None or found.limit >= index.packed
    return "good"


def judge(header: bytes) -> dict[str, str]:
    """What becomes of this header. Raises for everything that must not happen:

    an error other than ProtocolError with a documented reason, a tensor that is another after its
    own header or cannot be built, more memory than MOST_MEMORY while the header is read.
    """
    before = 0
    if tracemalloc.is_tracing():
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
    result = {"tensor": read_tensor(header), "bundle": read_bundle(header)}
    if tracemalloc.is_tracing():
        used = tracemalloc.get_traced_memory()[1] - before
        assert used <= MOST_MEMORY, f"{used} bytes for one header"
    result["array"] = build_tensor(header) if result["tensor"] == "good" else "none"
    assert {result["tensor"], result["bundle"]} <= REASONS | {"good"}
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--headers", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    _TORCH.load()
    seen: dict[str, dict[str, int]] = {"tensor": {}, "bundle": {}, "array": {}}
    for seed in range(options.seed, options.seed + options.headers):
        try:
            header = case(seed)
            if seed % MEASURED == 0:
                tracemalloc.start()
            result = judge(header)
        except BaseException:
            print(f"seed {seed}: {header!r}")
            raise
        finally:
            tracemalloc.stop()
        for part, word in result.items():
            seen[part][word] = seen[part].get(word, 0) + 1
    print(f"{options.headers} headers from seed {options.seed}")
    for part, words in seen.items():
        print(f"  {part}: {dict(sorted(words.items(), key=lambda item: -item[1]))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
