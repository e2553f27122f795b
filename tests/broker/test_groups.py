"""Groups over a real log: what was acknowledged never comes again, all else does, after a restart too."""

from __future__ import annotations

import errno
import random
from collections import defaultdict

import pytest

from tests.broker.stepped_hub import SteppedHub, stepped_hub
from transfer.broker.core.message import Front, Message
from transfer.broker.delivery import group_reader
from transfer.broker.storage import group_journal_writer
from transfer.log import Retention
from transfer.transports.errors import InternalError, UsageError


class Taker:
    """A consumer. got: (offset, attempt, payload or None)."""

    def __init__(self):
        self.got = []

    def deliver(self, messages):
        for delivery, message in messages:
            payload = bytes(message.payload) if message is not None else None
            self.got.append((delivery.offset, delivery.attempt, payload))

    @property
    def deliveries(self):
        return [one[:2] for one in self.got]


def join(stepped, window=10, topic="t", begin="old", timeout=None):
    taker = Taker()
    served = stepped.hub.groups.served_for(topic, "g", begin)
    stepped.hub.groups.join(taker, served, window, timeout)
    return taker, served


def acknowledge(stepped, taker, served, deliveries):
    """Until it is on the disk."""
    answers = []
    stale = stepped.hub.groups.ack(taker, served, deliveries, answers.append)
    stepped.until(lambda: answers)
    assert answers == [None]
    return stale


def test_only_what_is_kept_goes_out(tmp_path):
    with stepped_hub(tmp_path) as stepped:
        taker, _ = join(stepped)
        stepped.publish("t", b"x")
        assert taker.got == []
        stepped.until(lambda: taker.got)
        assert taker.got == [(0, 1, b"x")]


@pytest.mark.parametrize("seed", range(3))
def test_restarts_at_random(tmp_path, monkeypatch, seed):
    """Messages of all sizes, acknowledged out of order, summaries in between, ten restarts."""
    monkeypatch.setattr(group_journal_writer, "SUMMARY_AFTER", 20)
    rng = random.Random(seed)
    sent, done, attempts = [], set(), defaultdict(int)
    for _ in range(10):
        before = dict(attempts)
        with stepped_hub(tmp_path, segment_bytes=1 << 20) as stepped:
            takers = [join(stepped, rng.randint(1, 8)) for _ in range(2)]
            for _ in range(rng.randint(1, 12)):
                for _ in range(rng.randint(0, 4)):
                    sent.append(bytes([len(sent) % 256]) * rng.choice([1, 1000, 70_000]))
                    stepped.publish("t", sent[-1])
                stepped.turn(0.002)
                for taker, served in takers:
                    for offset, attempt, payload in taker.got:
                        assert offset not in done, "what was acknowledged came again"
                        assert payload == sent[offset]
                        assert attempt > before.get(offset, 0)
                        attempts[offset] = attempt
                    mine = rng.sample(taker.deliveries, rng.randint(0, len(taker.got)))
                    taker.got = [one for one in taker.got if one[:2] not in mine]
                    if mine:
                        assert acknowledge(stepped, taker, served, mine) == []
                        done.update(offset for offset, _ in mine)
                stepped.hub.tick(0.0)
            stepped.kept("other", b"so that all is on the disk")
    with stepped_hub(tmp_path, segment_bytes=1 << 20) as stepped:
        taker, served = join(stepped, 10_000)
        stepped.until(lambda: len(taker.got) == len(sent) - len(done))
        assert {offset for offset, _ in taker.deliveries} == set(range(len(sent))) - done
        acknowledge(stepped, taker, served, taker.deliveries)
        assert served.group.cursor == len(sent)


