"""The table of routes against a list of them: precedence, tenants, sessions."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from transfer.broker.core.routes import Route, RouteTable
from transfer.broker.core.topic_patterns import Kind, pattern
from transfer.transports.errors import UsageError

TENANTS = ["", "red"]
TEXTS = ["a.b", "a.c", "a.*", "*.b", "*.*", "a.>", ">", "a"]
PATTERNS = [pattern(Kind.DOTS, text) for text in TEXTS] + [
    pattern(Kind.EXACT, "a.b"),
    pattern(Kind.PREFIX, "a."),
    pattern(Kind.PATHS, "a.b"),
    pattern(Kind.PATHS, "a/*"),
]
TOPICS = ["a", "a.b", "a.c", "b.b", "a.b.c", "a/b", "unused"]


def route(id="r", text="a.b", *, kind=Kind.DOTS, tenant="", to="worker", **more):
    return Route(id, tenant, pattern(kind, text), to, **more)


class Machine(RuleBasedStateMachine):
    """A table beside a list of routes in the order in which they were added."""

    def __init__(self):
        super().__init__()
        self.table = RouteTable()
        self.routes = []
        self.version = 0

    @rule(
        id=st.sampled_from("uvwxyz"),
        tenant=st.sampled_from(TENANTS),
        wanted=st.sampled_from(PATTERNS),
        destination=st.sampled_from(["d", "e"]),
        priority=st.integers(-1, 1),
        session=st.sampled_from(["", "s", "t"]),
    )
    def add(self, id, tenant, wanted, destination, priority, session):
        new = Route(id, tenant, wanted, destination, priority, session)
        self.table.add(new)
        self.put(new)

    def put(self, new):
        ids = [one.id for one in self.routes]
        if new.id in ids:
            self.routes[ids.index(new.id)] = new
        else:
            self.routes.append(new)
        self.version += 1

    @rule(id=st.sampled_from("uvwxyz"))
    def remove(self, id):
        known = [one for one in self.routes if one.id == id]
        assert self.table.remove(id) is (known[0] if known else None)
        self.routes = [one for one in self.routes if one.id != id]
        self.version += len(known)

    @rule(session=st.sampled_from("stu"))
    def remove_session(self, session):
        bound = [one for one in self.routes if one.session == session]
        removed = self.table.remove_session(session)
        assert sorted(one.id for one in removed) == sorted(one.id for one in bound)
        self.routes = [one for one in self.routes if one.session != session]
        self.version += len(bound)

    @invariant()
    def finds_what_the_list_says(self):
        assert list(self.table) == self.routes and len(self.table) == len(self.routes)
        assert self.table.version == self.version
        for tenant, topic in itertools.product([*TENANTS, "blue"], TOPICS):
            direct = self.wanted(tenant, topic)
            assert self.table.direct_all(tenant, topic) == direct

    def wanted(self, tenant, topic):
        found = [
            (one.pattern.rank, -one.priority, number, one)
            for number, one in enumerate(self.routes)
            if one.tenant == tenant and one.pattern.matches(topic)
        ]
        return [one for *_, one in sorted(found, key=lambda some: some[:3])]


TestRouteTable = Machine.TestCase
TestRouteTable.settings = settings(max_examples=35, stateful_step_count=30, deadline=None)


def test_precedence_is_exact_then_one_then_rest_then_priority_then_age():
    table = RouteTable()
    for id, text, priority in [
        ("rest", "orders.>", 9),
        ("one", "orders.*", 8),
        ("exact, low", "orders.new", 1),
        ("exact, high", "orders.new", 2),
        ("exact, high, later", "orders.new", 2),
        ("one, later", "*.new", 8),
    ]:
        table.add(route(id, text, priority=priority))
    order = ["exact, high", "exact, high, later", "exact, low", "one", "one, later", "rest"]
    assert [one.id for one in table.direct_all("", "orders.new")] == order
    for first in order:
        assert table.direct_all("", "orders.new")[0].id == first
        table.remove(first)
    assert table.direct_all("", "orders.new") == []


def test_a_route_of_one_tenant_is_never_found_for_another():
    table = RouteTable()
    table.add(route("red", ">", tenant="red"))
    table.add(route("red, exact", "a", tenant="red"))
    for tenant in ("", "blue", "re", "redd"):
        assert table.direct_all(tenant, "a") == []
    assert table.direct_all("red", "a")[0].id == "red, exact"
    table.add(route("unused", ">"))
    assert table.direct_all("blue", "a") == []
    assert table.direct_all("", "a")[0].id == "unused"


def test_a_route_that_is_replaced_keeps_its_place():
    table = RouteTable()
    table.add(route("first", to="x"))
    table.add(route("second", to="y"))
    table.add(route("first", to="z"))
    assert table.direct_all("", "a.b")[0].destination == "z"
    table.add(route("first", text="c", to="z"))
    assert table.direct_all("", "a.b")[0].destination == "y"
    table.remove("first")
    table.add(route("first", to="x"))
    assert table.direct_all("", "a.b")[0].destination == "y"


def test_a_session_takes_its_routes_along():
    table = RouteTable()
    for number in range(3):
        table.add(route(f"s{number}", session="s"))
    table.add(route("t", session="t"))
    table.add(route("kept"))
    assert [one.id for one in table.remove_session("s")] == ["s0", "s1", "s2"]
    assert table.remove_session("s") == []
    assert [one.id for one in table] == ["t", "kept"]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"id": ""}, "id"),
        ({"id": "x" * 256}, "id"),
        ({"to": ""}, "destination"),
        ({"tenant": "t" * 256}, "tenant"),
        ({"priority": 1 << 31}, "priority"),
        ({"session": "s" * 256}, "session"),
    ],
)
def test_a_wrong_route_is_refused(wrong, why):
    with pytest.raises(UsageError, match=why):
        route(**wrong)


def test_steps_do_not_grow_with_the_number_of_routes():
    table = RouteTable()
    steps = {}
    for number in range(5000):
        table.add(route(f"x{number}", f"a.{number}.b"))
        table.add(route(f"y{number}", f"a.{number}.*.c"))
        table.add(route(f"z{number}", f"b.{number}.>"))
        if number in (9, 4999):
            probes = ("a.7.b", "a.7.x.c", "b.7.x.y", "c")
            steps[number] = [table.steps("", topic) for topic in probes]
    assert steps[9] == steps[4999]
    assert max(steps[9]) <= 5
    assert table.steps("unknown", "a.7.b") == 0
