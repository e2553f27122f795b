"""The catalog: what was put is loaded again, in order; the file is read strictly; changed bits are
told."""

from __future__ import annotations

import json
import random
import tempfile
import tomllib
from pathlib import Path

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.broker.running import running
from transfer.broker.core.routes import Route, RouteSource, RouteTable, RouteType
from transfer.broker.core.topic_patterns import Kind, pattern
from transfer.broker.storage.catalog import Catalog
from transfer.broker.storage.catalog_file import read_file
from transfer.broker.storage.database import Database
from transfer.transports.errors import TransferError, UsageError


def route(id, text="a.*", *, source=RouteSource.DYNAMIC, to="worker", **more):
    return Route(id, "red", pattern(Kind.DOTS, text), RouteType.DIRECT, to, source=source, **more)


def static(id, text="a.*", **more):
    return route(id, text, source=RouteSource.STATIC, **more)


@pytest.fixture
def database(tmp_path):
    found = Database(tmp_path / "broker.db")
    yield found
    found.close()


@pytest.fixture
def catalog(database):
    return Catalog(database)


class Machine(RuleBasedStateMachine):
    """A catalog and a table to which the same changes are made: after a reload both hold the same."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.database = Database(Path(self.folder.name) / "broker.db")
        self.database.query("PRAGMA synchronous = OFF")  # for speed; nobody is killed here
        self.catalog = Catalog(self.database)
        self.table = RouteTable()
        self.version = 0

    def teardown(self):
        self.database.close()
        self.folder.cleanup()

    @rule(
        id=st.sampled_from("uvwxyz"),
        text=st.sampled_from(["a", "a.*", "a.>"]),
        priority=st.integers(-3, 3),
        enabled=st.booleans(),
        metadata=st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=2),
    )
    def put(self, id, text, priority, enabled, metadata):
        new = route(id, text, priority=priority, enabled=enabled, metadata=metadata)
        self.version += self.table.get(id) != new
        assert self.catalog.put(new) == self.version
        self.table.add(new)

    @rule(id=st.sampled_from("uvwxyzabc"))
    def remove(self, id):
        self.version += self.table.get(id) is not None
        assert self.catalog.remove(id) == self.version
        self.table.remove(id)

    @rule(ids=st.lists(st.sampled_from("abcd"), unique=True), text=st.sampled_from(["a", "b"]))
    def replace_static(self, ids, text):
        routes = [static(id, text) for id in ids]
        there = {one.id: one for one in self.table if one.source is RouteSource.STATIC}
        replaced = self.catalog.replace_static(routes)
        assert replaced.put == [one for one in routes if there.get(one.id) != one]
        assert sorted(replaced.removed) == sorted(set(there) - set(ids))
        self.version += bool(replaced.put or replaced.removed)
        assert replaced.version == self.version
        for id in replaced.removed:
            self.table.remove(id)
        for one in replaced.put:
            self.table.add(one)

    @invariant()
    def loads_what_the_table_holds(self):
        assert self.catalog.load() == (self.version, list(self.table))
        assert self.catalog.problems == []


TestCatalog = Machine.TestCase
TestCatalog.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)


def test_all_that_a_route_says_is_there_after_a_restart(tmp_path):
    routes = [
        Route(
            f"{kind.value}/{type.value}", "tenant é", pattern(kind, "a.b"), type, "d", 7, {"x": [1, None]}, on
        )
        for kind in Kind
        for type in RouteType
        for on in (True, False)
    ]
    with_ids = [Route(**{**_fields(one), "id": f"{number} {one.id}"}) for number, one in enumerate(routes)]
    database = Database(tmp_path / "broker.db")
    catalog = Catalog(database)
    for one in with_ids:
        catalog.put(one)
    database.close()
    database = Database(tmp_path / "broker.db")
    assert Catalog(database).load() == (len(with_ids), with_ids)
    database.close()


def _fields(one):
    return {name: getattr(one, name) for name in Route.__dataclass_fields__}


def test_a_route_of_a_session_is_not_kept(catalog):
    with pytest.raises(UsageError, match="session"):
        catalog.put(route("s", source=RouteSource.SESSION, session="somebody"))
    assert catalog.load() == (0, [])


@pytest.mark.parametrize("value", [{1, 2}, float("nan"), b"bytes"])
def test_metadata_are_json(catalog, value):
    with pytest.raises(UsageError, match="JSON"):
        catalog.put(route("r", metadata={"weight": value}))
    assert catalog.load() == (0, [])


def test_static_routes_do_not_take_what_is_not_theirs(catalog):
    catalog.put(route("mine"))
    catalog.replace_static([static("first")])
    for wrong, why in (
        ([static("new"), static("mine")], "dynamic"),
        ([static("new"), static("new")], "two routes"),
        ([static("new"), route("other")], "not static"),
    ):
        with pytest.raises(UsageError, match=why):
            catalog.replace_static(wrong)
    assert [one.id for one in catalog.load()[1]] == ["mine", "first"]
    assert catalog.load()[0] == 2


# --- damage ---------------------------------------------------------------------------------


def test_a_damaged_row_is_told_and_the_rest_is_served(catalog, database):
    for id in ("one", "two", "three"):
        catalog.put(route(id))
    database.query("UPDATE routes SET destination = 'wprker' WHERE id = 'two'")
    version, routes = catalog.load()
    assert (version, [one.id for one in routes]) == (3, ["one", "three"])
    assert catalog.problems == ["route 'two' (number 1) is damaged"]
    assert catalog.drop_damaged() == 4 == catalog.drop_damaged()
    catalog.put(route("two"))
    assert [one.id for one in catalog.load()[1]] == ["one", "three", "two"]
    assert catalog.problems == []


def test_a_damaged_route_may_be_put_again(catalog, database):
    catalog.put(route("one"))
    catalog.put(route("two"))
    database.query("UPDATE routes SET priority = 8 WHERE id = 'one'")
    assert catalog.put(route("one")) == 3
    assert [one.id for one in catalog.load()[1]] == ["one", "two"] and not catalog.problems


def test_a_damaged_version_is_told(catalog, database):
    catalog.put(route("one"))
    database.query("UPDATE catalog SET version = 9")
    assert catalog.load() == (9, [route("one")])
    assert catalog.problems == ["the catalog's version is damaged"]
    assert catalog.put(route("two")) == 10
    assert catalog.load()[0] == 10 and not catalog.problems


def test_no_changed_bit_goes_unseen(tmp_path):
    """A bit of a text that SQLite cannot check, of a page's head, of an index: each is told, or changes
    nothing."""
    path = tmp_path / "broker.db"
    database = Database(path)
    catalog = Catalog(database)
    routes = [route(f"route {number}", f"a.{number}.*", metadata={"weight": number}) for number in range(20)]
    for one in routes:
        catalog.put(one)
    database.close()
    content = path.read_bytes()
    # Behind the first 100 bytes of the file, SQLite's own head, and where something stands at all.
    used = [place for place in range(100, len(content)) if content[place]]
    told = 0
    for place in random.Random(7).sample(used, 250):
        changed = bytearray(content)
        changed[place] ^= 1 << (place % 8)
        path.write_bytes(changed)
        told += _is_told(path, (20, routes))
    assert told > 200


def _is_told(path, expected):
    """Whether it is told that the file is damaged; if not, it holds what is expected."""
    try:
        database = Database(path)
    except TransferError:
        return True
    try:
        catalog = Catalog(database)
        found = catalog.load()
        if catalog.problems or database.check():
            return True
        assert found == expected
        return False
    except TransferError:
        return True
    finally:
        database.close()


# --- the file -------------------------------------------------------------------------------

TOML = """
version = 1

