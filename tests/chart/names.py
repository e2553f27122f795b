"""What really exists, for the chart to name: variables that are read, options of the broker, metrics."""

from __future__ import annotations

import functools
import re

import transfer.config
import transfer.transports.config
from transfer.broker.config.options import OPTIONS
from transfer.broker.status import FAMILIES as BROKER_FAMILIES
from transfer.metrics.families import FAMILIES

#: of docs/security.md, in the words in which it was agreed on
SECURITY = {
    "TRANSFER_TLS_CERT", "TRANSFER_TLS_KEY", "TRANSFER_TLS_CA", "TRANSFER_TLS_CLIENTS",
    "TRANSFER_TLS_SERVER_NAME", "TRANSFER_TOKEN_FILE", "TRANSFER_UNAUTHENTICATED", "TRANSFER_ENCRYPT",
}  # fmt: skip
#: labels that Prometheus, its operator and the kubelet give
TARGET_LABELS = {"job", "namespace", "pod", "service", "instance", "container", "endpoint", "le"}
#: metrics of others that alerts and the dashboard look at, and their labels
OTHERS = {
    "up": set[str](),
    "kubelet_volume_stats_available_bytes": {"persistentvolumeclaim"},
    "kubelet_volume_stats_capacity_bytes": {"persistentvolumeclaim"},
    "process_cpu_seconds_total": set[str](),
    "process_resident_memory_bytes": set[str](),
}


@functools.cache
def known_variables() -> frozenset[str]:
    """Every variable that our code reads, as its tables say."""
    tables = f"{transfer.config.__doc__}{transfer.transports.config.__doc__}"
    named = set(re.findall(r"\b([A-Z][A-Z0-9]*_[A-Z0-9_]+)\b", tables))
    options = {f"TRANSFER_BROKER__{choice.name.upper().replace('.', '__')}" for choice in OPTIONS}
    return frozenset(named | options | SECURITY | set(transfer.transports.config.RDMA_VARIABLES))


@functools.cache
def known_metrics() -> dict[str, frozenset[str]]:
    """The series that exist, and their labels. A histogram is three of them."""
    found: dict[str, frozenset[str]] = {}
    for name, family in {**FAMILIES, **BROKER_FAMILIES}.items():
        suffixes = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
        found |= {f"{name}{suffix}": frozenset(family.labels) for suffix in suffixes}
    return found | {name: frozenset(labels) for name, labels in OTHERS.items()}
