"""Many threads on one log of small segments: every message once and in order for every group."""

from __future__ import annotations

import random
import threading
import time

import pytest

from transfer.log import Log, Retention
from transfer.transports.errors import LogFull

SECONDS = 1.5
PRODUCERS, GROUPS, TOPICS = 4, 6, 3


class GroupReaders:
    """Producers and groups of consumers; what they found wrong is in `errors`."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.stop = time.monotonic() + SECONDS
        self.errors: list[BaseException] = []
        self.sent: dict[int, int] = {}
        self.seen: dict[int, dict[int, int]] = {}

    def run(self) -> None:
        for group in range(GROUPS):
            self.log.acknowledge(f"t{group % TOPICS}", f"g{group}", 0)
        threads = [threading.Thread(target=self._guarded, args=(self._produce, n)) for n in range(PRODUCERS)]
        threads += [threading.Thread(target=self._guarded, args=(self._consume, n)) for n in range(GROUPS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(50)

    def _guarded(self, work, number):
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - told by the test
            self.errors.append(error)

    def _produce(self, number):
        chance, turn = random.Random(number), 0
        while time.monotonic() < self.stop:
            body = b"%d/%d/" % (number, turn) + bytes(chance.randrange(600))
            blob = b"%d/%d;" % (number, turn) * chance.randrange(1, 3000) if chance.random() < 0.2 else None
            try:
                sequence, _ = self.log.append(f"t{number % TOPICS}", body, blob=blob)
            except LogFull:
                time.sleep(0.005)
                continue
            turn += 1
            if chance.random() < 0.3:
                self.log.commit(sequence)
            if chance.random() < 0.1:
                self.log.put(b"p%d" % number, b"%d" % turn)
        self.log.commit()
        self.sent[number] = turn

    def _consume(self, number):
        topic, at, ended = f"t{number % TOPICS}", 0, False
        seen: dict[int, int] = {}
        while True:
            over = len(self.sent) + len(self.errors) >= PRODUCERS
            messages = self.log.read(topic, at, limit=30)
            for message in messages:
                assert message.offset == at
                producer, turn, _ = bytes(message.body).split(b"/", 2)
                assert seen.get(int(producer), 0) == int(turn)
                seen[int(producer)] = int(turn) + 1
                if message.blob is not None:
                    unit = producer + b"/" + turn + b";"
                    assert bytes(message.blob) == unit * (len(message.blob) // len(unit))
                at += 1
            if messages:
                self.log.acknowledge(topic, f"g{number}", at)
            elif ended:
                break
            else:
                ended = over
                time.sleep(0.001)
        self.seen[number] = seen


@pytest.mark.parametrize("fsync", ["always", "interval", "never"])
def test_every_message_once_for_every_group(tmp_path, fsync):
    limit = Retention(bytes=1 << 20, acknowledged=True)
    with Log(tmp_path, segment_bytes=8192, retention=limit, fsync=fsync) as log:
        readers = GroupReaders(log)
        readers.run()
        assert not readers.errors and len(readers.seen) == GROUPS
        for group, seen in readers.seen.items():
            for producer, turns in readers.sent.items():
                if producer % TOPICS == group % TOPICS:
                    assert seen.get(producer, 0) == turns
        assert log.disk_bytes <= (1 << 20) + 8 * 8192  # acknowledgements are not bound by the limit
        assert all(log.range(topic)[0] > 0 for topic in log.topics)
        ranges = {topic: log.range(topic) for topic in log.topics}
    with Log(tmp_path) as log:
        assert log.cut == 0 and {topic: log.range(topic) for topic in log.topics} == ranges


def test_large_blobs_begin_new_segments_so_that_they_can_go(tmp_path):
    with Log(tmp_path, segment_bytes=8192, retention=Retention(acknowledged=True)) as log:
        log.acknowledge("t", "g", 0)
        for number in range(20):
            _, offset = log.append("t", b"%d" % number, blob=bytes(50_000))
            log.acknowledge("t", "g", offset)
            log.commit()
        assert log.disk_bytes < 10 * 50_000
        assert log.read("t", 19)[0].blob == bytes(50_000)
        log.append("t", b"one that is larger than all", blob=bytes(1 << 20))
        log.commit()
        assert len(log.read("t", 20, nbytes=4 << 20)[0].blob) == 1 << 20
