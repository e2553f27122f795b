"""Objects of other classes: only those of the allow list, and what a hostile sender can try with one."""

from __future__ import annotations

import collections
import os
import pickle
import subprocess
import sys
from fractions import Fraction
from pathlib import PurePosixPath

import msgspec
import numpy as np
import pytest

from tests.objects import classes
from tests.objects.classes import (
    Access,
    Bomb,
    ByFunction,
    Colour,
    Frozen,
    Guarded,
    Message,
    Names,
    Outer,
    Point,
    Slotted,
    Stateful,
)
from transfer.objects import decode, encode, format as form
from transfer.objects.pyobj import dumps, loads
from transfer.transports.errors import ArgumentError, OptionError, PickleRefused, ProtocolError

HERE = classes.__name__


@pytest.fixture
def allow(monkeypatch):
    """allow("a.B, c.*") sets the list of both ends."""
    monkeypatch.delenv("MOONCAKE_ALLOW_PICKLE", raising=False)

    def set_(text):
        monkeypatch.setenv("TRANSFER_PICKLE_ALLOW", text)

    set_("")
    return set_


def slotted():
    made = Slotted()
    made.a, made.b = 1, (2,)
    return made


def names():
    made = Names(a=1)
    made.note = "x"
    return made


OBJECTS = [
    Message("a", {"x": (1, 2)}, ["t"]),
    Message("nested", [Message("inner", Frozen(1, Colour.RED))]),
    Frozen({1}, None),
    slotted(),
    Colour.BLUE,
    Access.READ | Access.WRITE,
    Point(1, 2),
    names(),
    Stateful(5),
    Outer.Inner(),
]


@pytest.mark.parametrize("value", OBJECTS, ids=lambda value: type(value).__qualname__)
def test_a_round_trip(allow, value):
    with pytest.raises(PickleRefused, match=r"TRANSFER_PICKLE_ALLOW=tests.objects.classes."):
        encode([value])
    allow(f"{HERE}.*")
    got = decode(encode([value]))[0]
    assert type(got) is type(value) and got == value
    if isinstance(value, Names):
        assert got.note == "x"
    encoded = encode(value)
    allow(f"{HERE}.Other")
    with pytest.raises(PickleRefused, match=rf"of the class '{HERE}.*\n.*docs/pyobj.md"):
        decode(encoded)


def test_classes_of_the_standard_library(allow):
    for value, entries in (
        (collections.OrderedDict([("b", 1), ("a", 2)]), "collections.OrderedDict"),
        (collections.deque([1, (2,)], 5), "collections.deque"),
        (collections.defaultdict(list, {1: [2]}), "collections.defaultdict, builtins.list"),
        (collections.Counter("aab"), "collections.Counter"),
        (ValueError("a", 1), "builtins.ValueError"),
        (Fraction(1, 3), "fractions.Fraction"),
        (PurePosixPath("/a/b"), "pathlib.*"),
    ):
        allow(entries)
        got = decode(encode((value,)))[0]
        assert type(got) is type(value) and (got == value or got.args == value.args)


def test_arrays_in_an_object(allow):
    allow(f"{HERE}.Message\n{HERE}.Frozen")
    value = Message("a", {"x": np.arange(1 << 14), "y": Frozen(np.float32(1), b"x" * 5000)})
    got = decode(bytearray(encode(value)))
    assert np.array_equal(got.body["x"], value.body["x"])
    assert (got.body["y"].left, got.body["y"].right) == (np.float32(1), b"x" * 5000)


def test_exact_names(allow):
    allow(f"{HERE}.Point")
    assert decode(encode(Point(1, 2))) == Point(1, 2)
    for value in (Message("a"), Outer.Inner(), Point):
        allow(f"{HERE}.Outer, {HERE}.Inner, tests.objects.*, tests.*, {HERE}.classes.*")
        with pytest.raises(PickleRefused):
            encode(value)
    allow(f"{HERE}.Outer.Inner")
    assert decode(encode(Outer.Inner())) == Outer.Inner()
    assert decode(encode(Outer.Inner)) is Outer.Inner


@pytest.mark.parametrize("entry", ["*", "os", "a.*.b", "a..b", ".a", "a.b*", "os.*x", "a-b.c", "a:b"])
def test_a_misspelt_list(allow, entry):
    allow(f"{HERE}.*, {entry}")
    with pytest.raises(OptionError, match="TRANSFER_PICKLE_ALLOW"):
        encode(Point(1, 2))
    assert decode(encode({"a": 1})) == {"a": 1}


def test_functions_local_classes_and_cycles(allow):
    class Local:
        pass

    allow(f"{HERE}.*, {__name__}.*, builtins.*")
    for value in (
        ByFunction(),
        Local(),
        Local,
        classes.make,
        print,
        lambda: 1,
        Bomb("x"),
        classes.Meta,
        type,
    ):
        with pytest.raises(PickleRefused):
            encode(value)
    ring = Message("a")
    ring.body = [ring]
    with pytest.raises(ArgumentError, match="contains itself"):
        encode(ring)


