"""The catalog's file is read strictly; routes that the broker does not follow are reported."""

from __future__ import annotations

import json
import tomllib

import pytest

from tests.broker.in_process_broker import running
from transfer.broker.core.routes import Route
from transfer.broker.core.topic_patterns import Kind, pattern
from transfer.broker.storage.catalog_file import read_file
from transfer.transports.errors import UsageError

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
tenant = "red"
priority = -3
metadata = { weight = 2, tags = ["a"] }

[[routes]]
id = "off"
pattern = ">"
destination = "worker-1"
enabled = false
"""
ROUTES = [
    Route("orders", "", pattern(Kind.DOTS, "orders.*"), "worker-1"),
    Route("grads", "red", pattern(Kind.PATHS, "models/*/grads"), "trainers", -3),
]
GOOD = {"id": "a", "pattern": "a", "destination": "d"}


def written(tmp_path, content, name="catalog.toml"):
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_routes_that_are_not_followed_are_told(tmp_path, caplog):
    routes = [GOOD, {**GOOD, "id": "all", "type": "fanout"}]
    file = written(tmp_path, {"version": 1, "routes": routes}, "r.json")
    with running(tmp_path / "data", catalog=str(file)) as broker:
        assert [route.id for route in broker.direct.table] == ["a"]
    assert caplog.text.count("does not support") == 1 and "route 'all' has type fanout" in caplog.text


def test_a_file_is_read_as_toml_or_json(tmp_path):
    assert read_file(written(tmp_path, TOML)) == ROUTES
    assert read_file(written(tmp_path, tomllib.loads(TOML), "catalog.json")) == ROUTES
    assert read_file(written(tmp_path, "version = 1")) == []


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
