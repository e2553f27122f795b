"""Traps that are habits of a library more than faults of a network: pickle, fork, cancelled waits."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import re
from pathlib import Path

import numpy
import pytest

import transfer
import transfer.asyncio
from tests.core.raw_frames import EXTENDED, TENSOR, Raw
from tests.faults.raw_peer import is_closed, next_event, raw_peer, send_frames
from tests.faults.test_bad_peer import extended
from tests.sockets.helpers import TCP, pair_of
from transfer import PULL, PUSH
from transfer.transports.errors import Again, ProtocolError

ROOT = Path(__file__).parents[2]


class Bomb:
    """Unpickled, it would make a file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_nothing_that_arrives_is_unpickled(context, tmp_path):
    """Whatever a receiver does with the bytes of a pickle, they stay bytes."""
    path = tmp_path / "made"
    poison = pickle.dumps(Bomb(path))
    pull, push = pair_of(context, PULL, PUSH, rcvtimeo=5000)
    for receive in (pull.recv, pull.recv_multipart, lambda: pull.recv(copy=False)):
        push.send(poison)
        receive()
    for receive in (pull.recv_json, pull.recv_string):
        push.send(poison)
        with pytest.raises(ValueError):
            receive()
    push.send(poison)
    with pytest.raises(transfer.TensorMismatch):
        pull.recv_tensor()
    pull.recv()
    monitor = pull.get_monitor()
    for text in (b'"|O"', b'"O8"', b'[["a", "|O"]]', poison):
        with raw_peer(pull.last_endpoint) as bare:
            meta = extended(1, 1, dtype=0, itemsize=len(poison), text=text)
            send_frames(bare, Raw(poison, TENSOR | EXTENDED, meta=meta))
            pull.receive_timeout = 50
            while True:
                with pytest.raises(Again):
                    pull.recv_tensor()
                if "protocol:dtype" in pull._links.state.counts:
                    break
            assert next_event(monitor, "protocol_failed").reason == "dtype"
            assert is_closed(bare)
    assert not path.exists()
    os.mkdir(path)  # as the poison would have


def test_pickle_has_one_home():
    """Only what refuses it unless it was allowed names it."""
    users = {
        str(path.relative_to(ROOT))
        for package in ("transfer", "transports", "patterns")
        for path in (ROOT / package).rglob("*.py")
        if re.search(r"^\s*(import|from) (pickle|cloudpickle|marshal|shelve|dill)\b", path.read_text(), re.M)
        and not re.search(r"^from pickle import PickleBuffer$", path.read_text(), re.M)  # a view of memory
    }
    assert users == {"transfer/objects/pyobj.py"}


def _child(endpoint, core):
    import importlib

    with transfer.Context(core=importlib.import_module(core)) as mine:
        push = mine.socket(PUSH)
        push.connect(endpoint)
        push.send(b"from the child")
        os._exit(push.close(10_000))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_started_cleanly_have_sockets_of_their_own(context, method):
    pull = context.socket(PULL, rcvtimeo=30_000)
    pull.bind(TCP)
    maker = multiprocessing.get_context(method)
    child = maker.Process(target=_child, args=(pull.last_endpoint, context.core.__name__))
    child.start()
    assert pull.recv() == b"from the child"
    child.join(20)
    assert child.exitcode == 0
    child.close()


def test_a_cancelled_send_is_an_error_and_sends_nothing(core):
    """A wait for room that was cancelled raises, and the message is not sent later."""

    async def main():
        context = transfer.asyncio.Context(core=core)
        try:
            push = context.socket(PUSH)
            push.bind(TCP)
            waiting = asyncio.ensure_future(push.send(b"cancelled"))
            await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            pull = context.socket(PULL)
            pull.connect(push.last_endpoint)
            await push.send(b"sent")
            assert await pull.recv() == b"sent"
        finally:
            context.destroy(0)

    asyncio.run(main())


def test_a_compressed_tensor_that_a_poll_has_seen(context):
    pull, push = pair_of(context, PULL, PUSH, compression="lz4", rcvtimeo=2000)
    push.send_tensor(numpy.zeros(10_000))
    assert pull.poll(10_000)
    assert pull.recv_tensor().shape == (10_000,)


def test_a_bad_message_that_a_poll_has_seen(context):
    """poll() reads ahead; the header of the tensor that it read is refused all the same."""
    pull = context.socket(PULL, rcvtimeo=10_000)
    pull.bind(TCP)
    push = context.socket(PUSH)
    push.connect(pull.last_endpoint)
    push.wait_for_peers(1, 10)
    monitor = pull.get_monitor()
    with raw_peer(pull.last_endpoint) as bare:
        send_frames(bare, Raw(bytes(12), TENSOR, meta=b"\x63" + bytes(47)))
        assert pull.poll(10_000)
        pull.receive_timeout = 50
        with pytest.raises(Again):
            pull.recv_tensor()
        event = next_event(monitor, "protocol_failed")
        assert event.reason == "dtype"
        assert isinstance(event.error, ProtocolError)
        assert is_closed(bare)
    push.send(b"good")
    pull.receive_timeout = 10_000
    assert pull.recv() == b"good"
