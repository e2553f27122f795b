"""Small TTP messages that come at once are one batch for the hub, and each is still answered for itself."""

from __future__ import annotations

from tests.broker.stepped_hub import ControlledSubscriber, stepped_hub
from tests.broker.ttp_peers import serving, subscribed_to_all
from transfer.broker.core.message import Front, Message
from transfer.broker.core.topic_patterns import Kind, pattern
from transfer.broker.protocols.ttp import WANTED, encode_head
from transfer.transports.errors import InternalError

MANY = 200


def frames(topics, *, data=b"data", first=0):
    """A PUBLISH that wants an ACK for each topic, numbered."""
    return b"".join(
        encode_head(3, topic, b"", len(data), WANTED, number) + data
        for number, topic in enumerate(topics, first)
    )


def answers(peer, count):
    """(type, stream id) of the next frames."""
    return [(kind, number) for kind, _, number, *_ in (peer.read() for _ in range(count))]


def test_each_of_a_batch_is_acknowledged_in_order_and_subscribers_get_the_very_frames(tmp_path):
    sent = frames([b"t"] * MANY)
    with serving(tmp_path, 2, durable=True) as (broker, publisher, subscriber):
        subscriber.subscribe(b"t")
        publisher.socket.sendall(sent)
        assert subscriber.exactly(len(sent)) == sent
        assert answers(publisher, MANY) == [(6, number) for number in range(MANY)]
        assert broker.front.counters["published"] == MANY
        kept = broker.call(lambda: broker.hub.store.read(broker.hub.store.topic("t"), 0))
        assert [bytes(message.head[2:]) for message in kept] == [n.to_bytes(8, "big") for n in range(MANY)]
        assert broker.call(lambda: (broker.hub.store.messages, broker.hub.store.nbytes)) == (MANY, 4 * MANY)


def test_messages_of_several_topics_keep_their_order_for_one_who_subscribes_to_all(tmp_path):
    topics = [b"a", b"b", b"b", b"c"] * (MANY // 4)
    with serving(tmp_path, 1, durable=True) as (broker, publisher):
        recorder = subscribed_to_all(broker)
        publisher.socket.sendall(b"".join(frames([topic], data=b"%d" % n) for n, topic in enumerate(topics)))
        answers(publisher, MANY)
        assert broker.call(lambda: recorder.received) == [
            (t.decode(), b"%d" % n) for n, t in enumerate(topics)
        ]


def test_one_that_cannot_be_taken_is_refused_alone_and_in_its_place(tmp_path):
    topics = [b"t"] * 40 + [b"\xff"] + [b"t"] * 40
    with serving(tmp_path, 1) as (broker, publisher):
        publisher.socket.sendall(frames(topics))
        found = answers(publisher, len(topics))
        assert found == [(8 if number == 40 else 6, number) for number in range(len(topics))]
        assert broker.front.counters["published"] == 80 and broker.front.counters["refused"] == 1


def test_too_many_topics_in_a_batch_cost_only_those_that_are_too_many(tmp_path):
    topics = [b"t%d" % (number % 20) for number in range(MANY)]
    with serving(tmp_path, 1, durable=True) as (broker, publisher):
        broker.call(lambda: setattr(broker.hub.store, "_most", 10))
        publisher.socket.sendall(frames(topics))
        found = sorted(answers(publisher, MANY), key=lambda answer: answer[1])
        assert found == [(6 if number % 20 < 10 else 8, number) for number in range(MANY)]


def test_kept_and_other_topics_in_one_batch(tmp_path):
    topics = [b"kept", b"other"] * (MANY // 2)
    with serving(tmp_path, 1) as (broker, publisher):
        broker.call(lambda: setattr(broker.hub.store, "_durable", lambda name: name == "kept"))
        publisher.socket.sendall(frames(topics))
        assert sorted(answers(publisher, MANY)) == [(6, number) for number in range(MANY)]
        assert broker.call(lambda: broker.hub.store.topic("kept").messages) == MANY // 2
        assert broker.call(lambda: broker.hub.store.topic("other").messages) == MANY // 2


def test_a_failed_log_refuses_each_of_a_batch(tmp_path):
    with serving(tmp_path, 1, durable=True) as (broker, publisher):
        publisher.socket.sendall(frames([b"t"] * 20))
        assert answers(publisher, 20) == [(6, number) for number in range(20)]

        def fails(*arguments):
            raise InternalError("the disk is broken")

        broker.call(lambda: setattr(broker.hub.store.log._journal, "append_all", fails))
        broker.call(lambda: setattr(broker.hub.store.log._journal, "append", fails))
        publisher.socket.sendall(frames([b"t"] * MANY, first=20))
        assert answers(publisher, MANY) == [(8, number) for number in range(20, 20 + MANY)]


def batch(*payloads):
    return [Message("t", (payload,), Front.RQUEUE) for payload in payloads]


def test_one_without_room_for_all_of_a_batch_reads_the_rest_from_the_log(tmp_path):
    with stepped_hub(tmp_path) as stepped:
        controlled = ControlledSubscriber(stepped.hub, limit=25)
        stepped.hub.subscribe(controlled, pattern(Kind.EXACT, "t"))
        stepped.kept("t", b"first")
        controlled.take()
        answers = []
        payloads = [b"%010d" % number for number in range(5)]
        assert stepped.hub.publish_batch(batch(*payloads), answers.append)
        assert controlled.received == [b"first", *payloads[:2]] and len(stepped.hub.fanout.behind) == 1
        stepped.until(lambda: controlled.take() or not stepped.hub.fanout.behind)
        assert controlled.received == [b"first", *payloads] and answers == [None]


def test_a_batch_that_cannot_be_taken_at_once_leaves_nothing(tmp_path):
    with stepped_hub(tmp_path) as stepped:
        assert not stepped.hub.publish_batch(batch(b"1", b"2")), "the topic is new"
        stepped.kept("t", b"0")
        assert not stepped.hub.publish_batch(batch(b"1", bytes(64 << 10))), "one is large"
        assert stepped.store.range(stepped.store.topic("t")) == (0, 1)
        assert stepped.hub.publish_batch(batch(b"1", b"2"))
        assert stepped.store.range(stepped.store.topic("t")) == (0, 3)