def test_retention_waits_for_groups(tmp_path):
    limits = {"segment_bytes": 4096, "retention": Retention(bytes=16_384)}
    with stepped_hub(tmp_path, **limits) as stepped:
        taker, served = join(stepped, 100)
        answers = []
        for n in range(30):
            stepped.publish("t", n.to_bytes(1, "big") * 1000, answers.append)
            stepped.turn(0.002)
        assert len(answers) < 30, "the log is full"
        while len(answers) < 30:
            mine, taker.got = taker.deliveries, []
            acknowledge(stepped, taker, served, mine)
            stepped.hub.tick(0.0)
            stepped.until(lambda: taker.got or len(answers) == 30)
        assert answers == [None] * 30
        stepped.until(lambda: taker.deliveries and taker.deliveries[-1][0] == 29)


def test_what_damage_took_comes_without_a_message(tmp_path, caplog):
    with stepped_hub(tmp_path) as stepped:
        for n in range(5):
            stepped.kept("t", b"%d" % n * 100)
        [segment] = tmp_path.glob("*.log")
        at = segment.read_bytes().index(b"2" * 100)
        with segment.open("r+b") as file:
            file.seek(at)
            file.write(b"X")
        taker, served = join(stepped)
        assert [payload and payload[:1] for *_, payload in taker.got] == [b"0", b"1", None, b"3", b"4"]
        acknowledge(stepped, taker, served, taker.deliveries)
        assert served.group.cursor == 5
        caplog.clear()


def test_a_dead_letter_does_not_come_again(tmp_path):
    """The letter is kept, and the broker dies before the group knows: the message is not sent again."""

    class Dies(SteppedHub):
        def _keep_dead_letter(self, dead, message, on_kept):
            self.letters[dead[:3]] = (dead, message)  # and nothing more

    stepped = Dies(tmp_path)
    stepped.kept("t", b"poison")
    taker, served = join(stepped)
    stepped.hub.groups.nack(taker, served, (0, 1), "bad", retry=False)
    letters = stepped.letters
    stepped.until(lambda: letters)
    assert letters["t", "g", 0][0].reason == "bad"
    assert bytes(letters["t", "g", 0][1].payload) == b"poison"
    stepped.close()
    with stepped_hub(tmp_path, is_dead_lettered=lambda *name: name in letters) as stepped:
        stepped.kept("t", b"good")
        taker, served = join(stepped)
        assert taker.got == [(1, 1, b"good")]
        assert served.group.cursor == 1


def test_a_letter_is_kept_behind_the_word_that_it_was_sent(tmp_path):
    """Else a crash in between leaves a letter of a message that nobody was sent."""

    class Looks(SteppedHub):
        def _keep_dead_letter(self, dead, message, on_kept):
            super()._keep_dead_letter(dead, message, on_kept)
            known.append(self.log.range("broker/changes")[1] == len(self.log.read("broker/changes", 0)))

    known = []
    stepped = Looks(tmp_path)
    stepped.kept("t", b"poison")
    taker, served = join(stepped)
    stepped.hub.groups.nack(taker, served, (0, 1), "bad", retry=False)
    stepped.until(lambda: known)
    assert known == [True]
    stepped.close()


def test_a_letter_that_cannot_be_kept_is_tried_again(tmp_path):
    class Fails(SteppedHub):
        tries = 0

        def _keep_dead_letter(self, dead, message, on_kept):
            self.tries += 1
            self.loop.call_soon(on_kept, InternalError("the disk is full") if self.tries == 1 else None)

    stepped = Fails(tmp_path)
    stepped.kept("t", b"poison")
    taker, served = join(stepped)
    stepped.hub.groups.nack(taker, served, (0, 1), "bad", retry=False)
    stepped.until(lambda: served.group.cursor == 1)
    assert stepped.tries == 2
    stepped.close()


def test_time_outs_ring(tmp_path):
    with stepped_hub(tmp_path) as stepped:
        taker, _ = join(stepped, timeout=0.02)
        stepped.kept("t", b"x")
        stepped.until(lambda: len(taker.got) == 3)
        assert taker.deliveries == [(0, 1), (0, 2), (0, 3)]
        assert stepped.hub.counts["expired"] == 2


