"""Ranks of a distributed training (gloo) at a real spool: killed, started again, in other numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="pip install tensor-transfer[torch]")

from tests.cli.feeding import send_run  # noqa: E402
from transfer.spool.admin import SpoolAdmin  # noqa: E402
from transfer.spool.server import Spool  # noqa: E402

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed"),
]

ROWS = 1000
ROOT = Path(__file__).parents[2]


@pytest.fixture
def url(tmp_path):
    with Spool(tmp_path / "spool") as spool:
        send_run(spool.url("run"), [range(400), range(400, ROWS)], frame=70)
        yield spool.url("run")


def run_ranks(url, folder, world, meeting, kill_at=-1):
    """All ranks to their ends: (exit code, output, errors) of each. The last one may be killed."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.torch.rank", url, str(rank), str(world), str(folder), meeting]
            + (["--kill-at", str(kill_at)] if rank == world - 1 else []),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for rank in range(world)
    ]
    try:
        told = [rank.communicate(timeout=120) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait(10)
    return [(rank.returncode, *texts) for rank, texts in zip(ranks, told, strict=True)]


def seen(folder, first=0):
    """The ids of all steps from one on, by step."""
    steps: dict[int, list[int]] = {}
    for path in sorted(folder.glob("ids-*.json")):
        step = int(path.stem.split("-")[1])
        if step >= first:
            steps.setdefault(step, []).extend(json.loads(path.read_text()))
    return steps


def test_a_killed_rank_ends_all_and_the_next_go_on_at_the_exact_row(url, tmp_path):
    folder = tmp_path / "ranks"
    folder.mkdir()
    ended = run_ranks(url, folder, 2, "first", kill_at=10)
    assert ended[1][0] == -9
    assert ended[0][0] != 0, "a rank went on without its peer"
    saved = json.loads((folder / "checkpoint.json").read_text())
    assert saved["step"] == 9  # the last checkpoint before the kill
    before = {step: ids for step, ids in seen(folder).items() if step < 9}
    for path in folder.glob("ids-*.json"):
        path.unlink()
    ended = run_ranks(url, folder, 3, "second")
    assert [code for code, _, _ in ended] == [0, 0, 0], ended
    steps = {json.loads(text)["steps"] for _, text, _ in ended}
    assert len(steps) == 1, "ranks had different numbers of steps"
    ids = Counter(i for step in (*before.values(), *seen(folder).values()) for i in step)
    assert ids == dict.fromkeys(range(ROWS), 2), "two epochs have each row twice"
    with SpoolAdmin(url) as admin:
        group = admin.inspect("run")["groups"]["default"]
        assert group["acknowledged"] == [2, 0]
        recorded = admin.lineage("run")
    assert sum(one.steps for one in recorded) == 9 + steps.pop()


def test_all_ranks_have_equally_many_steps_to_the_end_of_the_rest(url, tmp_path):
    ended = run_ranks(url, tmp_path, 2, "meeting")
    assert [code for code, _, _ in ended] == [0, 0], ended
    # 1000 rows are 31 steps of 32 and a rest of 8, which both share, twice.
    assert [json.loads(text) for _, text, _ in ended] == [{"steps": 64, "again": 0}] * 2
    assert Counter(i for ids in seen(tmp_path).values() for i in ids) == dict.fromkeys(range(ROWS), 2)
