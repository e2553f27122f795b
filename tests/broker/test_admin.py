"""The admin API over real HTTP: who may ask, what is answered, what is refused."""

from __future__ import annotations

import base64
import http.client
import json

import pytest

from transfer.broker.http import admin
from transfer.broker.http.health import HealthProblem
from transfer.broker.http.request_params import RequestParams
from transfer.broker.storage.audit_chain import check_export
from transfer.broker.storage.dead_letter import Reference
from transfer.transports.errors import LogFull, UsageError

from .admin_server import Client, serving
from .test_operations import OperatorStores

TOKEN = "secrét"
WHO = {"actor": "ops@example.com", "reason": "customer-approved"}
REPLAY = {"target_consumer": "worker-1", "target_topic": "orders.created", "confirm": "REPLAY", **WHO}
PURGE = {"confirm": "PURGE", **WHO}


@pytest.fixture
def stores(tmp_path):
    one = OperatorStores(tmp_path)
    yield one
    one.close()


@pytest.fixture
def client(stores):
    with serving(stores.operator) as port:
        yield Client(port)


def test_letters_are_listed_in_pages(stores, client):
    stores.add(*range(3))
    stores.add(9, consumer="worker-2", tenant="acme")
    status, told = client.get("dlq/list", consumer="worker-1", limit=2)
    assert status == 200
    assert [one["message_id"] for one in told["letters"]] == ["msg-0", "msg-1"]
    assert told["letters"][0] | {"attempts": 0, "state": "dead", "damaged": False} == told["letters"][0]
    assert "payload" not in told["letters"][0] and told["letters"][0]["payload_bytes"] == 6
    _, told = client.get("dlq/list", consumer="worker-1", limit=2, after=told["next"])
    assert [one["message_id"] for one in told["letters"]] == ["msg-2"] and told["next"] is None
    for query in ({"tenant": "acme"}, {"id": "msg-9"}):
        assert [one["message_id"] for one in client.get("dlq/list", **query)[1]["letters"]] == ["msg-9"]
    assert client.get("dlq/list", state="in_doubt")[1] == {"letters": [], "next": None}


def test_a_letter_is_shown_with_its_payload(stores, client):
    stores.add(0)
    stores.add(1, payload=b"\xff\x00")
    stores.add(2, payload=Reference("rows", 7))
    stores.add(3, payload=b"x" * 70_000, headers={"priority": 5})

    def shown(number):
        status, told = client.get("dlq/inspect", id=f"msg-{number}")
        assert status == 200
        return told["letters"][0]

    assert shown(0)["payload"] == "body 0"
    assert base64.b64decode(shown(1)["payload_base64"]) == b"\xff\x00"
    assert shown(2)["log"] == {"topic": "rows", "offset": 7}
    assert len(shown(3)["payload"]) == 65536 and shown(3)["payload_cut"]
    assert shown(3)["payload_bytes"] == 70_000 and shown(3)["headers"] == {"priority": 5}
    assert client.get("dlq/inspect", id="msg-9")[0] == 404
    assert client.get("dlq/inspect", id="msg-9")[1]["error"] == "not_found"


def test_replay_purge_and_quarantine(stores, client):
    stores.add(0, 1)
    stores.refuses["msg-1"] = LogFull("no room")
    status, told = client.post("dlq/replay", ids=["msg-0", "msg-1", "msg-9"], **REPLAY)
    assert (status, told["requested"], told["replayed"], told["audited"]) == (200, 3, 1, True)
    assert [(one["id"], one["error"]) for one in told["failures"]] == [
        ("msg-9", "not_found"),
        ("delivery-1", "publish"),
    ]
    status, told = client.post("dlq/purge", ids=["msg-1"], **PURGE)
    assert (status, told["requested"], told["purged"], told["failures"]) == (200, 1, 1, [])
    quarantine = {"id": "msg-5", "consumer": "worker-1", "topic": "orders.created", **WHO}
    status, told = client.post("dlq/dead-letter", payload="raw-body", **quarantine)
    assert (status, told["letter"]["message_id"]) == (201, "msg-5")
    assert client.post("dlq/dead-letter", payload="raw-body", **quarantine)[0] == 409
    encoded = base64.b64encode(b"\xff").decode()
    quarantine |= {"id": "msg-6", "headers": {"codec": "raw"}, "tenant": "acme"}
    assert client.post("dlq/dead-letter", payload_base64=encoded, **quarantine)[0] == 201
    assert stores.operator.inspect("msg-6", "acme")[0].payload == b"\xff"
    assert [one[0] for one in stores.audit_events()] == ["replay", "purge", "dead_letter", "dead_letter"]


