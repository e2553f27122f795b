"""Groups that only hold messages back, and logs of more topics than a segment has room for."""

from __future__ import annotations

import pytest

from transfer.log import HOLDS, Log


def filled(folder, groups):
    """A log of several segments, all of whose messages were acknowledged by these groups."""
    log = Log(folder, segment_bytes=4096)
    for number in range(100):
        log.append("t", b"%d" % number * 50)
    for group in groups:
        log.acknowledge("t", group, 100)
    log.commit()
    return log


@pytest.mark.parametrize(
    ("groups", "gone"),
    [([], False), ([HOLDS + "a"], False), ([HOLDS + "a", HOLDS], False), ([HOLDS + "a", "reads"], True)],
)
def test_who_holds_does_not_say_that_nobody_needs_it(tmp_path, groups, gone):
    with filled(tmp_path, groups) as log:
        assert bool(log.compact()) == gone
        assert (log.range("t")[0] > 0) == gone
        if not gone:
            assert [bytes(one.body) for one in log.read("t", 0)] == [b"%d" % n * 50 for n in range(100)]


def test_a_hold_that_is_behind_keeps_what_others_have_done_with(tmp_path):
    with filled(tmp_path, ["reads"]) as log:
        log.acknowledge("t", HOLDS + "a", 5)
        log.commit()
        log.compact(share=1.0)
        assert log.range("t") == (5, 100)
        assert bytes(log.read("t", 5)[0].body) == b"5" * 50


def test_more_topics_than_a_segment_has_room_for(tmp_path):
    """Each segment begins with all of them: it has to leave room for messages, or each message would begin
    one."""
    names = [f"topic/{number}" for number in range(500)]
    with Log(tmp_path, segment_bytes=4096) as log:
        for _ in range(3):
            for name in names:
                log.append(name, b"x" * 20)
        log.commit()
        assert len(list(tmp_path.glob("*.log"))) < 12
    with Log(tmp_path, segment_bytes=4096) as log:
        assert sorted(log.topics) == sorted(names)
        assert all(log.range(name) == (0, 3) for name in names)
        log.append(names[0], b"next")
        log.commit()
    with Log(tmp_path, segment_bytes=4096) as log:
        assert [bytes(one.body) for one in log.read(names[0], 2)] == [b"x" * 20, b"next"]
