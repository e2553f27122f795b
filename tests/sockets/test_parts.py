"""Messages that are sent part by part."""

from __future__ import annotations

import gc
import signal
import sys
import time

import pytest

import transfer
from tests.sockets.helpers import Thread, eventually, pair_of
from transfer.transports.errors import Again


def test_parts_of_a_thread_that_has_ended_are_gone(context):
    """The number of a thread may be that of a later one."""
    push, pull = pair_of(context, transfer.PUSH, transfer.PULL)
    for number in range(50):
        Thread(push.send, b"of one that ends", transfer.SNDMORE).finish()
        Thread(push.send, b"%d" % number).finish()
    assert [pull.recv_multipart() for _ in range(50)] == [[b"%d" % number] for number in range(50)]


def test_the_last_part_may_be_sent_again(context):
    push, pull = pair_of(context, transfer.PUSH, transfer.PULL, sndhwm=2)
    sent = 0
    while True:
        push.send(b"%d" % sent, transfer.SNDMORE)
        push.send(b"b", transfer.SNDMORE)
        try:
            push.send(b"c" * 60_000, transfer.DONTWAIT)
        except Again:
            break
        sent += 1
    for _ in range(3):
        with pytest.raises(Again):
            push.send(b"c" * 60_000, transfer.DONTWAIT)
    found = [pull.recv_multipart() for _ in range(sent)]
    push.send(b"c" * 60_000)
    found.append(pull.recv_multipart())
    assert found == [[b"%d" % number, b"b", b"c" * 60_000] for number in range(sent + 1)]


def test_an_error_ends_the_message(context):
    router = context.socket(transfer.ROUTER)
    router.bind("tcp://127.0.0.1:0")
    router.router_mandatory = True
    dealer = context.socket(transfer.DEALER)
    dealer.routing_id = b"there"
    dealer.connect(router.last_endpoint)
    router.wait_for_peers(1, 10)
    router.send(b"there", transfer.SNDMORE)
    dealer.close()
    assert eventually(lambda: not router.has_peers)
    with pytest.raises(transfer.Unroutable):
        router.send(b"too late")
    other = context.socket(transfer.DEALER)
    other.connect(router.last_endpoint)
    other.send(b"hello")
    identity, _ = router.recv_multipart()
    router.send(identity, transfer.SNDMORE)
    router.send(b"answer")
    assert other.recv_multipart() == [b"answer"]


def test_interrupted_receives_keep_the_order(context, monkeypatch):
    """A second handler raises while the first exception is handled: no later message overtakes."""
    if context.core.__name__.endswith("pure"):
        pytest.skip("the pure core gives back in several steps")
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # of a handler that raises in a callback
    push, pull = pair_of(context, transfer.PUSH, transfer.PULL)
    armed, ended, found, interrupts = [], [], [], 0

    def handler(*_):
        if armed:
            raise KeyboardInterrupt

    def send():
        number = 0
        while not ended:
            push.send_multipart([b"%d" % number, b"x"])
            number += 1

    before = signal.signal(signal.SIGALRM, handler)
    sender = Thread(send)
    limit = time.monotonic() + 1.0
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)
        while time.monotonic() < limit:
            try:
                armed.append(True)
                found.extend(iter(pull.recv_multipart, None))  # no gap between the call and the list
            except KeyboardInterrupt:
                armed.clear()
                interrupts += 1
    finally:
        armed.clear()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        ended.append(True)
        pull.rcvtimeo = 1000
        while sender.is_alive():
            try:
                found.append(pull.recv_multipart(transfer.DONTWAIT))
            except Again:
                time.sleep(0.001)
    numbers = [int(number) for number, _ in found]
    assert interrupts and numbers == sorted(numbers)


def test_a_socket_keeps_nothing_of_threads_that_have_ended(context):
    push, _ = pair_of(context, transfer.PUSH, transfer.PULL)
    for _ in range(20):
        Thread(push.send, b"begun", transfer.SNDMORE).finish()
    gc.collect()
    assert eventually(lambda: len(push._threads.all()) <= 1)
