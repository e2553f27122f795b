"""The pure parts of the broker's benchmarks, and a short run of each mode."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from bench.broker import report
from bench.broker.__main__ import main
from bench.broker.case import Case, Goal, Peer
from transfer.broker.bench import usage
from transfer.broker.bench.figures import HEAD, Latency, Result, Samples, percentile, row
from transfer.broker.bench.measurement import measure
from transfer.broker.bench.pacing import Pace, PacingSteps
from transfer.broker.bench.payloads import Opened, Payloads
from transfer.broker.bench.plan import CLASSES, TRANSIENT, Mode, Plan, matrix
from transfer.broker.bench.processes import Processes, Stage, until_done
from transfer.broker.bench.target import Running, Started, started
from transfer.broker.bench.usage import Usage
from transfer.broker.core.topic_patterns import Kind, pattern
from transfer.transports.errors import AddressError, Again, InternalError, OptionError, UsageError

# --- plans ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"payload_class": "huge"},
        {"duration": 0.0},
        {"connections": 0},
        {"fanout_subs": 1000},
        {"in_flight": 0},
        {"mode": Mode.MIXED, "mixed_topics": 1},
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(OptionError):
        Plan(**wrong)


def test_the_matrix_has_every_mode_with_every_class():
    common = Plan(duration=3.0, connections=2)
    plans = list(matrix(common, compress=False))
    assert [(plan.mode, plan.payload_class) for plan in plans] == [
        (mode, name) for mode in Mode for name in CLASSES
    ]
    assert {(plan.duration, plan.connections) for plan in plans} == {(3.0, 2)}
    packed = list(matrix(common, compress=True))
    assert len(packed) == 2 * len(plans) and sum(plan.compress for plan in packed) == len(plans)
    assert len({plan.name for plan in packed}) == len(packed)


def test_what_is_kept_of_the_topics():
    transient = [pattern(Kind.PATHS, text) for text in TRANSIENT]

    def kept(plan):
        return [not any(one.matches(topic) for one in transient) for topic in plan.topics()]

    assert kept(Plan(Mode.DIRECT_ACK, connections=2)) == [True, True]
    assert kept(Plan(Mode.FANOUT, connections=2)) == [False, False]
    assert kept(Plan(Mode.MIXED, mixed_topics=4)) == [True, False, True, False]


# --- figures ----------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 10**10), min_size=1, max_size=300), st.sampled_from([50, 95, 99, 100]))
@settings(max_examples=50)
def test_percentiles_are_values_that_were_measured(values, percent):
    samples = Samples()
    for value in values:
        samples.add(value)
    exact = sorted(values)[max(1, math.ceil(len(values) * percent / 100)) - 1]
    assert exact * 0.998 - 1 <= percentile(samples.counts, percent) <= exact and samples.worst == max(values)


def test_latencies_of_several_receivers_weigh_the_same():
    many, few = Samples(), Samples()
    for _ in range(32):
        many.add(1000)
    for _ in range(8):
        few.add(8_192_000)
    assert Latency.of([many, few]) == Latency(1.0, 8192.0, 8192.0, 8192.0)
    assert Latency.of([Samples()]) is None


RESULT = Result(
    plan=Plan(Mode.FANOUT, "small", duration=2.0, fanout_subs=4),
    messages=1000,
    delivered=3999,
    lost=1,
    seconds=2.0,
    latency=Latency(1500.0, 2000.0, 250_000.0, 300_000.0),
    before=Usage(1.0, 40_000_000, 50_000_000, 1000, 1000),
    after=Usage(1.5, 60_000_000, 70_000_000, 3000, 96_000),
)


def test_a_result_as_a_row():
    assert dict(zip(HEAD, row(RESULT), strict=True)) == {
        "what": "fanout 1→4, small",
        "messages/s": "500",
        "GB/s": "0.00205",
        "p50 ms": "1.5",
        "p95 ms": "2",
        "p99 ms": "250",
        "max ms": "300",
        "lost": "1",
        "CPU µs/msg": "500",
        "CPU %": "25",
        "RSS MB": "60",
        "peak MB": "70",
        "blocks/msg": "2",
        "allocs/msg": "95",
    }
    unknown = replace(RESULT, latency=None, before=Usage(), after=Usage())
    assert row(unknown)[3:7] == ("-",) * 4 and row(unknown)[8:] == ("-",) * 6


def test_a_result_as_json():
    told = json.loads(json.dumps(RESULT.as_data()))
    assert told["plan"]["mode"] == "fanout" and told["lost"] == 1
    assert told["latency_us"]["p95"] == 2000.0
    assert told["broker"] == {
        "cpu_seconds": 0.5,
        "cpu_us_per_message": 500.0,
        "resident_bytes": 60_000_000,
        "peak_resident_bytes": 70_000_000,
        "grown_blocks_per_message": 2.0,
        "allocations_per_message": 95.0,
    }


# --- usage, payloads, pace --------------------------------------------------------------------------


def test_usage_of_a_process():
    ours, seen = usage.of_this_process(), usage.of_process(os.getpid())
    assert ours.cpu is not None and seen.cpu is not None and abs(ours.cpu - seen.cpu) < 1
    assert seen.resident is not None and seen.peak is not None and 0 < seen.resident <= seen.peak
    assert ours.blocks and seen.blocks is None
    with pytest.raises(UsageError):
        usage.of_process(2**22 + 1)


_COUNTING = """
from transfer.transports.core.native.allocations import allocations, count_allocations

def counted(make):
    before = allocations()
    kept = make()
    return allocations() - before

