"""What a bug report shows: `repr`, `Context.dump`, and the log that TRANSFER_LOG asks for."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import transfer
from tests.sockets.helpers import pair_of


def test_it_is_json_and_names_sockets_endpoints_and_peers(context):
    pull, push = pair_of(context, transfer.PULL, transfer.PUSH)
    push.sndhwm, push.routing_id = 5, b"\xff1"
    push.send(b"one")
    assert pull.recv() == b"one"
    found = json.loads(json.dumps(context.dump()))
    sockets = {one["type"]: one for one in found["sockets"]}
    assert found["core"] in ("pure", "native")
    assert not found["terminated"]
    assert sockets["PULL"]["endpoints"] == [
        {"endpoint": pull.last_endpoint, "direction": "bind", "error": None}
    ]
    assert sockets["PUSH"]["endpoints"][0]["direction"] == "connect"
    assert sockets["PUSH"]["options"] == {"sndhwm": 5, "routing_id": "\\xff1"}
    assert [peer["sent"] for peer in sockets["PUSH"]["peers"]] == [1]
    assert sockets["PUSH"]["peers"][0]["socket_type"] == "PULL"


def test_what_could_not_be_reached_is_in_it(context):
    push = context.socket(transfer.PUSH)
    push.connect("tcp://127.0.0.1:1")
    with pytest.raises(transfer.Again):
        push.wait_for_peers(timeout=0.5)
    [socket] = context.dump()["sockets"]
    assert "refused" in socket["endpoints"][0]["error"]
    assert socket["peers"] == []


def test_of_a_terminated_context():
    with transfer.Context() as context:
        pass
    assert context.dump()["terminated"]
    assert context.dump()["sockets"] == []


LOGS = """
import logging, sys
{before}
import transfer
with transfer.Context() as context:
    logging.getLogger("transfer").info("shown at info")
    logging.getLogger("transfer.broker").debug("shown at debug")
"""


def run(level, before=""):
    program = LOGS.format(before=before)
    done = subprocess.run(
        [sys.executable, "-c", program], env={"TRANSFER_LOG": level, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    return done.stderr


@pytest.mark.parametrize(("level", "lines"), [("", 0), ("warning", 0), ("info", 1), ("DEBUG", 2)])
def test_the_variable_shows_the_log(level, lines):
    assert len(run(level).splitlines()) == lines


def test_a_program_with_handlers_of_its_own_keeps_them():
    lines = run("info", "logging.basicConfig(format='mine: %(message)s')").splitlines()
    assert lines == ["mine: shown at info"]
