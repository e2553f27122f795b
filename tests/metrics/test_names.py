"""docs/metrics.md and the code tell the same names, types and labels."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import transfer
from transfer.metrics.prometheus import FAMILIES

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
#: the broker's are compared where the broker's tests are
ROW = re.compile(r"^\| `(transfer_(?!broker_)\w+)` \| ([^|]*)\| ([^|]+) \|$", re.MULTILINE)
HISTOGRAMS = {"transfer_request_seconds"}


def documented() -> dict[str, tuple[str, tuple[str, ...]]]:
    return {
        name: (kind_of(name), tuple(re.findall(r"`(\w+)`", labels)))
        for name, labels, _ in ROW.findall(DOCUMENT.read_text())
    }


def kind_of(name: str) -> str:
    """As the text says."""
    return "histogram" if name in HISTOGRAMS else "counter" if name.endswith("_total") else "gauge"


def test_the_document_has_every_metric_and_no_other():
    assert documented() == {name: (spec.kind, spec.labels) for name, spec in FAMILIES.items()}


def test_a_scrape_has_every_documented_name_and_no_other():
    registry = CollectorRegistry()
    with transfer.Context(registry=registry):
        text = generate_latest(registry).decode()
    found = set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE))
    assert found == set(documented())


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_names_follow_prometheus_conventions(name):
    spec = FAMILIES[name]
    assert name.startswith("transfer_")
    assert name.endswith("_total") == (spec.kind == "counter")
    assert spec.text.endswith(".")
    assert not re.search(r"_(ms|ns|millis|kb|mb)(_|$)", name), "base units: seconds and bytes"