assert allocations() is None
count_allocations()
count_allocations()
nothing = min(counted(lambda: None) for _ in range(9))
print([min(counted(make) for _ in range(9)) - nothing for make in (
    lambda: bytes(100), lambda: bytes(10_000), lambda: bytes(10_000_000), lambda: bytearray(100),
)])
"""


def test_allocations_are_counted_once_each():
    pytest.importorskip(
        "transfer.transports.core.native.allocations", reason="the compiled core is not built"
    )
    code = [sys.executable, "-c", _COUNTING]
    ended = subprocess.run(code, capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(ended.stdout) == [1, 1, 1, 2]


def test_usage_of_metrics():
    text = "# HELP x\nprocess_cpu_seconds_total 1.25\nprocess_resident_memory_bytes 4.5e+07\nother 3\n"
    assert usage.of_metrics(text) == Usage(1.25, 45_000_000)
    assert usage.of_metrics("other 3\n") == Usage()


@pytest.mark.parametrize("compress", [False, True])
def test_a_payload_tells_its_age_and_publisher(compress):
    if compress:
        pytest.importorskip("lz4")
    payload = Payloads(1, 7, 4096, compress=compress).next()
    assert (len(payload) < 3000) is compress and (len(payload) == 4096) is not compress
    seen = Opened(1, compress=compress).read(memoryview(payload))
    assert seen is not None and seen[1] == 7 and 0 <= seen[0] < 10**10
    assert Opened(2, compress=compress).read(payload) is None  # left over of another measurement
    plain = Payloads(1, 7, 4096, compress=False).next()
    assert (Opened(1, compress=compress).read(plain) is None) is compress


def test_publishers_keep_step_with_receivers():
    with Processes() as crew:
        reading, writing = crew.pipe()
        pace, steps = Pace([reading], in_flight=4, copies=2), PacingSteps({0: writing}, 3)
        for _ in range(4):
            pace.take(0.0)
        for _ in range(5):
            steps.took(0)
        pace.take(0.0)  # three were told, which is one of two copies
        with pytest.raises(Again):
            pace.take(0.0)
        steps.took(0)
        pace.take(0.0)


def test_addresses_of_a_running_broker():
    assert Running(ttp="[::1]:59321").ttp == ("::1", 59321)
    assert Running(pid=os.getpid()).usage().resident
    for wrong in ({"ttp": "here"}, {"url": "broker:9180"}):
        with pytest.raises(AddressError):
            Running(**wrong)
    with pytest.raises(UsageError):
        Running(url="http://127.0.0.1:1")


# --- the development benchmarks ---------------------------------------------------------------------


def test_goals_are_judged_by_the_better_way_of_each_round():
    def peer(name, family):
        return Peer(name, family, lambda _: {})

    goals = (Goal("x", 3, against="other"), Goal("x", 100, "u"), Goal("x", 9, "u", at_least=False))
    case = Case("c", "", "x", "u", (peer("a", "transfer"), peer("b", "transfer"), peer("o", "other")), goals)
    found = {
        "c": {"a": [{"x": 8.0}, {"x": 2.0}], "b": [{"x": 4.0}, {"x": 12.0}], "o": [{"x": 2.0}, {"x": 3.0}]}
    }
    judged = [(one.name, one.wanted, one.shown, one.verdict) for one in report.judge_all([case], found)]
    assert judged == [
        ("c against other", "≥ 3 ×", "4 (4–4)", "hit"),
        ("c, x", "≥ 100 u", "10 (8–12)", "missed"),
        ("c, x", "≤ 9 u", "3 (2–4)", "hit"),
    ]
    found["c"]["o"] = "skipped: not installed"
    assert [one.name for one in report.judge_all([case], found)] == ["c, x", "c, x"]
    rows = report.peer_rows(case, found)
    assert rows[0][:3] == ("c", "a", "5") and rows[2][2] == "skipped: not installed"


def test_every_case_is_listed(capsys):
    assert main(["--list"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert {"durable", "durable_topics", "ttp_small", "recovery", "idle_native"} <= set(names)


# --- processes --------------------------------------------------------------------------------------


def fails(stage: Stage) -> None:
    stage.send("ready")
    stage.receive()
    raise UsageError("not like that")


def waits(stage: Stage) -> None:
    stage.send("ready")
    stage.receive()


def test_a_failed_process_ends_a_measurement():
    with pytest.raises(InternalError, match="not like that"), Processes() as crew:
        members = [crew.add(waits), crew.add(fails)]
        for member in members:
            assert member.receive() == "ready"
        members[1].send("go")
        until_done(members[:1], 20.0, others=members[1:])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("bench")


def short(target: Started, plan: Plan) -> Result:
    result = measure(plan, target)
    assert result.messages > 0 and result.lost == 0
    assert result.delivered == result.messages * plan.copies
    assert result.latency is not None and result.cpu is not None and result.after.peak
    times = [result.latency.p50, result.latency.p95, result.latency.p99, result.latency.worst]
    assert all(lower <= higher for lower, higher in pairwise([0.0, *times]))
    return result


def test_a_short_run_of_each_mode(folder):
    pytest.importorskip("lz4")
    with Processes() as crew:
        target = started(crew, folder)
        short(target, Plan(Mode.DIRECT_ACK, duration=0.2, connections=2, in_flight=1))
        short(target, Plan(Mode.FANOUT, "medium", compress=True, duration=0.2, fanout_subs=2))
        short(target, Plan(Mode.MIXED, duration=0.2, mixed_topics=3))
        target.end()