# --- what arrives ------------------------------------------------------------------------------


def packed(*parts, code=form.OBJECT):
    return form.ALONE + msgspec.msgpack.encode(msgspec.msgpack.Ext(code, msgspec.msgpack.encode(parts)))


def hostile(module, name, how=0, args=(), names=None, state=None, items=None, pairs=None):
    return packed(module, name, how, list(args), names, state, items, pairs)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("posix", "system"),
        ("builtins", "eval"),
        ("builtins", "getattr"),
        ("builtins", "object"),
        ("subprocess", "Popen"),
        (HERE, "os.system"),
        (HERE, "os"),
        (HERE, "Popen"),
        (HERE, "OrderedDict"),
        (HERE, "alias_of_another"),
        (HERE, "make"),
        (HERE, "Meta"),
        (HERE, "Message.__init__"),
        (HERE, "Message.__class__"),
        (HERE, "Message.__init__.__globals__"),
        (HERE, "Message.__base__"),
        (HERE, "Colour.RED"),
        (HERE, "__builtins__.eval"),
        (HERE, "__loader__"),
        (HERE, "__getattr__"),
        (HERE, ""),
        (HERE, "."),
        (HERE, "missing"),
        ("tests.objects", "classes.Message"),
        ("tests", "objects.classes.Message"),
        (f"{HERE}.os", "system"),
        (f"{HERE}.Message", "Message"),
        ("", "Message"),
        (".classes", "Message"),
    ],
)
def test_names_that_no_list_reaches(allow, module, name):
    allow(f"{HERE}.*, {HERE}.Message")
    for data in (
        hostile(module, name),
        hostile(module, name, 1, ["true"]),
        packed(module, name, code=form.CLASS),
    ):
        with pytest.raises((PickleRefused, ProtocolError)):
            decode(data)


def pair(left, right):
    return msgspec.msgpack.Ext(form.TUPLE, msgspec.msgpack.encode([left, right]))


#: without its state
HALF = msgspec.msgpack.Ext(form.OBJECT, msgspec.msgpack.encode([HERE, "Half", 0, [], *[None] * 4]))


@pytest.mark.parametrize(
    "data",
    {
        "one argument too many": hostile(HERE, "Point", 0, [1, 2, 3]),
        "unknown argument": hostile(HERE, "Point", 0, [], {"__class__": 1}),
        "raising": hostile(HERE, "Colour", 1, [7]),
        "raising an error of ours": hostile(HERE, "Raising", 1, ["Again"]),
        "raising what has no repr": hostile(HERE, "Raising", 1, [HALF]),
        "without memory": hostile(HERE, "Raising", 1, ["MemoryError"]),
        "hash of a half-made object in a set": packed(HALF, code=form.SET),
        "hash of a half-made object in a dict": packed(HALF, 1, code=form.DICT),
        "half-made object for a way": packed(HERE, "Message", HALF, [], None, None, None, None),
        "names of a call": hostile(HERE, "Message", 1, ["a"], {"body": 1}),
        "no names of a call": hostile(HERE, "Message", 1, ["a"], {}),
        "text for a way": hostile(HERE, "Message", True, ["a"]),
        "new enumeration by names": hostile(HERE, "Colour", 1, ["New"], {"names": ["A"]}),
        "new enumeration by arguments": hostile(HERE, "Colour", 1, ["New", ["A"]]),
        "new enumeration of no members": hostile(HERE, "Bare", 1, ["New", "A B"]),
        "state of a member": hostile(HERE, "Colour", 1, [1], state={"_value_": 2}),
        "member by __new__": hostile(HERE, "Colour", 0, [1]),
        "items for a member": hostile(HERE, "Colour", 1, [1], items=[]),
        "member without a value": hostile(HERE, "Colour", 1),
        "unknown way": hostile(HERE, "Message", 2),
        "arguments of text": packed(HERE, "Message", 1, "ab", None, None, None, None),
        "a name that is no text": hostile(HERE, "Point", 0, [1, 2], {1: 2}),
        "special attribute": hostile(HERE, "Message", 0, state={"__class__": 1}),
        "attribute that is no text": hostile(HERE, "Message", 0, state={1: 1}),
        "slot that is a property": packed(HERE, "Guarded", 0, [], None, [None, {"level": 1}], None, None),
        "state of a number": hostile(HERE, "Message", 0, state=7),
        "no state at all": hostile(HERE, "Slotted", 0, state={"c": 1}),
        "items for no list": hostile(HERE, "Message", 0, items=[1]),
        "items of no list": hostile(HERE, "Message", 0, items="ab"),
        "pairs for no dict": hostile(HERE, "Message", 0, pairs=["a", 1]),
        "an odd number of pairs": hostile(HERE, "Names", 0, pairs=["a"]),
        "a wrong state": hostile(HERE, "Stateful", 0, state=[]),
        "too few parts": packed(HERE, "Message", 0, []),
    }.items(),
    ids=lambda item: item[0],
)
def test_objects_of_other_parts(allow, data):
    allow(f"{HERE}.*")
    with pytest.raises(ProtocolError):
        decode(data[1])
    assert Guarded.calls == [] and Colour.RED.value == 1 and list(Colour) == [Colour.RED, Colour.BLUE]


