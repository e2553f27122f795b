"""Real processes: what they measure adds up, and what goes wrong in them is told in time."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace

import pytest

from bench.cases import fanout, netem, stream
from bench.cases.timing import throughput
from bench.run import run_line_up
from bench.scene import play
from bench.work import Failed, Skipped, Work
from transfer.transports import core

pytest.importorskip("zmq")

SMALL = Work("push_pull", "1KiB", 1024, 200, 10, ("raw", "pyzmq"))


def _quiet(_: str) -> None:
    """No progress."""


def test_a_line_up_counts_every_message() -> None:
    line_up = run_line_up(SMALL, 2, _quiet)
    assert not line_up.absent
    for peer in SMALL.peers:
        assert len(line_up.samples[peer]) == 2
        assert line_up.lost(peer) == 0
        for sample in line_up.samples[peer]:
            assert sample["msg_s"] * sample["seconds"] == pytest.approx(200)
            assert sample["gb_s"] * sample["seconds"] * 1e9 == pytest.approx(200 * 1024)
            assert sample["cpu_s"] > 0


@pytest.mark.parametrize(
    "work",
    [
        Work("push_pull", "1KiB", 1024, 200, 10, ()),
        Work("push_pull", "64KiB", 65536, 40, 2, ()),
        Work("pair", "64B", 64, 200, 10, ()),
        Work("tensors", "64KiB", 65536, 40, 2, ()),
        Work("tensors", "12×64KiB", 12 * 65536, 10, 2, ()),
        Work("req_rep", "64B", 64, 100, 10, ()),
        Work("asyncio", "64B", 64, 100, 10, ()),
        Work("pub_fanout", "64KiB", 65536, 20, 2, (), 2, {"high_water": 0, "patience": 10.0}),
        Work("burst_tail", "64B", 64, 3, 0, (), 1, {"burst": 100, "compute": 0.01}),
        Work("memory", "1MiB", 1 << 20, 20, 0, (), 1, {"high_water": 4}),
        Work("connections", "20", 64, 20, 0, (), 2),
    ],
    ids=lambda work: f"{work.case}-{work.label}",
)
def test_ours_plays_every_case(work: Work) -> None:
    ours = "transfer" if core.IMPLEMENTATION == "native" else "transfer-pure"
    line_up = run_line_up(replace(work, peers=(ours,)), 1, _quiet)
    assert not line_up.absent
    assert line_up.spread(ours, line_up.metric.key) is not None
    assert line_up.lost(ours) == 0


@pytest.mark.parametrize("peer", ["pyzmq", "raw"])
def test_every_subscriber_is_counted(peer: str) -> None:
    work = Work("pub_fanout", "1KiB", 1024, 20, 2, (peer,), 3, {"high_water": 0, "patience": 10.0})
    sample = fanout.measure(work, peer)
    assert sample["lost"] == 0
    assert sample["msg_s"] * sample["seconds"] == pytest.approx(3 * 20)


def test_what_a_receiver_dropped_is_lost_and_not_counted_as_speed() -> None:
    work = replace(SMALL, count=100)
    receivers = [{"received": 100, "bytes": 6400, "cpu": 0.0}, {"received": 60, "bytes": 3840, "cpu": 0.0}]
    sample = throughput(work, {"seconds": 2.0, "cpu": 1.0}, receivers)
    assert sample["lost"] == 40
    assert sample["msg_s"] == 80


def test_a_role_that_a_peer_lacks_is_skipped_with_the_reason() -> None:
    pytest.importorskip("torch")
    with pytest.raises(Skipped, match="gloo: only send and recv"):
        play(fanout.publisher, fanout.subscriber, "gloo", SMALL)


def test_a_process_that_fails_ends_the_measurement() -> None:
    with pytest.raises(Failed, match="KeyError"):
        play(stream.receiver, stream.sender, "nobody", SMALL)


def test_a_failed_peer_does_not_stop_the_others() -> None:
    line_up = run_line_up(replace(SMALL, peers=("nobody", "raw")), 2, _quiet)
    assert line_up.absent["nobody"].startswith("failed")
    assert len(line_up.samples["raw"]) == 2


def test_silence_ends() -> None:
    with pytest.raises(Failed, match="no result within"):
        play(stream.receiver, stream.sender, "raw", SMALL, patience=0.0)


@pytest.mark.netns
@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_a_delayed_link_delays_and_leaves_nothing_behind() -> None:
    work = Work("netem", "1KiB", 1024, 20, 2, ("raw",))
    try:
        sample = netem.measure(work, "raw")
    except Skipped as reason:
        pytest.skip(str(reason))
    # the reply came outside the link, the messages through it
    assert sample["seconds"] >= netem.DELAY_MS / 1e3
    names = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout
    assert f"-{os.getpid()}" not in names
