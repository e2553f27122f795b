"""Several words in one message: the format, the client that says them, the broker that answers so."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, strategies as st

import transfer
from tests.broker.in_process_broker import running
from tests.broker.native_peers import wait_for
from tests.core.raw_frames import Raw
from tests.faults.raw_peer import raw_peer
from transfer.broker.clients.native import BrokerClient
from transfer.broker.fronts import native_requests
from transfer.broker.protocols.native import Join, Op, decode, encode, encode_join
from transfer.broker.protocols.native_batch import decode_several, encode_several
from transfer.transports.core.wire import SocketType
from transfer.transports.errors import Broken, ProtocolError

_WORDS = st.lists(
    st.tuples(
        st.builds(
            encode,
            st.sampled_from([Op.PUBLISH, Op.ACK, Op.KEPT, Op.DELIVER]),
            st.integers(0, 2**63 - 1),
            st.binary(max_size=20),
            st.integers(0, 10),
        ),
        st.integers(0, 4),
    ),
    max_size=12,
)


@given(_WORDS)
def test_words_come_back(words):
    total = sum(parts for _, parts in words)
    found = decode_several(decode(encode_several(Op.SEVERAL, words)), total)
    assert [head for head, _ in found] == [decode(head) for head, _ in words]
    assert [index for _, where in found for index in range(where.start, where.stop)] == list(range(total))


@given(_WORDS, st.integers(0, 300), st.integers(0, 10), st.binary(max_size=3))
def test_what_was_changed_is_refused_or_understood(words, cut, parts, more):
    data = encode_several(Op.SEVERAL, words)
    head = decode(data[: max(16, len(data) - cut)] + more)
    try:
        found = decode_several(head, parts)
    except ProtocolError as error:
        refused = error.reason
    else:
        assert sum(where.stop - where.start for _, where in found) == parts
        return
    assert refused in ("several", "head", "version", "op", "count", "number")


def test_several_within_several_is_refused():
    inner = encode_several(Op.SEVERAL, [(encode(Op.ALIVE, 0), 0)])
    with pytest.raises(ProtocolError, match="within"):
        decode_several(decode(encode_several(Op.SEVERAL, [(inner, 0)])), 0)


def test_many_topics_at_once(broker, client):
    topics = [f"t{number}" for number in range(50)]
    consumers = [client.consume(topic, "g") for topic in topics]
    for round_ in range(20):
        with client.batch():
            for topic in topics:
                client.publish(topic, f"{topic} {round_}".encode(), wait=False)
    client.flush()
    found: dict[str, list[bytes]] = {topic: [] for topic in topics}
    while sum(map(len, found.values())) < 1000:
        there = client.ready()
        with client.batch():
            for consumer in there:
                messages = consumer.recv_many()
                found[consumer.topic] += [bytes(one.data) for one in messages]
                consumer.ack(*messages)
    for consumer in consumers:
        consumer.flush()
    assert found == {topic: [f"{topic} {n}".encode() for n in range(20)] for topic in topics}
    assert broker.hub.counts["acked"] == 1000


def test_what_waits_within_sends_first(client):
    with client.batch():
        client.publish("t", b"first", wait=False)
        client.publish("t", b"second")  # waits until it is kept
        assert client.unacknowledged == 0


def test_one_that_is_refused_does_not_harm_the_others(broker, client):
    consumer = client.consume("t", "g")
    with client.batch():
        client.publish("t", b"good", wait=False)
        client.send(lambda: encode(Op.ACK, 999))  # nobody has this number
        client.publish("t", b"good too", wait=False)
    client.flush()
    assert [bytes(consumer.recv().data) for _ in range(2)] == [b"good", b"good too"]


def test_other_threads_are_not_held_up(client):
    with client.batch():
        client.publish("t", b"mine", wait=False)
        other = threading.Thread(target=client.publish, args=("t", b"theirs"))
        other.start()
        other.join(10)
        assert not other.is_alive()
        assert client.unacknowledged == 1
    client.flush()


def test_an_error_within_loses_nothing_that_was_said(client):
    consumer = client.consume("t", "g")
    with pytest.raises(KeyError), client.batch():
        client.publish("t", b"said", wait=False)
        raise KeyError
    assert bytes(consumer.recv().data) == b"said"


def test_a_broker_that_goes_within(tmp_path):
    with running(tmp_path) as broker:
        client = BrokerClient(broker.endpoints["requests"], timeout=5)
    with client:
        with client.batch():
            client.publish("t", b"x", wait=False)
            wait_for(lambda: not client._socket.peers())
            with pytest.raises(Broken):
                client.flush()


def test_a_program_that_does_not_know_it_gets_word_by_word(broker):
    """As another program's DEALER: without `several` in its JOIN."""
    with transfer.Context() as context, context.socket(transfer.DEALER) as dealer:
        dealer.rcvtimeo = 10_000
        dealer.connect(broker.endpoints["requests"])
        for number, topic in ((1, "a"), (2, "b")):
            dealer.send(encode(Op.JOIN, number, encode_join(Join(topic, "g"))))
        words = [(encode(Op.PUBLISH, 7, b"a"), 1), (encode(Op.PUBLISH, 8, b"b"), 1)]
        dealer.send_multipart([encode_several(Op.SEVERAL, words), b"for a", b"for b"])
        received = [decode(bytes(dealer.recv_multipart()[0])) for _ in range(5)]
        assert [one.op for one in received[:2]] == [Op.JOINED, Op.JOINED]
        kept = [one for one in received if one.op is Op.KEPT]
        assert [(one.number, one.amount) for one in kept] == [(7, 2)]
        assert sorted(one.number for one in received if one.op is Op.DELIVER) == [1, 2]


