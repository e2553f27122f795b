"""Compares the ratios of a run with those of an earlier one (a file written by `--json`).

Ratios only: the machine's own speed of the day is in both parts of each and cancels out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

#: a ratio that moved by less than this is noise, whatever its spread
TOLERANCE = 0.10

Key = tuple[str, str, int, str]


@dataclass(frozen=True, slots=True)
class Change:
    """One ratio then and now. `verdict` is slower, faster or same."""

    case: str
    label: str
    peer: str
    then: float
    now: float
    verdict: str


def compare(then: dict[str, Any], now: dict[str, Any]) -> list[Change]:
    """Each ratio that both documents have, the slower ones first.

    It moved when it left the tolerance and the rounds of then and now do not overlap.
    """
    before = dict(_ratios(then))
    changes = []
    for key, (spread, higher) in _ratios(now):
        if key not in before:
            continue
        case, label, _, peer = key
        old = before[key][0]
        verdict = _verdict(old, spread, higher)
        changes.append(Change(case, label, peer, old["median"], spread["median"], verdict))
    order = {"slower": 0, "faster": 1, "same": 2}
    return sorted(changes, key=lambda change: order[change.verdict])


def _ratios(document: dict[str, Any]) -> Iterator[tuple[Key, tuple[dict[str, float], bool]]]:
    for line_up in document["line_ups"]:
        work = line_up["work"]
        for peer, spread in line_up["ratios"].items():
            key = (work["case"], work["label"], work["count"], peer)
            yield key, (spread, line_up["metric"]["higher_is_better"])


def _verdict(then: dict[str, float], now: dict[str, float], higher_is_better: bool) -> str:
    if abs(now["median"] / then["median"] - 1) <= TOLERANCE:
        return "same"
    if now["low"] <= then["high"] and then["low"] <= now["high"]:
        return "same"
    return "faster" if (now["median"] > then["median"]) == higher_is_better else "slower"
