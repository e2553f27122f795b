"""`send_tensors` and `recv_tensors`: a dict of tensors with metadata as one message."""

from __future__ import annotations

import json
import struct
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, strategies as st

from tests.tensors.pairs import CORES, Loop, Pair, bytes_of, load_core, refusal
from transfer.tensors import bundle
from transfer.tensors.build import NUMPY
from transfer.tensors.bundle import frames_of
from transfer.tensors.bundle_arrival import BundleArrival
from transfer.tensors.export import export
from transfer.tensors.target import target_for
from transfer.transports.core.wire import EXTENDED_MAX
from transfer.transports.errors import NotATensor, ProtocolError, TensorMismatch, UsageError
from transfer.transports.sizes import LARGE

torch = pytest.importorskip("torch", reason="pip install torch")


def model(layers: int = 12, side: int = 128) -> dict[str, np.ndarray]:
    rows = np.arange(side * side, dtype="f4").reshape(side, side)
    return {f"layer{number}.weight": rows + number for number in range(layers)}


MIXED = {
    "big": np.arange(100_000, dtype="f8"),
    "small": np.arange(5, dtype="i2"),
    "empty": np.zeros((0, 3), "f4"),
    "scalar": np.array(3.5),
    "fortran": np.asfortranarray(np.arange(60_000.0).reshape(200, 300)),
    "turned": np.arange(60, dtype="u1").reshape(3, 4, 5).transpose(1, 2, 0),
    "bfloat16": np.arange(100, dtype=ml_dtypes.bfloat16),
    "gaps": np.arange(100)[::3],
    "structure": np.zeros(3, [("a", "<f4"), ("b", "<i8")]),
    "ünï—": np.ones(1, bool),
    "": np.ones((1,) * 32),
}


def same(got: dict[str, Any], sent: dict[str, Any]) -> None:
    assert list(got) == list(sent)
    for name, tensor in sent.items():
        assert got[name].dtype == tensor.dtype
        assert got[name].shape == tensor.shape
        assert bytes_of(got[name]) == bytes_of(tensor) if name != "bfloat16" else True
        assert np.array_equal(got[name], tensor)
        assert got[name].flags.writeable


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("checksum", [False, True], ids=["plain", "checksum"])
@pytest.mark.parametrize("compress", [False, True], ids=["plain", "lz4"])
@pytest.mark.parametrize("sent", [MIXED, model(), model(3, 16), model(200, 16), {}], ids=len)
def test_on_a_real_core(core: str, checksum: bool, compress: bool, sent: dict[str, Any]) -> None:
    with Pair(load_core(core), checksum=checksum, compress=compress) as pair:
        for meta in (None, {"step": 3, "lr": 0.5, "tags": ["ä", None, True]}):
            for _ in range(2):
                pair.sender.send_tensors(sent, meta=meta)
                got, described = pair.receiver.recv_tensors()
                same(got, sent)
                assert described == meta
            out = {name: np.empty_like(tensor) for name, tensor in sent.items()}
            pair.sender.send_tensors(sent, meta=meta)
            filled, described = pair.receiver.recv_tensors(out=out)
            same(filled, sent)
            assert all(filled[name] is out[name] for name in sent)
            assert described == meta


@pytest.mark.parametrize("layers", [12, 200])
def test_some_frames_compressed_and_others_not(layers: int) -> None:
    rng = np.random.default_rng(1)
    loop = Loop(compress=True)
    sent = {
        f"layer{n}": rng.random((128, 128)).astype("f4") if n % 3 else np.full((128, 128), n, "f4")
        for n in range(layers)
    } | {"small": np.zeros(20_000, "u1")}
    loop.send_tensors(sent)
    compressed = [bool(frame[0] & 128) for frame in loop.messages[0]]
    assert compressed[0]
    assert 0 < sum(compressed) < len(compressed)
    out = {name: np.empty_like(tensor) for name, tensor in sent.items()}
    same(loop.recv_tensors(out=out)[0], sent)
    loop.send_tensors(sent)
    same(loop.recv_tensors()[0], sent)


def test_large_tensors_are_not_copied_on_the_way_out() -> None:
    sent = model(3) | {"small": np.zeros(10)}
    frames = frames_of(sent, None, b"topic")
    assert [frame[2] for frame in frames] == [b"topic", None, None, None]
    for frame, tensor in zip(frames[1:], sent.values(), strict=False):
        assert np.shares_memory(frame[4], tensor)


