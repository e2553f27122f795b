"""What the command line selects and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import machine, report
from bench.cases import MODULES, case_named
from bench.cli import main
from bench.peers import PEERS
from bench.run import plain, select
from tests.bench.line_ups import line_up


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("quick", [True, False])
def test_each_case_has_works_with_known_peers(name: str, quick: bool) -> None:
    case = case_named(name)
    works = case.works(quick)
    assert case.name == name
    assert works
    for work in works:
        assert work.case == name
        assert work.count > 0
        # The last ones are programs of their own, run by their case.
        assert set(work.peers) <= {
            *PEERS,
            "iperf3",
            "ucxx",
            "ucx_perftest",
            "numpy copy",
            "transfer-log",
            "redis",
            "bare file",
        }
        assert case.metric(work).key


@pytest.mark.parametrize(
    ("asked", "label"),
    [("64", "64B"), ("64b", "64B"), ("64 KiB", "64KiB"), ("65536", "64KiB"), ("1mb", "1MiB")],
)
def test_sizes_are_understood(asked: str, label: str) -> None:
    works = select(["push_pull"], [asked], [], quick=True)
    assert {work.label for work in works} == {label}


def test_plain() -> None:
    assert plain("12×64 KiB") == plain("12x64kib")


def test_peers_narrow_the_line_up() -> None:
    works = select(["push_pull"], ["64B"], ["pyzmq"], quick=True)
    assert [work.peers for work in works] == [("pyzmq",)]


def test_variants_of_ours_may_stand_where_ours_does() -> None:
    works = select(["push_pull"], ["1KiB"], ["transfer-pure", "pyzmq"], quick=True)
    assert [set(work.peers) for work in works] == [{"pyzmq", "transfer-pure"}]


def test_transports_stand_where_ours_goes_over_tcp() -> None:
    works = select([], [], [], quick=True, transports=["local", "rdma"])
    for work in works:
        over = {"transfer-local", "transfer-rdma"} & set(work.peers)
        if not case_named(work.case).any_transport:
            assert not over
        elif "transfer" in work.peers:
            assert len(over) == 2, work
            assert len(set(work.peers)) == len(work.peers)


def test_list_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--case", "req_rep"]) == 0
    assert "REQ/REP round trip" in capsys.readouterr().out


def test_unknown_case_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--case", "nonsense"])
    assert "invalid choice" in capsys.readouterr().err


def test_nothing_to_run_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--case", "push_pull", "--size", "3GiB"]) == 1
    assert "no line-up matches" in capsys.readouterr().out


def test_saved_runs_are_shown_together_and_nothing_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, label, ours in (("old", "64B", 1e6), ("new", "64B", 9e6), ("other", "1KiB", 3e6)):
        made = line_up({"transfer": [ours], "pyzmq": [1e6]}, label=label)
        report.write_json(tmp_path / name, report.as_json([made], machine.describe()))
    files = [word for name in ("old", "new", "other") for word in ("--from", str(tmp_path / name))]
    assert main(["--numbers", "--case", "push_pull", *files]) == 0
    shown = capsys.readouterr().out
    assert "9 × (9–9)" in shown
    assert "3 × (3–3)" in shown
    assert "1,000 k msg/s" in shown
    assert "not run" in shown
