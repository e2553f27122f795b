"""Messages of any shape to both ports: they cost their sender something, and others nothing."""

from __future__ import annotations

import json
import struct
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import transfer
from tests.core.raw_frames import eventually
from transfer.peer_faults import PeerFaults
from transfer.spool import Spool
from transfer.spool.client.connection import ReconnectingClient, SpoolConnection
from transfer.spool.format.protocol import (
    Acknowledge,
    CommitJob,
    Declare,
    Ended,
    Explain,
    Fetch,
    ListRuns,
    OpenRun,
    Read,
    to_meta as asked,
)
from transfer.spool.format.run_messages import RowsFrame, TaskBegin, TaskEnd, to_meta
from transfer.tensors.bundle import _INLINE, _first_data, _header
from transfer.tensors.header import EXTENDED_FLAGS
from transfer.transports.errors import Again, Broken

from .task_sender import Task, ask, push, write

KEY = ("run", "job", 0, 0)
#: what a task or reader sends, to be changed in one place
SOUND = [
    *(
        to_meta(message)
        for message in (TaskBegin(*KEY, 0, "[]"), RowsFrame(*KEY, 0, 1, 0), TaskEnd(*KEY, 1, 1, 0))
    ),
    *(
        asked(request)
        for request in (
            Declare(run="run", job="job", delivery="committed", kind="batch"),
            CommitJob(run="run", job="job"),
            OpenRun(run="there", group="group", shard=0, shards=1, token="t"),
            Fetch(epoch=0, seed=None, begin=0, rows=1, stride=1, times=1, need=1),
            Read(run="there", begin=0, end=1),
            Acknowledge(run="there", run_id="x", group="group", shard=0, shards=1, epoch=0, row=0, steps=[]),
            Explain(run="there", epoch=0, seed=None, begin=0, end=1),
        )
    ),
]
TEXT = st.text(st.characters())  # halves of surrogate pairs too
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.just([]) | st.just({}),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def changed(draw):
    """A message of which one field is anything."""
    sound = draw(st.sampled_from(SOUND))
    return {**sound, draw(st.sampled_from(sorted(sound))): draw(VALUES)}


#: metadata as bytes on the wire
METADATA = (VALUES | changed()).map(lambda value: json.dumps(value).encode()) | st.binary(max_size=40)
FUZZ = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)


def send_raw(socket, text):
    """One message with this metadata, whatever it is, and no tensors."""
    index = struct.pack("<I", 0)
    data = _first_data(text, ()) if text else b""
    socket.send_frames([(None, _header(index, _INLINE, len(text)), EXTENDED_FLAGS, data)], transfer.DONTWAIT)


@contextmanager
def running(folder):
    """A spool that counts how often it sleeps, and a run in it."""
    with Spool(folder) as spool:
        slept, wait = [], spool._closing.wait

        def counted(seconds):
            slept.append(seconds)
            return wait(seconds)

        spool._closing.wait = counted
        write(spool.endpoint, "there", [[4]])
        yield spool
        assert not slept
        assert spool.failure is None


def test_the_port_for_rows(tmp_path):
    with running(tmp_path) as spool, transfer.Context() as context:
        good, bad = context.socket(transfer.PUSH), context.socket(transfer.PUSH)
        bad.reconnect_ivl = 1
        for socket in (good, bad):
            socket.connect(spool.rows_endpoint)
            socket.wait_for_peers(1, timeout=10)
        link = ReconnectingClient(spool.endpoint, timeout=10.0)
        link.ask(Declare(run="run", job="good", delivery="committed", kind="batch"))
        numbers = iter(range(1 << 20))

        @FUZZ
        @given(METADATA)
        def check(text):
            try:
                send_raw(bad, text)
            except (Again, Broken):
                bad.wait_for_peers(1, timeout=10)  # its connection was ended, and it connects again
            attempt = next(numbers)
            for message, arrays in Task("run", "good", 0, attempt, 0, [1]).messages:
                good.send_tensors(arrays, meta=to_meta(message))
            link.ask(Ended(run="run", job="good", partition=0, attempt=attempt))

        check()
        link.close()