@pytest.mark.parametrize("layers", [3, 200])
def test_large_tensors_are_read_into_out_directly(layers: int) -> None:
    loop = Loop()
    sent = model(layers) | {"small": np.zeros(10)}
    loop.send_tensors(sent)
    out = {name: np.empty_like(tensor) for name, tensor in sent.items()}
    seen: list[Any] = []
    receive = loop._recv_frames

    def watched(flags: int, sink: Any) -> Any:
        return receive(flags, lambda *asked: (seen.append(sink(*asked)), seen[-1])[1])

    loop._recv_frames = watched  # type: ignore[method-assign]
    loop.recv_tensors(out=out)
    for place, tensor in zip(seen[1:], out.values(), strict=False):
        assert np.shares_memory(place, tensor)
    same(out, sent)


def test_where_the_border_between_packed_and_own_frames_is() -> None:
    tensors = {"below": np.zeros(LARGE - 1, "u1"), "at": np.zeros(LARGE, "u1")}
    assert len(frames_of(tensors, None, None)) == 2
    assert len(frames_of({"below": tensors["below"]}, None, None)) == 1


def test_what_is_packed_is_aligned() -> None:
    loop = Loop()
    loop.send_tensors({"a": np.zeros(3, "u1"), "b": np.zeros(5), "c": np.zeros(1, "c16")}, meta=[1])
    got, _ = loop.recv_tensors()
    assert all(tensor.flags.aligned for tensor in got.values())


def test_torch(loop: Loop) -> None:
    state = {
        "weight": torch.randn(200, 200, requires_grad=True),
        "bias": torch.randn(4).bfloat16(),
        "scale": torch.tensor(2.0),
        "last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    }
    loop.send_tensors(state, meta="text")
    got, meta = loop.recv_tensors(like=torch)
    assert meta == "text"
    assert all(got[name].equal(tensor) and got[name].dtype == tensor.dtype for name, tensor in state.items())
    loop.send_tensors(state)
    out = {name: torch.empty_like(tensor).detach() for name, tensor in state.items()}
    assert loop.recv_tensors(out=out)[0]["weight"] is out["weight"]
    assert all(out[name].equal(tensor) for name, tensor in state.items())
    linear = torch.nn.Linear(300, 300)
    loop.send_tensors(linear.state_dict())
    other = torch.nn.Linear(300, 300)
    loop.recv_tensors(out=other.state_dict())
    assert other.weight.equal(linear.weight)


@pytest.mark.parametrize(
    "change",
    [
        lambda out: out.pop("small"),
        lambda out: out.update(more=np.zeros(3)),
        lambda out: out.update(small=np.zeros(6, "i2")),
        lambda out: out.update(small=np.zeros(5, "i4")),
        lambda out: out.update(big=np.zeros((100, 1000))),
    ],
    ids=["missing", "unknown", "shape", "dtype", "large shape"],
)
@pytest.mark.parametrize("core", CORES)
def test_a_mismatch_leaves_the_message_unread(core: str, change: Any) -> None:
    with Pair(load_core(core)) as pair:
        out = {name: np.empty_like(tensor) for name, tensor in MIXED.items()}
        change(out)
        pair.sender.send_tensors(MIXED)
        with pytest.raises(TensorMismatch):
            pair.receiver.recv_tensors(out=out)
        same(pair.receiver.recv_tensors()[0], MIXED)


@pytest.mark.parametrize("core", CORES)
def test_a_mismatch_with_a_long_index(core: str) -> None:
    """The index has to be read before it can be compared; the message is still unread all the same."""
    sent = model(200)
    with Pair(load_core(core)) as pair:
        out = {name: np.empty_like(tensor) for name, tensor in sent.items()}
        out["layer7.weight"] = np.zeros(3, "f4")
        pair.sender.send_tensors(sent)
        with pytest.raises(TensorMismatch, match="layer7"):
            pair.receiver.recv_tensors(out=out)
        same(pair.receiver.recv_tensors()[0], sent)
        pair.sender.send_tensors(sent)
        same(pair.receiver.recv_tensors()[0], sent)


@pytest.mark.parametrize(
    "meta",
    [object(), {1, 2}, b"bytes", {"a": object()}, np.zeros(3), {("a", 1): 2}],
    ids=["object", "set", "bytes", "object inside", "array", "key"],
)
def test_metadata_that_cannot_travel(loop: Loop, meta: Any) -> None:
    with pytest.raises(UsageError, match="JSON"):
        loop.send_tensors({"a": np.zeros(3)}, meta=meta)
    assert not loop.messages


def test_names_and_numbers_have_limits(loop: Loop) -> None:
    one = np.zeros(1)
    for tensors, match in (
        ({3: one}, "str"),
        ({"x" * 1025: one}, "1025 bytes"),
        ({"\ud800": one}, "UTF-8"),
        ({str(number): one for number in range(65_537)}, "65537 tensors"),
    ):
        with pytest.raises(UsageError, match=match):
            loop.send_tensors(tensors)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="metadata"):
        loop.send_tensors({"a": one}, meta="x" * (17 << 20))
    with pytest.raises(NotATensor):
        loop.send_tensors({"a": "text"})
    loop.send_tensors({"x" * 1024: one, "": one})
    assert list(loop.recv_tensors()[0]) == ["x" * 1024, ""]