LONG = "subprocess.Popen\nERROR forged line\n" + "x" * 1_000_000


def test_a_refusal_shows_little_of_what_a_peer_chose(allow):
    """No line break and no megabytes of it, and no advice to allow it."""
    allow(f"{HERE}.*")
    for data in (
        hostile(LONG, LONG),
        packed(LONG, "Popen", code=form.CLASS),
        hostile(HERE, LONG),
        packed(HERE, "Slotted", 0, [], None, pair(None, {LONG: 1}), None, None),
        hostile(HERE, "Raising", 1, [LONG]),
    ):
        with pytest.raises((PickleRefused, ProtocolError)) as caught:
            decode(data)
        text = str(caught.value)
        assert len(text) < 600 and "\nERROR" not in text and "TRANSFER_PICKLE_ALLOW=" not in text


@pytest.mark.parametrize("code", ["raise ValueError('a\\nb')", "raise SystemExit", "import nothing_", "1 +"])
def test_a_module_that_cannot_be_imported(allow, code, tmp_path, monkeypatch):
    name = "a_module_that_fails"
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    allow(f"{name}.*")
    with pytest.raises(PickleRefused, match="cannot be imported"):
        decode(hostile(name, "Class"))


def test_a_state_sets_slots_and_nothing_else(allow):
    """A property's setter is not called, and no attribute of a class is changed."""
    allow(f"{HERE}.*")
    with pytest.raises(ProtocolError, match="slot"):
        decode(packed(HERE, "Guarded", 0, [], None, pair(None, {"level": 1}), None, None))
    assert Guarded.calls == []


def test_deep_objects(allow):
    allow(f"{HERE}.*")
    value = None
    for _ in range(60):
        value = Message("a", value)
    with pytest.raises(ArgumentError, match="levels"):
        encode(value)
    packed_ = b"\xc0"
    for _ in range(3000):
        parts = msgspec.msgpack.encode(
            [HERE, "Frozen", 1, [None, msgspec.Raw(packed_)], None, None, None, None]
        )
        packed_ = msgspec.msgpack.encode(msgspec.msgpack.Ext(form.OBJECT, parts))
    with pytest.raises(ProtocolError, match=r"levels|deep"):
        decode(form.ALONE + packed_)


# --- pickles -----------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_no_pickle_is_read(allow, tmp_path, protocol):
    allow(f"{HERE}.*, posix.*, builtins.*")
    for value in (Bomb(tmp_path / "made"), Message("a"), {"a": 1}):
        with pytest.raises(PickleRefused if protocol > 1 else ProtocolError):
            loads(pickle.dumps(value, protocol))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
        b"\x80\x04r\xff\xff\xff\xff.",
        b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"\x80\x04" + b"]" * 100_000,
        b"\x80\x02\x82\x01.",
        b"\x80\x02P1\n.",
        b"hello",
        memoryview(b"\x93NUMPY"),
    ],
)
def test_attacks_by_pickle(allow, data):
    with pytest.raises((PickleRefused, ProtocolError)):
        loads(data)


def test_pickle_where_it_is_allowed(allow, monkeypatch):
    monkeypatch.setenv("MOONCAKE_ALLOW_PICKLE", "1")
    for value in (ByFunction(), Message("a")):
        data = dumps(value, 2)
        assert data == pickle.dumps(value, 2) and type(loads(data)) is type(value)
    allow(f"{HERE}.Message")
    monkeypatch.delenv("MOONCAKE_ALLOW_PICKLE")
    encoded = dumps(Message("a"))
    allow("")
    monkeypatch.setenv("MOONCAKE_ALLOW_PICKLE", "1")
    assert loads(encoded) == Message("a")  # of a peer that does not pickle
    assert os.environ["TRANSFER_PICKLE_ALLOW"] == ""


SPAWNED = """
import dataclasses
import multiprocessing

from transfer.objects.pyobj import dumps, loads

@dataclasses.dataclass
class Job:
    number: int

def child(pipe):
    job = loads(pipe.recv_bytes())
    pipe.send_bytes(dumps(Job(job.number + 1)))

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=child, args=(there,))
    process.start()
    here.send_bytes(dumps(Job(1)))
    assert here.poll(20)
    print(loads(here.recv_bytes()))
    process.join(20)
"""


def test_classes_of_the_program_in_a_spawned_process(tmp_path):
    """There the program is the module `__mp_main__`."""
    program = tmp_path / "program.py"
    program.write_text(SPAWNED)
    done = subprocess.run(
        [sys.executable, program],
        env={**os.environ, "TRANSFER_PICKLE_ALLOW": "__main__.Job"},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.stdout == "Job(number=2)\n", done.stderr