def test_the_port_for_requests(tmp_path):
    with running(tmp_path) as spool:
        good = SpoolConnection(spool.endpoint, 10.0)
        bad = [SpoolConnection(spool.endpoint, 10.0)]

        @FUZZ
        @given(METADATA)
        def check(text):
            try:
                send_raw(bad[0]._socket, text)
            except (Again, Broken):
                bad[0].close()
                bad[0] = SpoolConnection(spool.endpoint, 10.0)
            good.send(ListRuns(), {})
            _, meta = good.receive(10.0)
            assert "runs" in meta

        check()
        good.close()
        bad[0].close()


@pytest.mark.parametrize(
    "meta", [{"kind": []}, {"kind": {}}, {**SOUND[0], "run": "\ud800"}, {**SOUND[0], "columns": "[[[["}]
)
def test_twenty_messages_of_a_hundred_bytes(tmp_path, meta):
    """Each of them stopped all rows for half a second."""
    with running(tmp_path) as spool, transfer.Context() as context:
        socket = context.socket(transfer.PUSH)
        socket.connect(spool.rows_endpoint)
        socket.wait_for_peers(1, timeout=10)
        for _ in range(20):
            try:
                send_raw(socket, json.dumps({"transfer.run": 1, **meta}).encode())
            except (Again, Broken):
                break
        assert push(spool.endpoint, "run", "job", 0, 0, 0, [1]).rows == 1


def test_a_column_s_name_that_is_no_text_is_refused(tmp_path):
    """Else nobody could be answered what columns the run has."""
    with running(tmp_path) as spool, transfer.Context() as context:
        ask(spool.endpoint, Declare(run="run", job="job", delivery="committed", kind="batch"))
        columns = json.dumps(
            [{"name": "\ud800", "kind": "dense", "dtype": "int64", "shape": [], "nulls": False}]
        )
        socket = context.socket(transfer.PUSH)
        socket.connect(spool.rows_endpoint)
        socket.wait_for_peers(1, timeout=10)
        send_raw(socket, json.dumps(to_meta(TaskBegin(*KEY, 0, columns))).encode())
        assert push(spool.endpoint, "run", "job", 1, 1, 0, [1]).rows == 1
        assert not [key for key in spool.store.entry("run").run.jobs["job"].attempts if key[0] == 0]


def test_a_message_that_raises_while_it_is_received_is_dropped(tmp_path, monkeypatch):
    from transfer.tensors import bundle_arrival as arrival

    def fails(self, frames):
        raise KeyError("nobody thought of it")

    with running(tmp_path) as spool, transfer.Context() as context:
        socket = context.socket(transfer.PUSH)
        socket.connect(spool.rows_endpoint)
        socket.wait_for_peers(1, timeout=10)
        with monkeypatch.context() as context_:
            context_.setattr(arrival.BundleArrival, "finish", fails)
            socket.send_tensors({"x": np.zeros(3)}, meta={"kind": "rows"})
            eventually(lambda: spool.faults.count)
        assert push(spool.endpoint, "run", "job", 0, 0, 0, [1]).rows == 1


@pytest.mark.parametrize("way", ["tensor", "words"])
def test_what_only_a_peer_can_have_wrong_is_one_line_without_a_traceback(tmp_path, caplog, way):
    with running(tmp_path) as spool, transfer.Context() as context:
        bad = context.socket(transfer.PUSH)
        bad.connect(spool.rows_endpoint)
        bad.wait_for_peers(1, timeout=10)
        if way == "tensor":
            bad.send_tensor(np.zeros(3))
        else:
            bad.send_tensors({}, meta={"transfer.run": 1, "kind": "begin", "run": "x"})
        eventually(lambda: spool.faults.count)
    (record,) = (one for one in caplog.records if one.name == "transfer.spool" and one.levelno >= 30)
    assert record.levelname == "WARNING" and record.exc_info is None


def test_faults_are_logged_once_a_peer_and_counted(caplog):
    now = [0.0]
    import logging

    faults = PeerFaults(logging.getLogger("transfer.spool"), lambda: now[0])
    for _ in range(1000):
        error = faults.note("a request", KeyError("x"), b"peer")
    assert "a request failed: KeyError" in str(error)
    assert faults.count == 1000
    assert len(caplog.records) == 1
    faults.note("a request", KeyError("x"), b"another")
    assert len(caplog.records) == 2
    for number in range(1000):
        faults.note("a request", KeyError("x"), number)
    assert len(caplog.records) <= 110
    now[0] = 61.0
    caplog.clear()
    faults.note("a request", KeyError("x"), b"peer")
    assert len(caplog.records) == 1
