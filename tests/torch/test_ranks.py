"""Ranks of a distributed training (gloo) at a real spool: killed, started again, in other numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="pip install tensor-transfer[torch]")

import numpy as np  # noqa: E402

from tests.cli.run_writer import send_run  # noqa: E402
from transfer.spool import Spool  # noqa: E402
from transfer.spool.client.admin import SpoolAdmin  # noqa: E402
from transfer.spool.format.rows import Layout  # noqa: E402

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


def test_the_example_goes_on_with_another_number_of_ranks(url, tmp_path):
    """examples/ddp.py: two ranks for some steps, then one to the end."""
    layouts = (Layout("x", "dense", "float32", (2,)), Layout("y", "dense", "float32"))

    def make(ids):
        x = np.stack([np.array(ids) % 7, np.array(ids) % 11], axis=1).astype(np.float32)
        return {"x": x, "y": x[:, 0] - x[:, 1]}

    points = url.replace("/run", "/points")
    send_run(points, [range(ROWS)], frame=100, layouts=layouts, make=make)
    program = [sys.executable, "examples/ddp.py", points, "--checkpoint", str(tmp_path / "ddp.pt")]

    def run(*options):
        done = subprocess.run(
            [*program, *options], capture_output=True, text=True, timeout=80, cwd=ROOT, check=False
        )
        assert done.returncode == 0, done.stderr
        return sorted(done.stdout.splitlines())

    first = run("--steps", "3")
    assert [line.partition(", loss")[0] for line in first] == [
        f"rank {rank}: 3 steps, epoch 0, row 384" for rank in (0, 1)
    ]
    (last,) = run("--ranks", "1")
    # 616 rows of the first epoch and 1000 of the second, 64 a step.
    assert last.startswith("rank 0: 26 steps, epoch 2, row 0,")


def test_a_killed_trainer_goes_on_behind_what_it_acknowledged(url, tmp_path):
    """Without its checkpoint too: the spool knows how far it was, and tells how many rows come again."""
    (killed,) = run_ranks(url, tmp_path, 1, "first", kill_at=10)
    assert killed[0] == -9
    (tmp_path / "checkpoint.json").unlink()
    before = {step: ids for step, ids in seen(tmp_path).items() if step < 9}  # acknowledged after the ninth
    for path in tmp_path.glob("ids-*.json"):
        path.unlink()
    ((code, told, said),) = run_ranks(url, tmp_path, 1, "second")
    assert code == 0, said
    assert json.loads(told)["again"] >= 16, "one step at least was handed out and not acknowledged"
    ids = Counter(i for step in (*before.values(), *seen(tmp_path).values()) for i in step)
    assert ids == dict.fromkeys(range(ROWS), 2)
