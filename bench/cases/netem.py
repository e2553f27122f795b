"""Large messages between two network namespaces with a delay of 1 ms each way, against iperf3."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from unittest.mock import patch

from bench.cases import stream
from bench.delayed_link import DelayedLink
from bench.work import GIGABYTES_PER_SECOND, MIB, PATIENCE, Case, Failed, Metric, Sample, Skipped, Work

DELAY_MS = 1.0


def measure(work: Work, peer: str) -> Sample:
    """Builds the link, measures, removes it. The receiver is in the first namespace."""
    with DelayedLink(DELAY_MS) as link:
        if peer == "iperf3":
            return _iperf3(link, work)
        placed = replace(work, params={"host": link.addresses[0], "netns": link.names})
        # Nothing else is in these namespaces, and their addresses are not the loopback's.
        with patch.dict(os.environ, TRANSFER_UNAUTHENTICATED="allow"):
            return stream.measure(placed, peer)


def _iperf3(link: DelayedLink, work: Work) -> Sample:
    """One flow of as many bytes, by the receiver's count."""
    try:
        server = subprocess.Popen(
            [*link.inside(0), "iperf3", "--server", "--one-off", "--json", "--bind", link.addresses[0]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except FileNotFoundError:
        raise Skipped("iperf3 is not installed") from None
    try:
        link.wait_for_listener(0, 5201)
        client = subprocess.run(
            [
                *link.inside(1),
                "iperf3",
                "--client",
                link.addresses[0],
                "--bytes",
                str(work.size * work.count),
                "--json",
            ],
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
        if client.returncode != 0:
            raise Failed(f"iperf3: {client.stdout.decode()[-200:]}")
        end = json.loads(client.stdout)["end"]
    finally:
        server.kill()
        server.communicate()
    received = end["sum_received"]
    return {"gb_s": received["bits_per_second"] / 8e9, "seconds": received["seconds"]}


def metric(_: Work) -> Metric:
    return GIGABYTES_PER_SECOND


def works(quick: bool) -> list[Work]:
    count = 8 if quick else 40
    return [Work("netem", "64MiB", 64 * MIB, count, 4, ("transfer", "iperf3", "raw", "pyzmq"))]


CASES = {
    "netem": Case(
        "netem",
        "two namespaces, 1 ms delay, against one flow of iperf3",
        works,
        measure,
        metric,
        any_transport=False,
    )
}