def test_events_are_found(stores, client):
    stores.add(*range(3))
    for number in range(3):
        client.post("dlq/purge", ids=[f"msg-{number}"], **PURGE)
    status, told = client.get("audit/events", id="msg-1", actor="ops@example.com")
    (event,) = told["events"]
    assert status == 200 and told["problems"] == [] and told["next"] is None
    assert event["message_ids"] == ["msg-1"] and event["resulting_state"][0]["state"] == "purged"
    assert list(event)[-2:] == ["prev_hash", "hash"]
    day = {"start": "2026-03-21T00:00:00Z", "end": "2026-03-22"}
    assert len(client.get("audit/events", **day)[1]["events"]) == 3
    assert client.get("audit/events", start="2026-03-22")[1]["events"] == []
    _, told = client.get("audit/events", limit=2)
    assert [one["sequence"] for one in told["events"]] == [1, 2] and told["next"] == 2
    assert client.get("audit/events", operation="purge", after=2)[1]["events"][0]["sequence"] == 3
    assert client.get("audit/verify")[1] | {"whole": True, "events": 3} == client.get("audit/verify")[1]


def test_an_export_can_be_checked(stores, client, monkeypatch):
    monkeypatch.setattr(admin, "_LINES", 3)
    stores.add(*range(10))
    for number in range(10):
        stores.purge(f"msg-{number}")
    status, headers, body = client.ask("GET", "/api/admin/audit/export")
    assert (status, headers["Content-Type"]) == (200, "application/x-ndjson")
    assert check_export(body.splitlines(keepends=True)) == (10, [])


def test_damage_is_told_and_the_rest_is_served(tmp_path, stores):
    stores.add(0, 1)
    stores.purge("msg-0")
    stores.close()
    path = tmp_path / "audit" / "audit.log"
    path.write_bytes(path.read_bytes().replace(b'"purge"', b'"forge"'))
    again = OperatorStores(tmp_path)
    with serving(again.operator) as port:
        client = Client(port)
        assert client.post("dlq/purge", ids=["msg-1"], **PURGE)[0] == 200
        told = client.get("audit/events")[1]
        assert [one["operation"] for one in told["events"]] == ["audit.damaged", "purge"]
        assert (told["problems"][0]["file"], told["problems"][0]["line"]) == ("audit.log", 1)
        verdict = client.get("audit/verify")[1]
        assert not verdict["whole"] and verdict["problems"][0]["line"] == 1
    again.close()


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("dlq/list", {"limit": "many"}),
        ("dlq/list", {"limit": 0}),
        ("dlq/list", {"limit": 100_000}),
        ("dlq/list", {"after": -1}),
        ("dlq/list", {"customer": "worker-1"}),
        ("dlq/list", {"state": "deaf"}),
        ("dlq/inspect", {}),
        ("audit/events", {"start": "yesterday"}),
        ("audit/export", {"end": "2026-13-01"}),
    ],
)
def test_wrong_queries_are_refused(client, path, query):
    status, told = client.get(path, **query)
    assert (status, told["error"]) == (400, "bad_request") and told["message"]


@pytest.mark.parametrize(
    "members",
    [
        {"ids": "msg-0", **PURGE},
        {"ids": [], **PURGE},
        {"ids": [7], **PURGE},
        {"ids": ["\ud800"], **PURGE},
        PURGE,
        {"ids": ["msg-0"], **PURGE, "confirm": "purge"},
        {"ids": ["msg-0"], **PURGE, "confirm": True},
        {"ids": ["msg-0"], **WHO},
        {"ids": ["msg-0"], **PURGE, "reason": ""},
        {"ids": ["msg-0"], **PURGE, "target": "acme"},
    ],
)
def test_wrong_bodies_are_refused_and_nothing_is_done(stores, client, members):
    stores.add(0)
    status, told = client.post("dlq/purge", **members)
    assert (status, told["error"]) == (400, "bad_request")
    assert stores.letters.count() == 1 and stores.audit_events() == []


@pytest.mark.parametrize(
    "body",
    ["", "{", "[]", '{"a": NaN}', '{"a": 1e999}', b"\xff", "[" * 100_000, '{"a":' * 501 + "1" + "}" * 501],
)
def test_what_is_no_json_is_refused(client, body):
    status, _, told = client.ask("POST", "/api/admin/dlq/purge", body, {"Content-Type": "application/json"})
    assert (status, json.loads(told)["error"]) == (400, "bad_request")


