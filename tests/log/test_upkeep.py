"""The log's room is given back in the background."""

from __future__ import annotations

import threading

from transfer.log import Log, Retention
from transfer.log.upkeep import Upkeep


def start(name, work):
    thread = threading.Thread(target=work, name=name)
    thread.start()
    return thread


def test_what_is_acknowledged_goes_though_one_old_message_is_held(tmp_path):
    with Log(tmp_path, segment_bytes=1 << 16, retention=Retention(acknowledged=True)) as log:
        log.acknowledge("slow", "g", 0)
        log.acknowledge("fast", "g", 0)
        log.append("slow", b"held")
        for _ in range(4000):
            log.append("fast", bytes(100))
        log.commit(log.acknowledge("fast", "g", 4000))
        before = log.disk_bytes
        upkeep = Upkeep(log, "upkeep", start, 0.01)
        try:
            ended = threading.Event()
            while log.disk_bytes * 2 > before:
                assert not ended.wait(0.01)
        finally:
            upkeep.close()
        assert upkeep.removed > 0
        assert bytes(log.read("slow", 0)[0].body) == b"held"


def test_it_ends_with_its_log(tmp_path):
    log = Log(tmp_path)
    upkeep = Upkeep(log, "upkeep", start, 0.01)
    log.close()
    upkeep._thread.join(10)
    assert not upkeep._thread.is_alive()
    upkeep.close()