[[routes]]
id = "orders"
pattern = "orders.*"
destination = "worker-1"

[[routes]]
id = "grads"
pattern = "models/*/grads"
destination = "trainers"
kind = "paths"
type = "fanout"
tenant = "red"
priority = -3
enabled = false
metadata = { weight = 2, tags = ["a"] }
"""
ROUTES = [
    Route(
        "orders",
        "",
        pattern(Kind.DOTS, "orders.*"),
        RouteType.DIRECT,
        "worker-1",
        metadata={},
        source=RouteSource.STATIC,
    ),
    Route(
        "grads",
        "red",
        pattern(Kind.PATHS, "models/*/grads"),
        RouteType.FANOUT,
        "trainers",
        -3,
        {"weight": 2, "tags": ["a"]},
        False,
        RouteSource.STATIC,
    ),
]
GOOD = {"id": "a", "pattern": "a", "destination": "d"}


def written(tmp_path, content, name="catalog.toml"):
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_routes_that_are_not_followed_are_told(tmp_path, caplog):
    routes = [GOOD, {**GOOD, "id": "all", "type": "fanout"}]
    file = written(tmp_path, {"version": 1, "routes": routes}, "r.json")
    with running(tmp_path / "data", catalog=str(file)):
        pass
    assert caplog.text.count("does not support") == 1 and "route 'all' has type fanout" in caplog.text


def test_a_file_is_read_as_toml_or_json(tmp_path, catalog):
    assert read_file(written(tmp_path, TOML)) == ROUTES
    assert read_file(written(tmp_path, tomllib.loads(TOML), "catalog.json")) == ROUTES
    assert read_file(written(tmp_path, "version = 1")) == []
    assert catalog.replace_static(ROUTES).put == ROUTES
    assert catalog.load() == (1, ROUTES)
    assert catalog.replace_static(read_file(written(tmp_path, TOML))) == (1, [], [])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ([], r"the file is \[\]"),
        ({}, "version is missing"),
        ({"version": 2}, "version 2"),
        ({"version": True}, "version is True"),
        ({"version": 1, "routs": []}, "routs: no such key"),
        ({"version": 1, "routes": {}}, "routes is"),
        ({"version": 1, "routes": [GOOD, 7]}, r"routes\[1\] is 7"),
        ({"version": 1, "routes": [{"id": "a", "pattern": "a"}]}, r"routes\[0\].destination is missing"),
        ({"version": 1, "routes": [{**GOOD, "dest": "d"}]}, r"routes\[0\].dest: no such key"),
        ({"version": 1, "routes": [{**GOOD, "priority": "1"}]}, r"routes\[0\].priority is '1'"),
        ({"version": 1, "routes": [{**GOOD, "priority": True}]}, r"routes\[0\].priority is True"),
        ({"version": 1, "routes": [{**GOOD, "priority": 1 << 40}]}, r"routes\[0\]: .*priority"),
        ({"version": 1, "routes": [{**GOOD, "enabled": 1}]}, r"routes\[0\].enabled is 1"),
        ({"version": 1, "routes": [{**GOOD, "id": ""}]}, r"routes\[0\]: a route's id"),
        ({"version": 1, "routes": [{**GOOD, "kind": "glob"}]}, r"routes\[0\].kind is 'glob'"),
        ({"version": 1, "routes": [{**GOOD, "type": "all"}]}, r"routes\[0\].type is 'all'"),
        ({"version": 1, "routes": [{**GOOD, "pattern": "a..b"}]}, r"routes\[0\].pattern: .*empty segment"),
        ({"version": 1, "routes": [GOOD, GOOD]}, r"routes\[1\].id: routes\[0\] has the id 'a' too"),
        ('{"version": 1, "version": 1}', "'version' comes twice"),
        ('{"version": 1', "line 1 column"),
        ("[" * 100_000, "catalog.json"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_place(tmp_path, content, why):
    with pytest.raises(UsageError, match=why):
        read_file(written(tmp_path, content, "catalog.json"))


def test_toml_that_cannot_be_read_is_told(tmp_path):
    with pytest.raises(UsageError, match="line 2"):
        read_file(written(tmp_path, "version = 1\nroutes = !"))
    with pytest.raises(UsageError, match="cannot be read"):
        read_file(tmp_path / "missing.toml")
    (tmp_path / "wrong.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="utf-8"):
        read_file(tmp_path / "wrong.toml")