@given(
    st.dictionaries(st.text(max_size=20), st.integers(0, 40), max_size=120),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=12,
    ),
)
def test_any_names_sizes_and_metadata(sizes: dict[str, int], meta: Any) -> None:
    loop = Loop()
    sent = {name: np.arange(size, dtype="f4") for name, size in sizes.items()}
    loop.send_tensors(sent, meta=meta)
    got, described = loop.recv_tensors()
    same(got, sent)
    assert described == meta
    loop.send_tensors(sent, meta=meta)
    same(loop.recv_tensors(out={name: np.empty_like(t) for name, t in sent.items()})[0], sent)


def test_indexes_are_kept_but_not_without_end(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "_CACHED", 4096)
    monkeypatch.setattr(bundle, "_CACHED_OF_ONE", 1024)
    caches = bundle._layouts, bundle._headers, bundle._indexes
    for cache in caches:
        cache.clear()
        cache.nbytes = 0
    for number in range(300):
        loop.send_tensors({f"name{number}": np.zeros(3)})
        loop.recv_tensors()
        assert all(cache and cache.nbytes <= 4096 for cache in caches)
    before = [dict(cache) for cache in caches]
    loop.send_tensors({f"name{number}": np.zeros(3) for number in range(100)})
    assert len(loop.recv_tensors()[0]) == 100
    assert [dict(cache) for cache in caches[:1]] == before[:1], "one large index is worth no many small ones"


# --- bad peers --------------------------------------------------------------------------------

FRAMES = [
    (*frame[:4], bytes_of(frame[4]))
    for frame in frames_of({"a": np.zeros(20_000), "b": np.ones(3)}, [1], None)
]
TENSOR = FRAMES[1][3]


def entry(name: bytes = b"a", header: bytes = TENSOR, own: int = 1, reserved: int = 0) -> bytes:
    return struct.pack("<HBB", len(name), own, reserved) + header + name


def head(
    index: bytes, *, kind: int = 2, where: int = 0, reserved: int = 0, said: int | None = None, meta: int = 0
) -> bytes:
    inline = b"" if where else index
    length = len(index) if said is None else said
    return struct.pack("<IBBHII", 16 + len(inline), kind, where, reserved, length, meta) + inline


def index_of(*entries: bytes, count: int | None = None) -> bytes:
    return struct.pack("<I", len(entries) if count is None else count) + b"".join(entries)


