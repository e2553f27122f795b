"""The receiver's books against a model, and what they read from a peer."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings, strategies as st

from transfer.spool.format.run_messages import (
    Abort,
    Commit,
    RowsFrame,
    RunLedger,
    TaskBegin,
    TaskEnd,
    Winner,
    chain,
    from_meta,
    from_table,
    to_meta,
    to_table,
)
from transfer.transports.errors import ProtocolError

MESSAGES = [
    TaskBegin("run", "job", 3, 17, 1),
    RowsFrame("run", "job", 3, 17, 0, 10, 0xFFFFFFFF),
    TaskEnd("run", "job", 3, 17, 1, 10, 5),
    Commit("run", "job", 0, 2, "tcp"),
    Abort("run", "job"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: m.kind)
def test_messages_survive_json(message):
    assert from_meta(json.loads(json.dumps(to_meta(message)))) == message


@pytest.mark.parametrize(
    "change",
    [
        {"transfer.run": 2},
        {"kind": "xyzzy"},
        {"kind": None},
        {"partition": -1},
        {"partition": 1 << 63},
        {"rows": 1.5},
        {"rows": True},
        {"rows": "10"},
        {"run": ""},
        {"run": "x" * 256},
        {"run": 3},
        {"surplus": 1},
    ],
    ids=str,
)
def test_what_a_peer_may_not_say(change):
    with pytest.raises(ProtocolError):
        from_meta(to_meta(MESSAGES[1]) | change)


@pytest.mark.parametrize("meta", [None, [], "begin", 7, {}], ids=str)
def test_metadata_of_another_program(meta):
    with pytest.raises(ProtocolError):
        from_meta(meta)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(), st.integers() | st.text() | st.none() | st.lists(st.integers())))
def test_garbage_is_a_protocol_error_and_nothing_else(meta):
    with pytest.raises(ProtocolError):
        from_meta(meta)
    with pytest.raises(ProtocolError):
        from_meta(to_meta(MESSAGES[0]) | {"kind": meta.get("kind", "?")} | meta)


def test_tables_of_winners():
    winners = [Winner(0, 5, 2, 20, 160, 7), Winner(1, 6, 0, 0, 0, 0)]
    assert from_table(to_table(winners)) == winners
    assert from_table(to_table([])) == []
    for broken in ({}, to_table(winners) | {"rows": [1]}, to_table(winners) | {"more": [1, 2]}):
        with pytest.raises(ProtocolError):
            from_table(broken)


# --- interleaved attempts, some of which die ----------------------------------------------------


def script_of(partition: int, attempt: int, frames: list[int], upto: int | None):
    """What one attempt sends; it dies before frame `upto`, None: it ends well."""
    yield TaskBegin("run", "job", partition, attempt)
    crc = 0
    for sequence, rows in enumerate(frames[:upto]):
        frame_crc = hash((partition, sequence)) & 0xFFFFFFFF
        crc = chain(crc, sequence, rows, frame_crc)
        yield RowsFrame("run", "job", partition, attempt, sequence, rows, frame_crc)
    if upto is None:
        yield TaskEnd("run", "job", partition, attempt, len(frames), sum(frames), crc)


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 9), max_size=6), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_any_interleaving_of_retries_and_copies_hands_each_frame_on_once(partitions, random):
    scripts, winners, attempt = [], [], 0
    for number, frames in enumerate(partitions):
        for upto in [random.randrange(len(frames) + 1) for _ in range(random.randrange(3))] + [None]:
            attempt += 1
            scripts.append(list(script_of(number, attempt, frames, upto)))
        end = scripts[-1][-1]
        winners.append(Winner(number, attempt, end.frames, end.rows, 0, end.crc))
    ledger, taken = RunLedger("run", "job"), []
    waiting = [iter(script) for script in scripts]
    while waiting:
        script = random.choice(waiting)
        message = next(script, None)
        if message is None:
            waiting.remove(script)
        elif isinstance(message, TaskBegin):
            ledger.begin(message)
        elif isinstance(message, RowsFrame):
            if ledger.rows(message):
                taken.append((message.partition, message.sequence))
        else:
            ledger.end(message)
    ledger.commit(Commit("run", "job"), winners)
    assert sorted(taken) == [(p, s) for p, frames in enumerate(partitions) for s in range(len(frames))]
    assert ledger.complete
    assert ledger.counts.rows == ledger.committed_rows == sum(map(sum, partitions))


def test_receivers_share_a_run_by_partition():
    ledger = RunLedger("run", "job")
    winners = []
    for number in range(4):
        (*messages, end) = script_of(number, number, [5], None)
        winners.append(Winner(number, number, 1, 5, 0, end.crc))
        if number % 2:
            ledger.begin(messages[0])
            assert ledger.rows(messages[1])
            ledger.end(end)
    ledger.commit(Commit("run", "job", 1, 2), winners)
    assert ledger.committed_rows == 10
    with pytest.raises(ProtocolError, match="partition 0"):
        ledger.commit(Commit("run", "job", 0, 2), winners)


def test_a_duplicate_inside_an_attempt_is_dropped():
    ledger = RunLedger("run", "job")
    begin, first, second, end = script_of(0, 1, [2, 3], None)
    ledger.begin(begin)
    assert [ledger.rows(m) for m in (first, first, second, first)] == [True, False, True, False]
    ledger.end(end)
    assert ledger.counts.duplicate_rows == 4


@pytest.mark.parametrize(("frames", "rows", "reason"), [(3, 9, "lost_rows"), (1, 2, "doubled_rows")])
def test_an_end_that_announces_other_counts(frames, rows, reason):
    ledger = RunLedger("run", "job")
    begin, first, second, end = script_of(0, 1, [2, 3], None)
    ledger.begin(begin)
    ledger.rows(first)
    ledger.rows(second)
    with pytest.raises(ProtocolError) as caught:
        ledger.end(TaskEnd("run", "job", 0, 1, frames, rows, end.crc))
    assert caught.value.reason == reason


def test_an_attempt_that_goes_on_after_the_partition_ended():
    ledger = RunLedger("run", "job")
    for message in script_of(0, 1, [2], None):
        {"begin": ledger.begin, "rows": ledger.rows, "end": ledger.end}[message.kind](message)
    begin, first, second = script_of(0, 2, [2, 3], 2)
    ledger.begin(begin)
    assert not ledger.rows(first)
    with pytest.raises(ProtocolError) as caught:
        ledger.rows(second)
    assert caught.value.reason == "recut"