def test_bad_words_are_refused_whole(broker, client):
    with transfer.Context() as context, context.socket(transfer.DEALER) as dealer:
        dealer.connect(broker.endpoints["requests"])
        words = [(encode(Op.PUBLISH, 1, b"t"), 1), (encode(Op.PUBLISH, 2, b"t"), 2)]
        dealer.send_multipart([encode_several(Op.SEVERAL, words), b"only one part"])
        wait_for(lambda: broker.fronts["native"].counters["refused"] == 1)
    assert "t" not in broker.hub.store.topics
    client.publish("t", b"others are unhurt")


def test_a_program_without_a_name_of_its_own_stays_a_member(broker):
    with transfer.Context() as context, context.socket(transfer.DEALER) as dealer:
        dealer.rcvtimeo = 10_000
        dealer.connect(broker.endpoints["requests"])
        dealer.send(encode(Op.JOIN, 1, encode_join(Join("t", "g"))))
        assert decode(bytes(dealer.recv_multipart()[0])).op is Op.JOINED
        turned = threading.Event()
        broker.call(lambda: (broker.fronts["native"].tick(0.0), turned.set()))
        assert turned.wait(10)
        dealer.send_multipart([encode(Op.PUBLISH, 1, b"t"), b"x"])
        received = {decode(bytes(dealer.recv_multipart()[0])).op for _ in range(2)}
        assert received == {Op.KEPT, Op.DELIVER}


def test_a_program_that_never_reads_its_answers_is_let_go(broker, client, monkeypatch):
    monkeypatch.setattr(native_requests, "_MOST_UNREAD", 1000)
    nonsense = encode(Op.ACK, 999)
    with raw_peer(broker.endpoints["requests"], SocketType.DEALER) as silent:
        silent.settimeout(20)
        number = 0
        with pytest.raises(ConnectionError):
            while True:
                frames = [
                    Raw(nonsense, socket_type=int(SocketType.DEALER), sequence=number + n).encode()
                    for n in range(1, 501)
                ]
                silent.sendall(b"".join(frames))
                number += 500
    assert broker.fronts["native"].counters["closed_slow"] == 1
    client.publish("t", b"others are unhurt")