BAD = {
    "index shorter than said": (head(index_of(entry()), said=10), "tensor"),
    "unknown place of the index": (head(index_of(), where=2), "tensor"),
    "reserved bits": (head(index_of(), reserved=1), "tensor"),
    "no count": (head(b""), "tensor"),
    "entries missing": (head(index_of(entry(), count=2)), "tensor"),
    "entries too many": (head(index_of(entry(), count=0)), "tensor"),
    "absurd count": (head(index_of(count=0xFFFFFFFF)), "too_large"),
    "absurd index": (head(b"", where=1, said=0xFFFFFFFF), "too_large"),
    "absurd metadata": (head(index_of(), meta=0xFFFFFFFF), "too_large"),
    "name cut off": (head(index_of(entry()[:-1])), "tensor"),
    "name is no UTF-8": (head(index_of(entry(b"\xff"))), "tensor"),
    "name twice": (head(index_of(entry(), entry())), "tensor"),
    "place 2": (head(index_of(entry(own=2))), "tensor"),
    "reserved in entry": (head(index_of(entry(reserved=1))), "tensor"),
    "header cut off": (head(index_of(entry(header=TENSOR[:20], name=b""))), "tensor"),
    "bad dtype inside": (head(index_of(entry(header=struct.pack("<I", 15) + TENSOR[4:]))), "dtype"),
    "bad shape inside": (head(index_of(entry(header=TENSOR[:8] + b"\xff" * 32 + TENSOR[40:]))), "shape"),
    "a bundle inside": (head(index_of(entry(header=head(index_of())))), "tensor"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_index_is_refused_with_its_reason(loop: Loop, name: str) -> None:
    header, reason = BAD[name]
    loop.messages.append([(65, 1, None, header, b""), FRAMES[1]])
    error = refusal(loop.recv_tensors)
    assert error is not None
    assert error.reason == reason
    assert loop.messages, "nothing was read"


@pytest.mark.parametrize("out", [None, {"a": np.empty(20_000), "b": np.empty(3)}], ids=["pool", "out"])
def test_frames_that_do_not_fit_the_index(loop: Loop, out: Any) -> None:
    first, own = FRAMES
    for frames, reason in (
        ([first], "tensor"),
        ([first, own, own], "tensor"),
        ([(*first[:4], first[4] + b"x"), own], "length"),
        ([(*first[:4], first[4][:-1]), own], "length"),
        ([first, (*own[:4], own[4][:-8])], "shape"),
        ([first, (*own[:4], own[4] + b"12345678")], "shape"),
        ([first, (1, 0, None, b"\7" + own[3][1:], own[4])], "tensor"),
        ([(1, *first[1:]), own], "tensor"),
        ([(*first[:4], b"x" + first[4][1:]), own], "tensor"),
    ):
        loop.messages.clear()
        loop.messages.append(frames)
        error = refusal(loop.recv_tensors, out=out)
        assert error is not None, frames
        assert error.reason == reason


def test_a_plain_frame_inside_a_bundle(loop: Loop) -> None:
    first, own = FRAMES
    loop.messages.append([first, (0, 0, None, None, own[4])])
    with pytest.raises(TensorMismatch, match="no tensor"):
        loop.recv_tensors()


@given(st.data())
def test_flipped_bytes_are_refused_or_harmless(data: st.DataObject) -> None:
    first, own = FRAMES
    header = bytearray(first[3])
    for _ in range(data.draw(st.integers(1, 3))):
        header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
    loop = Loop()
    loop.messages.append([(65, 1, None, bytes(header), first[4]), own])
    try:
        tensors, _ = loop.recv_tensors()
    except (ProtocolError, TensorMismatch):
        return
    assert len(tensors) <= 2


@given(st.binary(max_size=300))
def test_garbage_behind_a_bundle_header(garbage: bytes) -> None:
    loop = Loop()
    loop.messages.append([(65, 1, None, head(garbage), b"")])
    assert refusal(loop.recv_tensors) is not None or len(garbage) == 4
    loop.messages.clear()
    loop.messages.append([(65, 1, None, head(garbage, where=1), garbage)])
    assert refusal(loop.recv_tensors) is not None or len(garbage) == 4


def test_a_long_index_travels_in_the_data() -> None:
    frames = frames_of({f"a rather long name {number}": np.zeros(3) for number in range(100)}, None, None)
    (flags, _, _, header, data), *rest = frames
    assert flags == 65
    assert not rest
    assert header is not None
    assert len(header) == 16 < EXTENDED_MAX
    assert struct.unpack_from("<IBB", header) == (16, 2, 1)
    assert b"a rather long name 99" in bytes_of(data)


def test_the_metadata_is_plain_json() -> None:
    frames = frames_of({}, {"a": [1, "ä"]}, None)
    data = bytes_of(frames[0][4])
    assert json.loads(data.rstrip(b"\0")) == {"a": [1, "ä"]}
    assert len(data) == 64


def test_the_frames_of_another_peer_do_not_end_its_connection():
    """A dict that stops in the middle, since its sender ended, and then a tensor of another peer: the sink is
    asked for both in one receive."""
    there = np.zeros(1 << 16)
    sink = BundleArrival(NUMPY, {"a": target_for(there), "b": target_for(np.zeros(1 << 17))})
    first, second, _ = frames_of({"a": np.ones(1 << 16), "b": np.ones(1 << 17)}, None, None)
    assert sink(first[3], None, len(first[4])) is None
    assert np.frombuffer(sink(second[3], None, there.nbytes), "u1").ctypes.data == there.ctypes.data
    bits, header, data = export(np.ones(1 << 18))
    assert sink(header, None, memoryview(data).nbytes) is None
    with pytest.raises(TensorMismatch):
        sink.finish([SimpleNamespace(flags=bits, topic=None, meta=header, data=data)])
