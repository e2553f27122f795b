"""The project's targets: which ratios, and their bounds. `python -m bench --numbers`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from bench.cases import case_named
from bench.peers import OURS
from bench.run import LineUp
from bench.stats import Spread
from bench.work import Work


@dataclass(frozen=True, slots=True)
class Target:
    """`ours` ÷ `theirs` of the number `key` must reach `bound`; without `theirs` the number itself.

    An empty `key` means the main number of the case.
    """

    text: str
    case: str
    label: str
    bound: float
    theirs: str = ""
    ours: str = "transfer"
    key: str = ""
    at_least: bool = True
    unit: str = "×"


def _at_most(text: str, case: str, label: str, bound: float, key: str, unit: str) -> Target:
    return Target(text, case, label, bound, key=key, at_least=False, unit=unit)


TARGETS = (
    Target("PUSH→PULL 64 B", "push_pull", "64B", 6, "pyzmq"),
    Target("PUSH→PULL 1 KiB", "push_pull", "1KiB", 3, "pyzmq"),
    Target("64 KiB, copy=False", "push_pull", "64KiB", 1.2, "pyzmq"),
    Target("64 KiB, copy=False", "push_pull", "64KiB", 0.8, "raw"),
    Target("1 MiB, copy=False", "push_pull", "1MiB", 0.95, "raw"),
    Target("1 MiB, copy=False", "push_pull", "1MiB", 1, "pyzmq"),
    Target("TLS, 1 MiB", "tls_push_pull", "1MiB", 0.6, "transfer", ours="transfer-tls"),
    Target("TLS, 1 MiB", "tls_push_pull", "1MiB", 1, "raw-tls", ours="transfer-tls"),
    Target(
        "mutual TLS and token",
        "tls_connections",
        "mutual",
        500,
        ours="transfer-tls",
        unit="connections / CPU s",
    ),
    Target("1 MiB, tensors", "tensors", "1MiB", 0.95, "raw"),
    Target("1 MiB, tensors", "tensors", "1MiB", 1, "pyzmq"),
    Target("64 MiB, copy=False", "push_pull", "64MiB", 0.95, "raw"),
    Target("64 MiB, copy=False", "push_pull", "64MiB", 1.8, "pyzmq"),
    Target("64 MiB, tensors", "tensors", "64MiB", 0.95, "raw"),
    Target("64 MiB, tensors", "tensors", "64MiB", 1.8, "pyzmq"),
    Target("REQ/REP 64 B, median", "req_rep", "64B", 0.75, "pyzmq", at_least=False),
    Target("REQ/REP 64 B, median", "req_rep", "64B", 1.15, "raw", at_least=False),
    Target(
        "REQ/REP 64 B, median, spinning", "req_rep", "64B", 0.4, "pyzmq", ours="transfer-spin", at_least=False
    ),
    Target("PUB 1→8, 10 MiB", "pub_fanout", "10MiB", 1.5, "pyzmq"),
    Target("asyncio PUSH→PULL 64 B", "asyncio", "64B", 5, "pyzmq"),
    Target(
        "ZmqInterface, push to a callback of batches, 64 B",
        "interface_push",
        "64B",
        1e6,
        ours="interface-batch",
        unit="messages/s",
    ),
    Target(
        "ZmqInterface, request 64 B, median",
        "interface_request",
        "64B",
        1.3,
        "transfer",
        ours="interface",
        at_least=False,
    ),
    Target(
        "ZmqInterface, 900 futures and 100 to a dead peer",
        "interface_futures",
        "64B",
        1.5,
        ours="interface",
        at_least=False,
        unit="× the ideal time",
    ),
    Target("RPC of Mooncake, 64 B", "push_pull", "64B", 100, "mooncake"),
    Target("RPC of Mooncake, 1 MiB", "push_pull", "1MiB", 10, "mooncake"),
    _at_most("last of a burst ÷ lone, median", "burst_tail", "64B", 1.3, "median_ratio", "×"),
    _at_most("last of a burst ÷ lone, p99", "burst_tail", "64B", 1.3, "p99_ratio", "×"),
    _at_most("64 MiB received and dropped, growth", "memory", "64MiB", 3, "grown_messages", "messages"),
    Target("dict of 12 × 64 KiB", "tensors", "12×64KiB", 1.5, "pyzmq"),
    _at_most("REQ/REP p99.9 during 64 MiB ÷ idle", "req_rep_under_load", "64B", 10, "slowdown", "×"),
    Target("UCX over TCP, PUSH→PULL 64 B", "ucx_push_pull", "64B", 1, "ucxx", ours="transfer-ucx"),
    Target("UCX over TCP, PUSH→PULL 1 MiB", "ucx_push_pull", "1MiB", 1, "ucxx", ours="transfer-ucx"),
    Target(
        "UCX over TCP, REQ/REP 64 B, median",
        "ucx_req_rep",
        "64B",
        1,
        "ucxx",
        ours="transfer-ucx",
        at_least=False,
    ),
    Target("same host, 64 MiB tensor", "local_tensors", "64MiB", 0.8, "numpy copy", ours="transfer-local"),
    Target("same host, 64 MiB tensor", "local_tensors", "64MiB", 2, "transfer", ours="transfer-local"),
    *(
        Target(
            f"same host, context.empty {label}",
            "local_empty",
            label,
            200,
            ours="transfer-local",
            at_least=False,
            unit="µs",
        )
        for label in ("1MiB", "64MiB", "1GiB", "4GiB")
    ),
    # The same as above by the transport that a context chooses for peers on one host.
    Target(
        "same host, REQ/REP 64 B, median",
        "req_rep",
        "64B",
        1.15,
        "raw",
        ours="transfer-local",
        at_least=False,
    ),
    Target("same host, PUB 1→8, 10 MiB", "pub_fanout", "10MiB", 1.5, "pyzmq", ours="transfer-local"),
    Target("same host, RPC of Mooncake, 1 MiB", "push_pull", "1MiB", 10, "mooncake", ours="transfer-local"),
    Target("same host, 64 B", "local_push_pull", "64B", 1, "transfer", ours="transfer-local"),
    *(
        Target(
            f"same host, {text}, CPU",
            "local_push_pull",
            label,
            bound,
            "transfer",
            ours="transfer-local",
            key="cpu_s",
            at_least=False,
        )
        for text, label, bound in (("64 B", "64B", 1), ("64 KiB", "64KiB", 0.7))
    ),
    Target("same host, idle", "local_idle", "", 1, ours="transfer-local", at_least=False, unit="%"),
    Target("64 MiB over 1 ms delay", "netem", "64MiB", 0.9, "iperf3"),
    _at_most("connections, resident for each", "connections", "10000", 32, "kib_each", "KiB"),
    _at_most("import transfer", "import", "", 60, "extra_ms", "ms"),
)


@dataclass(frozen=True, slots=True)
class Row:
    """A target and its result. `verdict` is hit, missed, or not measured with the reason."""

    target: Target
    measured: Spread | None
    verdict: str
    #: CPU seconds of ours ÷ theirs, where both are known
    cpu: float | None = None


def works_for(targets: Iterable[Target], quick: bool) -> list[Work]:
    """Returns the line-ups that the targets need, each with only the needed peers."""
    needed: dict[tuple[str, str, int], tuple[Work, list[str]]] = {}
    for target in targets:
        work = _work_of(target, quick)
        _, peers = needed.setdefault((work.case, work.label, work.count), (work, []))
        peers.extend(peer for peer in (target.ours, target.theirs) if peer and peer not in peers)
    return [replace(work, peers=tuple(peers)) for work, peers in needed.values()]


def _work_of(target: Target, quick: bool) -> Work:
    """Returns the line-up with both peers of the target."""
    for work in case_named(target.case).works(quick):
        # a quick run opens fewer connections under another label
        same = work.label == target.label or target.case == "connections"
        if same and _stands_in(work, target.ours) and (not target.theirs or target.theirs in work.peers):
            return work
    raise LookupError(f"no line-up of {target.case} {target.label} has {target.ours} and {target.theirs}")


def _stands_in(work: Work, peer: str) -> bool:
    """Whether the work has the peer, or has `transfer`, of which it is a variant."""
    return peer in work.peers or (peer.startswith(f"{OURS}-") and OURS in work.peers)


def judge(targets: Iterable[Target], line_ups: Sequence[LineUp]) -> list[Row]:
    """Returns a row for each target, in order."""
    return [_judge(target, line_ups) for target in targets]


def _judge(target: Target, line_ups: Sequence[LineUp]) -> Row:
    for line_up in line_ups:
        work = line_up.work
        if work.case != target.case or (work.label != target.label and target.case != "connections"):
            continue
        if target.ours in work.peers and (not target.theirs or target.theirs in work.peers):
            return _judge_by(target, line_up)
    return Row(target, None, "not run")


def _judge_by(target: Target, line_up: LineUp) -> Row:
    for peer in (target.ours, target.theirs):
        if peer in line_up.absent:
            return Row(target, None, f"{peer} {line_up.absent[peer]}")
    lost = line_up.lost(target.ours)
    if lost:
        return Row(target, None, f"missed: {lost} messages lost")
    key = target.key or line_up.metric.key
    measured = (
        line_up.ratio(target.theirs, target.ours, key) if target.theirs else line_up.spread(target.ours, key)
    )
    if measured is None:
        return Row(target, None, "not measured")
    reached = measured.median >= target.bound if target.at_least else measured.median <= target.bound
    cpu = line_up.ratio(target.theirs, target.ours, "cpu_s") if target.theirs else None
    return Row(target, measured, "hit" if reached else "missed", cpu.median if cpu else None)
