"""PULL out of the broker: each message to one who pulls, and to another if that one dies first."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest

import transfer
from tests.broker.in_process_broker import ANYWHERE, FREE, running
from tests.broker.test_direct_delivery import eventually
from transfer.broker.clients.native import BrokerClient
from transfer.transports.errors import Again, UsageError


def with_queue(folder, **changes):
    own = replace(ANYWHERE.native, queues={"orders": FREE})
    return running(folder, native=own, **changes)


def pulling(connected, broker):
    return connected(transfer.PULL, broker.endpoints["queue orders"])


def numbers(pull, count):
    return [int(pull.recv_multipart()[1]) for _ in range(count)]


def cursor(broker):
    [served] = broker.hub.groups.served
    return served.group.cursor


@pytest.fixture
def connected():
    """Makes sockets that are connected."""
    with ExitStack() as open_until_the_end:
        context = transfer.Context()
        open_until_the_end.callback(context.destroy, 0)

        def make(kind, endpoint):
            made = open_until_the_end.enter_context(context.socket(kind))
            made.rcvtimeo = made.sndtimeo = 10_000
            made.connect(endpoint)
            return made

        yield make


def test_messages_wait_for_who_pulls_and_come_once(tmp_path, connected):
    with with_queue(tmp_path) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        client.publish_many("orders", [b"%d" % number for number in range(100)])
        pull = pulling(connected, broker)
        assert numbers(pull, 100) == list(range(100))
        eventually(lambda: cursor(broker) == 100)
        client.publish("orders", b"100")
        assert numbers(pull, 1) == [100]
        eventually(lambda: cursor(broker) == 101)
    with with_queue(tmp_path) as broker:
        pull = pulling(connected, broker)
        pull.rcvtimeo = 300
        with pytest.raises(Again):
            pull.recv()


def test_what_one_had_not_taken_goes_to_another(tmp_path, connected):
    with with_queue(tmp_path) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        first = pulling(connected, broker)
        client.publish_many("orders", [b"%d" % number for number in range(300)])
        taken = numbers(first, 120)
        eventually(lambda: cursor(broker) == 120)
        first.close(0)
        second = pulling(connected, broker)
        rest = set()
        while len(rest) < 180:
            rest.update(numbers(second, 1))
        assert sorted(taken) == list(range(120))
        assert rest == set(range(120, 300))
        eventually(lambda: cursor(broker) == 300)


def test_what_one_had_not_taken_goes_to_another_that_is_there_already(tmp_path, connected, caplog):
    """It was sent in the middle of the look at what was sent, which failed for each message."""
    with with_queue(tmp_path) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        first, second = pulling(connected, broker), pulling(connected, broker)
        eventually(lambda: broker.hub.groups.served and broker.hub.groups.served[0].group.members)
        [queue] = broker.hub.groups.served[0].group.members
        queue.socket.wait_for_peers(2, 10)  # else one may get all of them
        client.publish_many("orders", [b"%d" % number for number in range(300)])
        rest = set(numbers(second, 1))
        first.close(0)
        while len(rest) < 300:
            rest.update(numbers(second, 1))
        eventually(lambda: cursor(broker) == 300)
        assert broker.hub.groups.served[0].group.held == 0
    assert "Exception in callback" not in caplog.text


def test_what_waits_for_the_next_pull_comes_once(tmp_path, connected):
    """The socket had it still, and the group sent it again: messages came twice to one PULL that lived."""
    with with_queue(tmp_path) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        for begin in range(0, 600, 100):
            client.publish_many("orders", [b"%d" % n + bytes(50_000) for n in range(begin, begin + 100)])

        def taken(count, left):
            pull = pulling(connected, broker)
            got = [int(pull.recv_multipart()[1].rstrip(b"\0")) for _ in range(count)]
            eventually(lambda: broker.hub.groups.served[0].group.held == left)
            pull.close()
            return got

        first = taken(100, 500)
        time.sleep(0.2)  # looks at the sockets, of which none pulls
        assert broker.hub.groups.served[0].group.held > 200  # they stand in the socket, as their group knows
        assert sorted(first + taken(500, 0)) == list(range(600))
        assert cursor(broker) == 600


def test_what_the_socket_has_no_way_for_is_no_attempt(tmp_path, connected, monkeypatch):
    """While the socket moves what a lost connection left, it takes nothing. 16 times that, within a
    millisecond, made dead letters of messages that had never been sent."""
    refused = []
    send_frames = transfer.Socket.send_frames

    def busy(socket, *arguments, **named):
        if socket.socket_type is transfer.PUSH and len(refused) < 25:
            refused.append(arguments)
            raise Again("moving")
        return send_frames(socket, *arguments, **named)

    with with_queue(tmp_path) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        monkeypatch.setattr(transfer.Socket, "send_frames", busy)
        client.publish_many("orders", [b"%d" % number for number in range(30)])
        assert numbers(pulling(connected, broker), 30) == list(range(30))
        eventually(lambda: cursor(broker) == 30)
        assert len(refused) == 25
        assert broker.hub.counts["dead_lettered"] == 0


def test_a_tensor_by_any_way_in_comes_out(tmp_path, connected):
    with with_queue(tmp_path) as broker:
        push = connected(transfer.PUSH, broker.endpoints["pushes"])
        push.send_tensor(np.arange(6.0).reshape(2, 3), topic="orders")
        pull = pulling(connected, broker)
        np.testing.assert_array_equal(pull.recv_tensor(), np.arange(6.0).reshape(2, 3))


def test_a_topic_that_keeps_nothing_has_no_queue(tmp_path):
    with pytest.raises(UsageError), with_queue(tmp_path, keep=False):
        pass


def test_what_was_received_never_comes_again_however_long_nobody_pulls(tmp_path, connected):
    with (
        with_queue(tmp_path, group_idle_age=0.2) as broker,
        BrokerClient(broker.endpoints["requests"]) as client,
    ):
        client.publish_many("orders", [b"1", b"2"])
        consumer = client.consume("orders", "goes")
        pull = pulling(connected, broker)
        assert numbers(pull, 2) == [1, 2]
        pull.close()
        consumer.leave()
        eventually(lambda: broker.hub.counts["groups_expired"])  # of the other group, and it has its turn too
        client.publish("orders", b"3")
        assert numbers(pulling(connected, broker), 1) == [3]
        assert broker.hub.counts["groups_expired"] == 1


def test_a_queue_is_for_those_who_pull_alone(tmp_path, connected):
    with with_queue(tmp_path) as broker, BrokerClient(broker.endpoints["requests"]) as client:
        with pytest.raises(UsageError, match="PULL clients") as raised:
            client.consume("orders", "pull")
        assert "another name" in str(raised.value)
        client.consume("others", "pull")  # a topic without a queue
        client.publish("orders", b"1")
        assert numbers(pulling(connected, broker), 1) == [1]
