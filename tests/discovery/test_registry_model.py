"""The books of the registry against a plain model, and its words against what others may send."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from transfer.broker.core.registry import SETTLING, Registry, RegistryLimits
from transfer.broker.core.registry_types import Listed, LookUp, Member, Registering
from transfer.broker.protocols.native import Op, decode, encode
from transfer.broker.protocols.native_registry import (
    decode_listed,
    decode_look_up,
    decode_registering,
    encode_listed,
    encode_look_up,
    encode_registering,
)
from transfer.transports.errors import ProtocolError, UsageError

NAMES = ["trainers", "workers"]
ENDPOINTS = [f"tcp://10.0.0.{number}:5590" for number in range(1, 4)]
PROGRAMS = [b"a", b"b", b"c"]


def wish(endpoint=0, name="trainers", lease=5.0, epoch=1, **metadata):
    return Registering(name, lease, Member(ENDPOINTS[endpoint], epoch, tuple(metadata.items())))


def endpoints(listed):
    return {member.endpoint for member in listed.members}


def test_a_lease_ends_unless_it_is_renewed():
    books = Registry("r", 0.0)
    books.register((b"a", 1), wish(0), 0.0)
    books.register((b"b", 1), wish(1), 0.0)
    assert books.renew((b"a", 1), 4.0) == 5.0
    assert books.expire(5.0) == 1
    assert endpoints(books.look_up((b"w", 1), LookUp("trainers"), 5.0)) == {ENDPOINTS[0]}
    with pytest.raises(UsageError, match="has ended"):
        books.renew((b"b", 1), 5.0)
    assert books.expire(9.0) == 1 and len(books) == 0 and books.names == 0 and not books.programs


def test_the_end_of_a_connection_ends_all_that_it_had():
    books = Registry("r", 0.0)
    books.look_up((b"w", 7), LookUp("trainers", watch=True), 0.0)
    books.register((b"a", 1), wish(0), 0.0)
    books.register((b"a", 2), wish(1), 0.0)
    assert books.leave(b"a") == 2
    [told] = books.news(0.0)
    assert told.to == [(b"w", 7)] and set(told.listed.gone) == set(ENDPOINTS[:2]) and not told.listed.members
    books.leave(b"w")
    assert books.watchers == books.names == 0 and not books.programs


def test_of_two_who_announce_one_endpoint_the_later_has_it():
    books = Registry("r", 0.0)
    books.look_up((b"w", 1), LookUp("trainers", watch=True), 0.0)
    books.register((b"old", 1), wish(epoch=5), 0.0)
    books.news(0.0)
    books.register((b"new", 1), wish(epoch=6), 0.0)
    [told] = books.news(0.0)
    assert told.listed.members == (Member(ENDPOINTS[0], 6),) and not told.listed.gone, "no gap is seen"
    with pytest.raises(UsageError, match="began later"):
        books.register((b"old", 1), wish(epoch=5), 0.0)
    books.leave(b"old")
    assert len(books) == 1, "whoever lost the place takes nothing with him"
    books.register((b"again", 1), wish(epoch=6), 0.0)  # the same program by a new connection
    assert books.news(0.0) == [], "and nobody need know"
    books.leave(b"new")
    assert len(books) == 1


def test_a_revision_that_is_known_is_not_told_again():
    books = Registry("r", 0.0)
    first = books.look_up((b"w", 1), LookUp("trainers", True), 0.0)
    books.register((b"a", 1), wish(), 0.0)
    second = books.look_up((b"w", 1), LookUp("trainers", True, first.revision), 0.0)
    assert not second.same and endpoints(second) == {ENDPOINTS[0]}
    third = books.look_up((b"w", 1), LookUp("trainers", True, second.revision), 0.0)
    assert third.same and not third.members


def test_a_start_settles():
    books = Registry("r", 100.0)
    assert not books.look_up((b"w", 1), LookUp("trainers"), 100.0).settled
    assert books.look_up((b"w", 1), LookUp("trainers"), 100.0 + SETTLING).settled


@pytest.mark.parametrize(
    ("limits", "error"),
    [(RegistryLimits(names=1), "names"), (RegistryLimits(members=1), "members"),
     (RegistryLimits(all=1), "registrations"),
     (RegistryLimits(each=1), "one program")],
)  # fmt: skip
def test_there_is_a_limit_to_everything(limits, error):
    books = Registry("r", 0.0, limits)
    books.register((b"a", 1), wish(0), 0.0)
    other = {"names": wish(1, name="workers")}.get(error, wish(1))
    with pytest.raises(UsageError, match=error):
        books.register((b"a", 2), other, 0.0)
    books.register((b"a", 1), wish(0), 0.0)  # what is there may be said again
    assert len(books) == 1


def test_there_is_a_limit_to_watchers():
    books = Registry("r", 0.0, RegistryLimits(watchers=1))
    books.look_up((b"w", 1), LookUp("a", True), 0.0)
    books.look_up((b"w", 1), LookUp("b", True), 0.0)
    with pytest.raises(UsageError, match="watchers"):
        books.look_up((b"w", 2), LookUp("a", True), 0.0)


class Books(RuleBasedStateMachine):
    """Registrations as a plain dict, and a watcher of each name who knows what it was told."""

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.books = Registry("r", 0.0)
        self.held = {}  # key -> (name, member, lease, until)
        self.known = {}
        for number, name in enumerate(NAMES):
            self.books.look_up((b"watcher", number), LookUp(name, True), 0.0)
            self.known[name] = {}

    def holder(self, name, endpoint):
        return next((k for k, (n, m, _, _) in self.held.items() if (n, m.endpoint) == (name, endpoint)), None)

    @rule(
        program=st.sampled_from(PROGRAMS),
        number=st.integers(1, 2),
        name=st.sampled_from(NAMES),
        endpoint=st.sampled_from(ENDPOINTS),
        epoch=st.integers(1, 3),
        lease=st.sampled_from([1.0, 3.0]),
    )
    def registers(self, program, number, name, endpoint, epoch, lease):
        key, member = (program, number), Member(endpoint, epoch)
        holder = self.holder(name, endpoint)
        refused = holder not in (None, key) and self.held[holder][1].epoch > epoch
        try:
            self.books.register(key, Registering(name, lease, member), self.now)
        except UsageError:
            assert refused
            return
        assert not refused
        self.held.pop(holder, None)
        self.held[key] = (name, member, lease, self.now + lease)

    @rule(program=st.sampled_from(PROGRAMS), number=st.integers(1, 2))
    def renews(self, program, number):
        key = (program, number)
        try:
            self.books.renew(key, self.now)
        except UsageError:
            assert key not in self.held
            return
        name, member, lease, _ = self.held[key]
        self.held[key] = (name, member, lease, self.now + lease)

    @rule(program=st.sampled_from(PROGRAMS), number=st.integers(1, 2))
    def unregisters(self, program, number):
        assert self.books.unregister((program, number)) == (
            self.held.pop((program, number), None) is not None
        )

    @rule(program=st.sampled_from(PROGRAMS))
    def leaves(self, program):
        keys = [key for key in self.held if key[0] == program]
        assert self.books.leave(program) == len(keys)
        for key in keys:
            del self.held[key]

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 3.0]))
    def time_passes(self, seconds):
        self.now += seconds
        over = [key for key, entry in self.held.items() if entry[3] <= self.now]
        assert self.books.expire(self.now) == len(over)
        for key in over:
            del self.held[key]

    @rule()
    def is_told(self):
        for told in self.books.news(self.now):
            for _, number in told.to:
                known = self.known[NAMES[number]]
                known.update((member.endpoint, member) for member in told.listed.members)
                for endpoint in told.listed.gone:
                    known.pop(endpoint, None)
        for name in NAMES:
            assert self.known[name] == self.there(name)

    def there(self, name):
        return {member.endpoint: member for n, member, _, _ in self.held.values() if n == name}

    @invariant()
    def agrees(self):
        assert len(self.books) == len(self.held)
        for name in NAMES:
            listed = self.books.look_up((b"asker", 1), LookUp(name), self.now)
            assert {member.endpoint: member for member in listed.members} == self.there(name)
        assert self.books.programs == {key[0] for key in self.held} | {b"watcher"}


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


# --- words ----------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.sampled_from(NAMES), st.floats(1, 3600), st.sampled_from(ENDPOINTS), st.integers(0, 2**63 - 1),
       st.dictionaries(TEXT, TEXT, max_size=3))  # fmt: skip
def test_words_come_back(name, lease, endpoint, epoch, metadata):
    member = Member(endpoint, epoch, tuple(sorted(metadata.items())))
    said = Registering(name, lease, member)
    assert decode_registering(decode(encode_registering(3, said))) == said
    asked = LookUp(name, True, 17)
    assert decode_look_up(decode(encode_look_up(3, asked))) == asked
    listed = Listed("r", True, 9, (member,), (endpoint,))
    head, part = encode_listed(Op.CHANGED, 3, listed)
    assert decode_listed(decode(head), part) == listed


GOOD = {"name": "n", "lease": 5, "endpoint": "tcp://h:1", "epoch": 1, "metadata": {}}


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""}, {"name": "a/b"}, {"name": "-a"}, {"name": "a" * 129}, {"name": 5}, {"name": "a\n"},
        {"lease": 0}, {"lease": 1e9}, {"lease": "5"}, {"lease": True}, {"lease": None},
        {"endpoint": "ipc:///x"}, {"endpoint": "tcp://*:1"}, {"endpoint": "tcp://h:0"}, {"endpoint": "h:1"},
        {"endpoint": "tcp://0.0.0.0:1"}, {"endpoint": "tcp://h:1?policy=require"}, {"endpoint": None},
        {"endpoint": "dns://h:1"}, {"endpoint": "tcp://" + "a" * 300 + ":1"}, {"endpoint": "tcp://[::]:1"},
        {"epoch": -1}, {"epoch": 1.5}, {"epoch": 2**63}, {"epoch": None},
        {"metadata": []}, {"metadata": {"a": 1}}, {"metadata": {"a": "b" * 1100}},
        {"metadata": {str(n): "" for n in range(17)}},
    ],
    ids=lambda change: json.dumps(change)[:40],
)  # fmt: skip
def test_what_cannot_be_announced_is_refused(change):
    body = json.dumps({**GOOD, **change}).encode()
    with pytest.raises(ProtocolError):
        decode_registering(decode(encode(Op.REGISTER, 1, body)))
    decode_registering(decode(encode(Op.REGISTER, 1, json.dumps(GOOD).encode())))


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)),
       st.sampled_from(["members", "gone", "both"]))  # fmt: skip
def test_any_listing_is_understood_or_refused(value, where):
    part = json.dumps({"members": value, "gone": value} if where == "both" else {where: value, "gone": []})
    head = encode(Op.LISTED, 1, b'{"registry":"r","settled":true,"revision":1,"same":false}')
    try:
        listed = decode_listed(decode(head), part.encode())
    except ProtocolError as error:
        listed = error
    assert isinstance(listed, Listed | ProtocolError)
