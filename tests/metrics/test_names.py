"""A scrape has the metrics of the table, which docs/reference/metrics.md prints."""

from __future__ import annotations

import re

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import transfer
from transfer.metrics.prometheus import FAMILIES


def test_a_scrape_has_every_name_of_the_table_and_no_other():
    registry = CollectorRegistry()
    with transfer.Context(registry=registry):
        text = generate_latest(registry).decode()
    found = set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE))
    assert found == set(FAMILIES)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_names_follow_prometheus_conventions(name):
    spec = FAMILIES[name]
    assert name.startswith("transfer_")
    assert name.endswith("_total") == (spec.kind == "counter")
    assert spec.text.endswith(".")
    assert not re.search(r"_(ms|ns|millis|kb|mb)(_|$)", name), "base units: seconds and bytes"