def test_other_requests_are_refused_as_json(stores, monkeypatch):
    monkeypatch.setattr("transfer.broker.http.app.MAX_BODY", 1000)
    with serving(stores.operator) as port:
        client = Client(port)
        as_json = {"Content-Type": "application/json"}
        for wanted, code, request in (
            (404, "not_found", ("GET", "/api/admin/dlq/lists")),
            (404, "not_found", ("GET", "/")),
            (405, "method_not_allowed", ("GET", "/api/admin/dlq/purge")),
            (415, "no_json", ("POST", "/api/admin/dlq/purge", "ids=msg-0")),
            (413, "too_large", ("POST", "/api/admin/dlq/purge", " " * 1001, as_json)),
        ):
            status, _, body = client.ask(*request)
            assert (status, json.loads(body)["error"]) == (wanted, code)


def test_a_store_that_is_closed_is_unavailable(stores, client):
    stores.add(0)
    stores.database.close()
    assert client.get("dlq/list")[0] == 503
    assert client.post("dlq/purge", ids=["msg-0"], **PURGE)[1]["error"] == "unavailable"


def test_the_token_is_asked_for(stores):
    with serving(stores.operator, token=TOKEN) as port:
        for path in ("dlq/list", "audit/events", "audit/export", "audit/verify", "dlq/inspect", "nothing"):
            assert Client(port).get(path)[0] == 401
            status, told = Client(port, "guess").get(path)
            assert (status, told["error"]) == (403, "token_wrong")
        for path in ("dlq/replay", "dlq/dead-letter", "dlq/purge"):
            assert Client(port).post(path)[1]["error"] == "token_missing"
            assert Client(port, "").post(path)[0] == 403
        assert Client(port, TOKEN.encode()).get("dlq/list")[0] == 200


def test_a_wrong_token_ends_the_connection(stores):
    """Who guesses has one try on each."""
    with serving(stores.operator, token=TOKEN) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        asked = [("GET", "/api/admin/dlq/list"), ("GET", "/livez"), ("PUT", "/livez"), ("GET", "/nowhere")]
        for method, path in asked:
            connection.request(method, path, headers={"X-Admin-Token": "guess"})
            answer = connection.getresponse()
            assert answer.getheader("Connection") == "close", (method, path)
            answer.read()
        connection.close()


def test_without_a_token_only_this_machine_may_ask(stores, client):
    for host, wanted in (
        ("evil.example.com", 403),
        (f"localhost:{client.port}", 200),
        ("[::1]", 200),
        ("127.0.\xf4.1", 403),
        ("127.0.0.1:x", 403),
    ):
        status, _, _ = client.ask("GET", "/api/admin/dlq/list", headers={"Host": host})
        assert status == wanted


def test_health_needs_no_token(stores):
    problems = []
    with serving(stores.operator, token=TOKEN, live=tuple, ready=lambda: problems) as port:
        client = Client(port)
        assert client.ask("GET", "/livez")[0] == 200
        assert json.loads(client.ask("GET", "/readyz")[2]) == {"status": "ok"}
        problems.append(HealthProblem("the log is full", "group 'g' holds it"))
        for named, wanted in ((client, "the log is full"), (Client(port, TOKEN.encode()), str(problems[0]))):
            status, _, body = named.ask("GET", "/readyz")
            assert (status, json.loads(body)) == (503, {"status": "failing", "problems": [wanted]})


@pytest.mark.parametrize("value", ["true", 7, True, [], -1, "-1", "1e3", "9" * 20, {}])
def test_a_member_is_what_it_is_asked_for(value):
    takes = {
        str: lambda asked: asked.text("member"),
        list: lambda asked: asked.texts("member"),
        bool: lambda asked: asked.flag("member"),
        dict: lambda asked: asked.members("member"),
    }
    for kind, take in takes.items():
        asked = RequestParams({"member": value})
        if type(value) is kind:
            assert take(asked) == value
            asked.end()
        else:
            with pytest.raises(UsageError, match="member"):
                take(asked)
    if value != 7:
        with pytest.raises(UsageError, match="whole number"):
            RequestParams({"member": value}).number("member", 0)
    assert RequestParams({"member": "12"}).number("member", 0) == 12
    with pytest.raises(UsageError, match="unknown: member"):
        RequestParams({"member": value}).end()
