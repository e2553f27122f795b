"""Mutual TLS 1.3 and a token: PUSH to PULL compared with the same without TLS and with Python's TLS sockets,
and how many connections a core can accept."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path

from bench.cases.connections import receiver, senders
from bench.cases.stream import measure
from bench.scene import play
from bench.work import KIB, MIB, Case, Metric, Sample, Work

PEERS = ("transfer-tls", "transfer", "raw-tls", "raw")


def works(quick: bool) -> list[Work]:
    less = 5 if quick else 1

    def work(label: str, size: int, count: int) -> Work:
        count = max(8, count // less)
        return Work("tls_push_pull", label, size, count, max(2, count // 20), PEERS)

    return [work("1KiB", KIB, 300_000), work("64KiB", 64 * KIB, 20_000), work("1MiB", MIB, 2_000)]


def with_certificates(work: Work, folder: str) -> Work:
    from transfer.certificates import Authority

    authority = Authority(Path(folder))
    issued = authority.issue(ends=1)
    params = {"cert": issued.certificate, "key": issued.key, "authority": authority.path}
    return replace(work, params=params)


def set_security(work: Work) -> None:
    """Sets the environment, which `transfer` reads when it makes a context."""
    for name in ("cert", "key"):
        os.environ[f"TRANSFER_TLS_{name.upper()}"] = work.params[name]
    os.environ["TRANSFER_TLS_CA"] = work.params["authority"]
    os.environ["TRANSFER_TOKEN"] = "a118ff65950938e89c41f95218ca761d"


def measure_stream(work: Work, peer: str) -> Sample:
    with tempfile.TemporaryDirectory() as folder:
        return measure(with_certificates(work, folder), peer)


def connection_works(quick: bool) -> list[Work]:
    count = 400 if quick else 3_000
    return [Work("tls_connections", "mutual", 64, count, 0, ("transfer-tls", "transfer"), 2)]


def measure_connections(work: Work, peer: str) -> Sample:
    """Measures the accepting process, which uses one core at most: its Python has one GIL."""
    with tempfile.TemporaryDirectory() as folder:
        received, sent = play(receiver, senders, peer, with_certificates(work, folder))
    count = sum(outcome["connections"] for outcome in sent)
    return {
        "each_cpu_s": count / received["cpu"],
        "connections_s": count / received["seconds"],
        "kib_each": received["grown"] / count / 1024,
        "connections": count,
    }


def connections_metric(_: Work) -> Metric:
    return Metric("each_cpu_s", "connections / CPU s", True)


CASES = {
    "tls_push_pull": Case(
        "tls_push_pull", "PUSH→PULL by mutual TLS 1.3", works, measure_stream, any_transport=False
    ),
    "tls_connections": Case(
        "tls_connections",
        "connections accepted by mutual TLS 1.3 and a token, for each CPU second",
        connection_works,
        measure_connections,
        connections_metric,
        (Metric("connections_s", "connections/s", True), Metric("kib_each", "KiB each", False)),
        any_transport=False,
    ),
}