def test_nothing_rings_while_nobody_can_take(tmp_path):
    """A message that comes again, and no consumer: the loop sleeps."""
    with stepped_hub(tmp_path) as stepped:
        taker, served = join(stepped)
        stepped.kept("t", b"x")
        stepped.until(lambda: taker.got)
        stepped.hub.groups.leave(taker, served)
        stepped.turn(0.1)
        turns = 0

        def count():
            nonlocal turns
            turns += 1
            stepped.loop.call_later(0.01, count)

        count()
        before = stepped.loop.time()
        stepped.turn(0.2)
        assert stepped.loop.time() - before < 1
        assert stepped.hub.groups._alarm is None
        assert turns <= 25


def test_groups_of_topics_that_keep_nothing(tmp_path):
    with (
        stepped_hub(tmp_path, durable=lambda name: False) as stepped,
        pytest.raises(UsageError, match="is not durable"),
    ):
        stepped.hub.groups.served_for("t", "g")


def test_tensor_headers_come_with_the_message(tmp_path):
    with stepped_hub(tmp_path) as stepped:
        heads = []

        class Looks(Taker):
            def deliver(self, messages):
                heads.extend((message.front, message.head, message.headers) for _, message in messages)

        stepped.hub.publish(Message("t", (b"1", b"2"), Front.NATIVE, b"head", {"dtype": "i1"}))
        stepped.kept("t", b"behind it")
        stepped.hub.groups.join(Looks(), stepped.hub.groups.served_for("t", "g", "old"), 1)
        assert heads == [(Front.NATIVE, b"head", {"dtype": "i1"})]


def test_what_cannot_be_read_goes_back_and_comes_later(tmp_path, monkeypatch, caplog):
    """No memory for one more mapping, say: nobody holds it, and its attempts do not count."""
    monkeypatch.setattr(group_reader, "UNREADABLE", 0.02)
    with stepped_hub(tmp_path) as stepped:
        for number in range(5):
            stepped.publish("t", b"%d" % number)
        stepped.until(lambda: stepped.hub.store.topic("t").kept == 5)
        failures = iter(range(40))
        real = stepped.hub.store.read

        def read(*arguments, **options):
            for _ in failures:
                raise OSError(errno.ENOMEM, "Cannot allocate memory")
            return real(*arguments, **options)

        monkeypatch.setattr(stepped.hub.store, "read", read)
        taker, served = join(stepped)
        assert taker.got == [] and served.group.held == 0
        stepped.until(lambda: taker.got)
        assert taker.got == [(number, 1, b"%d" % number) for number in range(5)]
        assert served.group.held == 5 and next(failures, None) is None
        assert acknowledge(stepped, taker, served, taker.deliveries) == []
    assert "Cannot allocate memory" in caplog.text


def test_few_large_messages_go_out_at_once(tmp_path, monkeypatch):
    """As many as come to some bytes; then it is looked whether the consumer takes more."""
    monkeypatch.setattr(group_reader, "MOST_BYTES", 1000)

    class Full(Taker):
        def deliver(self, messages):
            super().deliver(messages)
            if len(self.got) >= 6:
                groups.pause(self, served, True)

    with stepped_hub(tmp_path) as stepped:
        groups = stepped.hub.groups
        for _ in range(40):
            stepped.publish("t", bytes(500))
        stepped.until(lambda: stepped.hub.store.topic("t").kept == 40)
        served = groups.served_for("t", "g", "old")
        taker, other = Full(), Taker()
        groups.join(taker, served, 100)
        stepped.until(lambda: len(taker.deliveries) == 6)
        assert taker.deliveries == [(number, 1) for number in range(6)]
        assert served.group.held == 6
        groups.join(other, served, 100)
        stepped.until(lambda: len(other.deliveries) == 34)
        assert other.deliveries == [(number, 1) for number in range(6, 40)]
        groups.leave(other, served)
        assert len(taker.got) == 6
        groups.pause(taker, served, False)
        stepped.until(lambda: len(taker.got) == 8)
        assert [one[0] for one in taker.got] == list(range(8))
