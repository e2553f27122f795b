"""One topic too many, at every front of a whole broker; and very many topics."""

from __future__ import annotations

import contextlib
import socket

import pytest

import transfer
from tests.broker.all_fronts import HERE, all_fronts, clients, dial, plain_dealer
from tests.broker.http_requests import ask, get_json, metric_value, until
from tests.broker.in_process_broker import running
from tests.faults.raw_peer import is_closed
from transfer.broker.clients.native import BrokerClient
from transfer.broker.clients.ttp import TtpClient
from transfer.broker.config.settings import Settings
from transfer.broker.protocols.pybroker import encode_publish as encode_file
from transfer.broker.protocols.rqueue import encode_publish
from transfer.transports.errors import ProtocolError, UsageError

MOST = Settings().max_topics


def on_loop(broker, work):
    """What it answers, when it is called on the broker's loop."""
    from concurrent.futures import Future

    answer: Future = Future()

    def run():
        try:
            answer.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised in the test
            answer.set_exception(error)

    broker.call(run)
    return answer.result(60)


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """A broker with as many topics as there may be, by default."""
    with all_fronts(tmp_path_factory.mktemp("data")) as broker:
        store = broker.hub.store
        for begin in range(0, MOST, 10_000):
            on_loop(broker, lambda: [store.topic(f"t/{begin + number}") for number in range(10_000)])  # noqa: B023
        assert len(store.topics) == MOST == 100_000
        metric_value(
            broker.ports["http"], "transfer_broker_topics"
        )  # its thread for looks is there from now on
        yield broker
        assert len(store.topics) == MOST, "none was let in"
        with clients(broker) as publish:  # and those that are there go on
            for front, say in publish.items():
                say("t/7", front.encode())
        until(
            lambda: get_json(broker.ports["http"], "topics?after=t/6&contains=t/7&limit=1")["topics"][0][
                "end"
            ],
            5,
        )


def test_programs_are_told(full):
    with BrokerClient(full.endpoints["requests"], timeout=10) as client:
        with pytest.raises(UsageError, match="exceed the limit of 100000"):
            client.publish("new", b"x")
        with pytest.raises(UsageError, match="exceed the limit of 100000"):
            client.publish_many("new", [b"x", b"y"])
        with pytest.raises(UsageError, match="exceed the limit of 100000"):
            client.consume("new", "g")


def test_plain_sockets_are_told_or_counted(full):
    with transfer.Context() as context:
        req, push = context.socket(transfer.REQ), context.socket(transfer.PUSH)
        req.rcvtimeo = 10_000
        req.connect(full.endpoints["requests"])
        req.send_multipart([b"new", b"x"])
        answer = bytes(req.recv())
        assert b'"kept": false' in answer and b"exceed the limit of 100000" in answer
        push.connect(full.endpoints["pushes"])
        push.send_multipart([b"new", b"x"])
        until(lambda: full.fronts["native"].counters["refused"], 1)
        context.destroy(0)


def test_ttp_is_told(full):
    with TtpClient(HERE, full.ports["ttp"]) as client:
        for data in (b"x", bytes(100_000)):
            with pytest.raises((UsageError, ProtocolError), match="exceed the limit of 100000"):
                client.publish("new", data, wait=True)
        client.publish("t/1", b"the connection goes on", wait=True)


@pytest.mark.parametrize(("front", "encode"), [("pybroker", encode_file), ("rqueue", encode_publish)])
@pytest.mark.parametrize("nbytes", [1, 100_000])
def test_who_has_no_word_for_it_is_cut_off(full, front, encode, nbytes):
    before = full.fronts[front].counters["refused"]
    with dial(full, front) as peer:
        with contextlib.suppress(ConnectionError):
            peer.sendall(encode("new", nbytes) + bytes(nbytes))
        assert is_closed(peer)
    assert full.fronts[front].counters["refused"] == before + 1


def test_abtp_is_told(full):
    with plain_dealer(full) as dealer:
        dealer.send_multipart([b"", b"new", b"{}"])
        answer = dealer.recv_multipart()[-1]
        assert b"policy_denied" in answer and b"exceed the limit of 100000" in answer


def test_it_is_seen(full):
    assert metric_value(full.ports["http"], "transfer_broker_topics") == MOST
    assert ask(full.ports["http"], "/readyz")[0] == 200


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("keep", [True, False])
def test_a_million(tmp_path, keep):
    """They are taken, looked at, and there after a start; one tick costs no more than of a few."""
    many = 1_000_000
    with running(tmp_path, http=0, max_topics=2 * many, keep=keep) as broker:
        front, http = broker.fronts["rqueue"], broker.ports["http"]
        with socket.create_connection((HERE, broker.ports["rqueue"]), 600) as peer:
            for begin in range(0, many, 1000):
                peer.sendall(b"".join(encode_publish(f"t/{n}", 1) + b"x" for n in range(begin, begin + 1000)))
                while front.counters["published"] < begin - 100_000:
                    on_loop(broker, lambda: None)
            while front.counters["published"] < many:
                on_loop(broker, lambda: None)
        assert get_json(http, "overview")["topics"] == many
        assert metric_value(http, 'transfer_broker_messages_total{topic="other"}') == many - 100
        told = get_json(http, "topics?contains=99999&limit=3")
        assert [one["topic"] for one in told["topics"]] == ["t/199999", "t/299999", "t/399999"]
    with running(tmp_path, max_topics=2 * many, keep=keep) as broker:
        assert len(broker.hub.store.topics) == (many if keep else 0)
        if keep:
            assert all(topic.position == 1 for topic in broker.hub.store.topics.values())
