"""Targets with what was measured: verdicts, margins, and the pictures of docs/."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import judged
from bench.broker import report
from bench.broker.cases import CASES
from bench.judged import Judged, to_json
from bench.plot import draw_targets
from bench.stats import Spread

ROOT = Path(__file__).parents[2]
SPREAD = Spread(2.0, 1.0, 4.0)


@pytest.mark.parametrize(
    ("limit", "at_least", "hit", "wanted", "margin"),
    [
        (2.0, True, True, "≥ 2 ×", Spread(1.0, 0.5, 2.0)),
        (4.0, True, False, "≥ 4 ×", Spread(0.5, 0.25, 1.0)),
        (2.0, False, True, "≤ 2 ×", Spread(1.0, 0.5, 2.0)),
        (1.0, False, False, "≤ 1 ×", Spread(0.5, 0.25, 1.0)),
        (0.0, True, True, "≥ 0 ×", None),
    ],
)
def test_a_verdict_follows_the_median_and_a_margin_of_1_is_the_target(limit, at_least, hit, wanted, margin):
    one = Judged("x", SPREAD, limit, at_least=at_least)
    assert (one.hit, one.wanted, one.margin) == (hit, wanted, margin)
    assert one.verdict == ("hit" if hit else "missed") and one.shown == "2 (1–4)"


def test_a_file_gives_the_same_targets(tmp_path):
    targets = [Judged("x", SPREAD, 4.0), Judged("y", SPREAD, 5.0, "s", at_least=False)]
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"head": "a machine", "targets": to_json(targets)}), encoding="utf-8")
    assert judged.read(path) == (targets, "a machine")


@pytest.mark.keeps("matplotlib holds its fonts open")
def test_a_picture_names_every_target_and_what_it_missed(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "targets.svg"
    draw_targets(path, [Judged("met", SPREAD, 1.0), Judged("not met", SPREAD, 5.0)], "a machine")
    text = path.read_text(encoding="utf-8")
    assert all(word in text for word in ("met", "not met", "a machine", "2 (1–4) ×; ≥ 5 ×"))


def test_the_brokers_goals_are_judged_by_their_names():
    found = {
        "durable": {"transfer, one process": [{"msg_s": 300.0}], "Redis, one process": [{"msg_s": 100.0}]}
    }
    assert [(one.name, one.shown, one.verdict) for one in report.judge_all(CASES, found)] == [
        ("durable against Redis Streams, always", "3 (3–3)", "missed")
    ]


@pytest.mark.parametrize("name", ["broker", "spark"])
def test_the_pictures_of_the_page_show_what_the_page_says(name):
    targets, head = judged.read(ROOT / "bench" / name / "run.json")
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert f"images/bench-{name}.svg" in page
    picture = (ROOT / "docs" / "images" / f"bench-{name}.svg").read_text(encoding="utf-8")
    assert head[:10] in picture and head[:10] in page
    assert all(one.name in picture and one.wanted in picture.replace("&gt;", ">") for one in targets)
    assert any(not one.hit for one in targets), "misses are shown too"
