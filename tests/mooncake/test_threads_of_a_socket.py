"""One socket, several threads of the program: requests, replies to callbacks, callbacks that change."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tests.sockets.helpers import eventually
from transfer.transports.errors import Again, ArgumentError, Closed, NotATensor, TransferError, UsageError

from .conftest import Inbox

pytestmark = pytest.mark.timeout(30)


def in_threads(count, call):
    threads = [threading.Thread(target=call, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def test_requests_of_several_threads_have_all_their_replies_given_to_the_callback(zi, link):
    """Two went at once, and the reply of the first was taken for a late one: half of them vanished."""
    req, rep = link("REQ", "REP")
    zi.set_receive_callback(rep, lambda message: zi.reply(rep, message["data"]))
    replies = Inbox()
    zi.set_receive_callback(req, lambda message: replies(message["data"]))

    def sends(thread):
        for number in range(20):
            assert zi.send(req, b"%d %d" % (thread, number)) == 0

    in_threads(4, sends)
    assert {replies.get() for _ in range(80)} == {b"%d %d" % (t, n) for t in range(4) for n in range(20)}
    assert replies.empty()


def test_a_request_while_other_replies_go_to_a_callback(zi, link):
    req, rep = link("REQ", "REP")
    zi.set_receive_callback(rep, lambda message: zi.reply(rep, message["data"]))
    replies = Inbox()
    zi.set_receive_callback(req, lambda message: replies(message["data"]))
    for number in range(20):
        assert zi.send(req, b"called %d" % number) == 0
        assert zi.request(req, b"asked %d" % number) == b"asked %d" % number
        assert replies.get() == b"called %d" % number


def test_a_request_that_waits_for_another_ends_with_its_time(make):
    zi = make({"timeout_seconds": 0.3})
    rep, req = zi.create_socket("REP"), zi.create_socket("REQ")
    zi.bind(rep, "127.0.0.1:0")
    zi.connect(req, zi.get_bound_endpoint(rep))
    zi.set_polling_mode(rep, True)
    ends = Inbox()

    def asks(number):
        try:
            ends(zi.request(req, b"%d" % number))
        except TransferError as error:
            ends(type(error))

    in_threads(3, asks)
    assert {ends.get() for _ in range(3)} == {Again}


def test_a_callback_that_exits_does_not_end_the_others(zi, link, caplog):
    """`sys.exit` ended the thread, and the socket received nothing more, without a word."""
    push, pull = link("PUSH", "PULL")
    seen = Inbox()

    def receive(message):
        seen(message["data"])
        raise SystemExit(1)

    zi.set_receive_callback(pull, receive)
    for number in range(3):
        zi.push(push, b"%d" % number)
        assert seen.get() == b"%d" % number
    assert eventually(lambda: caplog.text.count("callback failed") == 3)


def test_callbacks_stay_one_at_a_time_when_one_of_them_sets_another(zi, link):
    push, pull = link("PUSH", "PULL")
    seen, inside, most = Inbox(), [], []

    def second(message):
        inside.append(1)
        most.append(len(inside))
        inside.pop()
        seen(message["data"])

    def first(message):
        inside.append(1)
        zi.set_receive_callback(pull, None)
        zi.set_receive_callback(pull, second)
        zi.push(push, b"next")
        threading.Event().wait(0.3)
        inside.pop()
        seen(message["data"])

    zi.set_receive_callback(pull, first)
    zi.push(push, b"first")
    assert [seen.get(), seen.get()] == [b"first", b"next"]
    assert most == [1]


def test_what_was_polled_in_the_wrong_form_comes_to_the_callback(zi, link):
    """It stayed with the polling calls, which were over."""
    push, pull = link("PUSH", "PULL")
    zi.set_polling_mode(pull, True)
    zi.push(push, b"no tensor")
    with pytest.raises(NotATensor):
        zi.recv_tensor(pull)
    seen = Inbox()
    zi.set_receive_callback(pull, lambda message: seen(message["data"]))
    zi.set_polling_mode(pull, False)
    zi.push(push, b"another")
    assert [seen.get(), seen.get()] == [b"no tensor", b"another"]


def test_a_late_answer_is_not_taken_for_another_request(make):
    """A program that answers from threads of its own, one of which needs longer than a request is open."""
    zi = make({"timeout_seconds": 0.5})
    rep, one, other = (zi.create_socket(kind) for kind in ("REP", "REQ", "REQ"))
    zi.bind(rep, "127.0.0.1:0")
    for req in (one, other):
        zi.connect(req, zi.get_bound_endpoint(rep))
    asked, codes = Inbox(), Inbox()
    zi.set_receive_callback(rep, asked)
    timely = Inbox()

    def asks_in_vain():
        with pytest.raises(Again):
            zi.request(one, b"late")

    late = threading.Thread(target=asks_in_vain)
    late.start()
    first = asked.get()
    late.join(10)
    asking = threading.Thread(target=lambda: timely(zi.request(other, b"timely")))
    asking.start()
    second = asked.get()
    codes(zi.reply(rep, b"to the first", request=first["request"]))
    codes(zi.reply(rep, b"to the second", request=second["request"]))
    codes(zi.reply(rep, b"to the second again", second["request"]))
    asking.join(10)
    assert timely.get() == b"to the second"
    assert codes.get() < 0 == codes.get() and codes.get() < 0
    with pytest.raises(ArgumentError, match="request"):
        zi.reply(rep, b"x", request="first")


def test_a_request_that_cannot_be_sent_holds_up_no_other(zi, link):
    """It kept its turn, and the next request waited for a reply that could not come."""
    req, rep = link("REQ", "REP")
    zi.set_receive_callback(rep, lambda message: zi.reply(rep, message["data"]))
    replies = Inbox()
    zi.set_receive_callback(req, lambda message: replies(message["data"]))
    with pytest.raises(NotATensor):
        zi.send(req, np.array([object()]))
    assert zi.send(req, b"good") == 0
    assert replies.get() == b"good"


def test_closing_ends_all_requests_that_wait(make):
    zi = make({"pool_size": 1})
    rep, req = zi.create_socket("REP"), zi.create_socket("REQ")
    zi.bind(rep, "127.0.0.1:0")
    zi.connect(req, zi.get_bound_endpoint(rep))
    zi.set_polling_mode(rep, True)
    zi.set_receive_callback(req, lambda message: None)
    assert zi.send(req, b"never answered") == 0
    ends = Inbox()

    def sends():
        try:
            ends(zi.send(req, b"waits"))
        except TransferError as error:
            ends(type(error))

    threads = [threading.Thread(target=sends) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert eventually(lambda: zi.close_socket(req))
    assert {ends.get() for _ in threads} <= {Closed, UsageError}
    for thread in threads:
        thread.join(10)
