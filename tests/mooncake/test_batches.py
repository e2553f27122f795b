"""A callback that gets many messages at once."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from tests.sockets.helpers import eventually
from transfer.transports.errors import ArgumentError, NotSupported

from .conftest import PATIENCE, Inbox, until_received

pytestmark = pytest.mark.timeout(60)


class Batches(Inbox):
    """Keeps the lists that it is called with."""

    def messages(self, count):
        """The next messages, of as many lists as are needed; no list is empty."""
        found = []
        while len(found) < count:
            batch = self.get()
            assert batch
            found += batch
        return found


def test_all_messages_come_once_and_in_order(zi, link):
    push, pull = link("PUSH", "PULL")
    got = Batches()
    zi.set_batch_receive_callback(pull, got)
    for number in range(20_000):
        assert zi.push(push, b"%d" % number) == 0
    messages = got.messages(20_000)
    assert [message["data"] for message in messages] == [b"%d" % number for number in range(20_000)]
    assert {message["topic"] for message in messages} == {""}
    assert len({message["source"] for message in messages}) == 1
    assert messages[0]["source"].startswith("127.0.0.1:")
    assert got.empty()


def test_what_waits_comes_together_up_to_the_number_asked_for(zi, link):
    push, pull = link("PUSH", "PULL")
    sizes, begun, go_on = [], threading.Event(), threading.Event()

    def late(batch):
        sizes.append(len(batch))
        begun.set()
        assert go_on.wait(PATIENCE)

    zi.set_batch_receive_callback(pull, late, 7)
    zi.push(push, b"first")
    assert begun.wait(PATIENCE)
    for _ in range(20):
        zi.push(push, b"next")
    got = Batches()
    zi.set_batch_receive_callback(pull, got, 7)
    go_on.set()
    later = [len(got.get())]
    while sum(sizes) + sum(later) < 21:
        later.append(len(got.get()))
    assert max(sizes + later) == 7
    assert sum(sizes) + sum(later) == 21


def test_messages_of_all_kinds_keep_their_order(zi, link):
    push, pull = link("PUSH", "PULL")
    got = Batches()
    zi.set_batch_receive_callback(pull, got)
    tensor = np.arange(6.0).reshape(2, 3)
    large = bytes(200_000)
    for _ in range(20):
        zi.push(push, b"plain")
        zi.push(push, tensor)
        zi.send_multipart(push, [b"a", b"b"])
        zi.push(push, large)
        zi.push(push, {"weights": tensor})
    messages = got.messages(100)
    for plain, one, parts, big, several in zip(*[iter(messages)] * 5, strict=True):
        assert (plain["data"], parts["data"], big["data"]) == (b"plain", b"ab", large)
        assert np.array_equal(one["tensor"], tensor)
        assert np.array_equal(several["tensor"]["weights"], tensor)


def test_topics(zi, link):
    sub, pub = link("SUB", "PUB")
    got, heard = Batches(), Inbox()
    zi.subscribe(sub, "a")
    zi.set_batch_receive_callback(sub, lambda batch: [heard(message) for message in batch])
    until_received(lambda mark: zi.publish(pub, "a", mark), heard, b"?")
    zi.set_batch_receive_callback(sub, got)
    for number in range(200):
        zi.publish(pub, f"a/{number}", b"%d" % number)
        zi.publish(pub, "b", b"not wanted")
    messages = got.messages(200)
    assert [(m["topic"], m["data"]) for m in messages] == [(f"a/{n}", b"%d" % n) for n in range(200)]


def test_it_goes_before_other_callbacks_and_gives_way_to_them(zi, link):
    push, pull = link("PUSH", "PULL")
    one, many = Inbox(), Batches()
    zi.set_receive_callback(pull, one)
    zi.set_batch_receive_callback(pull, many)
    zi.push(push, b"many")
    assert [message["data"] for message in many.messages(1)] == [b"many"]
    zi.set_batch_receive_callback(pull, None)
    zi.push(push, b"one")
    assert one.get()["data"] == b"one"
    assert many.empty()


def test_one_that_raises_is_counted_and_the_next_comes(zi):
    push, pull = zi.socket("PUSH"), zi.socket("PULL")
    pull.bind("127.0.0.1:0")
    push.connect(pull.get_bound_endpoint())
    got = Batches()

    def fail(batch):
        got(batch)
        raise ValueError("as it does")

    pull.set_batch_receive_callback(fail)
    push.push(b"1")
    got.messages(1)
    push.push(b"2")
    got.messages(1)
    pull.close()
    assert pull.callback_errors == 2


def test_what_polling_could_not_read_comes_first(zi, link):
    push, pull = link("PUSH", "PULL")
    zi.set_polling_mode(pull, True)
    zi.push(push, b"no JSON")
    with pytest.raises(ValueError):
        zi.recv_json(pull)
    zi.push(push, b"later")
    got = Batches()
    zi.set_batch_receive_callback(pull, got)
    assert got.empty()  # polling is still on
    zi.set_polling_mode(pull, False)
    assert [message["data"] for message in got.messages(2)] == [b"no JSON", b"later"]


def test_what_nobody_wants_by_then_is_there_for_the_next(zi, link):
    """The callback is taken back while its thread has messages in hand."""
    push, pull = link("PUSH", "PULL")
    begun, go_on, got = threading.Event(), threading.Event(), Batches()

    def late(batch):
        got(batch)
        begun.set()
        assert go_on.wait(PATIENCE)

    zi.set_batch_receive_callback(pull, late, 10)
    source = zi._of(pull)
    next_messages = source.next_messages

    def taken_back(timeout, most):
        messages = next_messages(timeout, most)
        source._dispatcher.set_batch(None, most)
        return messages

    zi.push(push, b"0")
    assert begun.wait(PATIENCE)
    for number in range(1, 30):
        zi.push(push, b"%d" % number)
    source.next_messages = taken_back
    go_on.set()
    while not source._unread:
        threading.Event().wait(0.01)
    zi.set_batch_receive_callback(pull, None)
    assert [message["data"] for message in got.get()] == [b"0"]
    assert got.empty()
    zi.set_polling_mode(pull, True)
    assert [zi.recv(pull)["data"] for _ in range(29)] == [b"%d" % number for number in range(1, 30)]


def test_a_tensor_that_cannot_be_made_here_takes_none_with_it(zi, link, monkeypatch, caplog):
    push, pull = link("PUSH", "PULL")
    got = Batches()
    channel = zi._of(pull)._channel
    understand = channel.understand

    def fail(stream, frames):
        if frames[0].flags:
            raise NotSupported("no such type here")
        return understand(stream, frames)

    monkeypatch.setattr(channel, "understand", fail)
    for number in range(5):
        zi.push(push, b"%d" % number)
    zi.push(push, np.arange(3))
    zi.push(push, b"5")
    zi.set_batch_receive_callback(pull, got)
    assert [message["data"] for message in got.messages(6)] == [b"%d" % number for number in range(6)]
    assert "no such type here" in caplog.text


def test_a_new_callback_thread_waits_for_what_the_earlier_one_has_received(zi, link):
    """Two threads remove and set a callback while a message is between its receive and its callback."""
    push, pull = link("PUSH", "PULL")
    received, go_on, got = threading.Event(), threading.Event(), Inbox()
    source = zi._of(pull)
    next_message = source.next_message

    def slow(timeout):
        message = next_message(timeout)
        if message.data == b"0":
            received.set()
            assert go_on.wait(PATIENCE)
        return message

    source.next_message = slow
    zi.set_receive_callback(pull, got)
    zi.push(push, b"0")
    assert received.wait(PATIENCE)
    remover = threading.Thread(target=zi.set_receive_callback, args=(pull, None))
    remover.start()
    assert eventually(lambda: not source._dispatcher.running)
    zi.set_receive_callback(pull, got)
    zi.push(push, b"1")
    time.sleep(0.3)  # the new thread could deliver now
    assert got.empty()
    go_on.set()
    assert [got.get()["data"] for _ in range(2)] == [b"0", b"1"]
    remover.join()


@pytest.mark.parametrize("kind", ["REQ", "REP", "PUSH", "PUB"])
def test_sockets_that_know_turns_or_receive_nothing_have_none(zi, kind):
    with pytest.raises(NotSupported):
        zi.set_batch_receive_callback(zi.create_socket(kind), print)


@pytest.mark.parametrize("wrong", [0, -1, 100_001, 1.5, "many", None])
def test_wrong_numbers(zi, wrong):
    with pytest.raises(ArgumentError):
        zi.set_batch_receive_callback(zi.create_socket("PULL"), print, wrong)


def test_what_is_no_callback(zi):
    with pytest.raises(ArgumentError):
        zi.set_batch_receive_callback(zi.create_socket("PULL"), b"print")
