"""The table, the JSON, the comparison with an earlier run, the picture."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from bench import baseline, machine, markdown, report
from bench.numbers import Target, judge
from bench.plot import advantage, draw
from bench.stats import Spread
from tests.bench.line_ups import line_up

MACHINE = {"processor": "a processor", "cores": 2}


def _text(shown: object) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(shown)
    return console.file.getvalue()


def test_table_shows_medians_ratios_and_who_is_absent() -> None:
    made = line_up({"transfer": [6e6, 6e6], "pyzmq": [1e6, 2e6]}, absent={"pynng": "skipped: no pynng"})
    text = _text(report.table([made]))
    assert "6,000 k msg/s" in text
    assert "4.5 × (3–6)" in text
    assert "skipped: no pynng" in text


def test_lost_messages_are_in_the_table() -> None:
    assert "7,654" in _text(report.table([line_up({"pyzmq": [1e6]}, lost=7654)]))


def test_json_can_be_the_next_baseline(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    document = report.as_json([line_up({"transfer": [6.0], "pyzmq": [1.0]})], MACHINE)
    report.write_json(path, document)
    assert report.read_json(path) == json.loads(json.dumps(document))
    (change,) = baseline.compare(report.read_json(path), document)
    assert change.verdict == "same"


@pytest.mark.parametrize(
    ("then", "now", "key", "verdict"),
    [
        ([6.0, 6.1], [4.0, 4.1], "msg_s", "slower"),
        ([6.0, 6.1], [9.0, 9.1], "msg_s", "faster"),
        ([6.0, 6.1], [6.3, 6.4], "msg_s", "same"),
        # the rounds overlap: nothing can be said
        ([4.0, 6.0], [3.0, 4.5], "msg_s", "same"),
    ],
)
def test_baseline_verdict(then: list[float], now: list[float], key: str, verdict: str) -> None:
    ones = [1.0] * len(then)
    before = report.as_json([line_up({"transfer": then, "pyzmq": ones}, key=key)], MACHINE)
    after = report.as_json([line_up({"transfer": now, "pyzmq": ones}, key=key)], MACHINE)
    (change,) = baseline.compare(before, after)
    assert change.verdict == verdict


def test_slower_ones_stand_first() -> None:
    def document(first: float, second: float) -> dict[str, object]:
        rows = [
            line_up({"transfer": [first], "pyzmq": [1.0]}, label="64B"),
            line_up({"transfer": [second], "pyzmq": [1.0]}, label="1KiB"),
        ]
        return report.as_json(rows, MACHINE)

    changes = baseline.compare(document(6, 6), document(6, 2))
    assert [(change.label, change.verdict) for change in changes] == [("1KiB", "slower"), ("64B", "same")]


def test_line_ups_come_back_as_they_were() -> None:
    made = line_up({"transfer": [6.0], "pyzmq": [1.0]}, absent={"raw": "skipped: why"})
    document = json.loads(json.dumps(report.as_json([made], MACHINE)))
    (read,) = report.line_ups_of(document)
    assert (read.work, read.samples, read.absent) == (made.work, made.samples, made.absent)
    assert read.ratio("pyzmq") == made.ratio("pyzmq")


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match="no result of this bench"):
        report.read_json(path)


def test_advantage_is_the_inverse_where_less_is_better() -> None:
    made = line_up({"transfer": [50.0, 40.0], "pyzmq": [100.0, 100.0]}, case="req_rep", key="median_us")
    from bench.cases import case_named

    made.case = case_named("req_rep")
    found = advantage(made, "pyzmq")
    assert found is not None
    assert (found.low, found.high) == (2.0, 2.5)
    assert made.ratio("pyzmq") == Spread(0.45, 0.4, 0.5)


def test_markdown_takes_its_place_in_a_document(tmp_path: Path) -> None:
    path = tmp_path / "benchmarks.md"
    path.write_text(f"before\n{markdown.BEGIN}\nold\n{markdown.END}\nafter\n", encoding="utf-8")
    made = line_up({"transfer": [6.0, 7.0], "pyzmq": [1.0, 1.0]})
    rows = judge([Target("64 B", "push_pull", "64B", 6, "pyzmq")], [made])
    markdown.write(path, markdown.render([made], rows, machine.describe()))
    text = path.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith(f"{markdown.END}\nafter\n")
    assert "old" not in text
    assert "| 64 B | ≥ 6 × pyzmq | 6.5 × (6–7) | 1 | hit |" in text


@pytest.mark.keeps("matplotlib holds its fonts open")
def test_plot_is_a_png(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "ratios.png"
    draw(path, [line_up({"transfer": [6.0, 7.0], "pyzmq": [1.0, 1.0]})], "head")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_machine_names_what_readers_ask_for() -> None:
    where = machine.describe()
    assert {"processor", "cores", "memory_gib", "system", "python", "core", "versions"} <= set(where)
    assert where["cores"] >= 1
    assert "pyzmq" in where["versions"]
