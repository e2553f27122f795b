"""`transfer runs` asks a spool that another process has."""

from __future__ import annotations

import json

import pytest

from tests.cli.run_writer import send_run
from tests.cli.test_serve import free_port, served
from transfer.spool import RowStream
from transfer.spool.client.admin import SpoolAdmin


@pytest.fixture
def spool(start, tmp_path):
    """run://HOST:PORT of a spool with the sealed run "one", ids 0 to 99 in two partitions, frames of ten."""
    url = served(start("serve", "--spool", tmp_path / "spool", "--bind", "127.0.0.1:0"))
    send_run(f"{url}/one", [list(range(55)), list(range(55, 100))])
    return url


def train(url, batches, *, group="default", shuffle=None, world=1):
    """Reads so many batches of eight rows and acknowledges them; their ids."""
    ids = []
    with RowStream(
        url, 8 // world, group=group, epochs=9, shuffle=shuffle, world_size=world, timeout=20
    ) as rows:
        for _, batch in zip(range(batches), rows, strict=False):
            ids.append(batch["id"].tolist())
        rows.acknowledge()
    return ids


def lines_of(output: bytes) -> list[list[str]]:
    return [line.split() for line in output.decode().splitlines()]


def test_list_is_a_table_of_all_runs(spool, run):
    send_run(f"{spool}/half", [list(range(20))], done=False)
    train(f"{spool}/one", 6, group="a")
    train(f"{spool}/one", 14, group="b")
    code, output, said = run("runs", "list", spool)
    assert code == 0, said
    head, half, one = lines_of(output)
    assert head == [
        "name",
        "state",
        "kind",
        "delivery",
        "rows",
        "kept",
        "staged",
        "partitions",
        "idle",
        "groups",
    ]
    assert half[:10] == ["half", "open", "batch", "committed", "0", "0", "B", "320", "B", "0"]
    assert (half[11], half[12:]) == ("s", ["-"])
    assert one[:9] == ["one", "sealed", "batch", "committed", "100", "1.6", "kB", "-", "2"]
    assert " ".join(one[11:]) == "a: 52 behind, b: done"
    assert "on the disk: " in said


def test_list_as_json_is_an_object_a_run(spool, run):
    train(f"{spool}/one", 6)
    code, output, _ = run("runs", "list", spool.removeprefix("run://"), "--json")
    told = json.loads(output)
    assert code == 0
    assert (told["name"], told["state"], told["rows"], told["frames"]) == ("one", "sealed", 100, 11)
    group = told["groups"]["default"]
    assert (group["acknowledged"], group["behind"]) == ([0, 48], 52)
    assert group["delivered"] >= [0, 48]  # with what was fetched ahead
    assert [json.loads(run("runs", "list", f"{spool}/one", "--json")[1])["name"]] == ["one"]
    code, output, said = run("runs", "list", f"{spool}/two", "--json")
    assert (code, output, said) == (2, b"", "transfer: there is no run 'two'\n  hint: there are: one\n")
    assert told["full"] == ""  # else why writers wait


def test_inspect_tells_columns_groups_readers_and_jobs(spool, run):
    train(f"{spool}/one", 6)
    with RowStream(f"{spool}/one", 8, group="live", timeout=20) as rows:
        next(iter(rows))
        code, output, said = run("runs", "inspect", f"{spool}/one")
    assert code == 0, said
    lines = lines_of(output)
    assert ["rows", "100", "in", "11", "frames", "of", "2", "partitions"] in lines
    assert ["id", "dense", "int64"] in lines and ["x", "dense", "float32", "2"] in lines
    (group,) = (line for line in lines if line[:1] == ["default"])
    assert group[1:5] == ["epoch", "0,", "row", "48"] and group[9:13] == ["52", "1", "0", "-"]
    assert ["live", "0", "of", "1"] in lines

    send_run(f"{spool}/half", [list(range(20))], done=False)
    assert ["job", "1", "1", "20"] in lines_of(run("runs", "inspect", f"{spool}/half")[1])
    told = json.loads(run("runs", "inspect", f"{spool}/half", "--json")[1])
    assert told["jobs"] == {"job": {"attempts": 1, "ended": 1, "rows": 20}}
    assert (told["staged_rows"], told["rows"], told["readers"]) == (20, 0, [])


def test_delete_asks_and_does_what_was_answered(spool, run):
    code, _, said = run("runs", "delete", f"{spool}/one", stdin=b"n\n")
    assert code == 1
    assert said == "Delete run one (sealed, 100 rows, 1.6 kB)? [y/N] transfer: nothing was deleted\n"
    assert run("runs", "delete", f"{spool}/one", stdin=b"")[0] == 1  # nobody who could be asked
    with SpoolAdmin(spool) as admin:
        assert [one["name"] for one in admin.overview()["runs"]] == ["one"]
        code, output, _ = run("runs", "delete", f"{spool}/one", stdin=b"y\n")
        assert (code, output) == (0, b"deleted run one: 100 rows, 1.6 kB\n")
        assert admin.overview()["runs"] == []
    code, _, said = run("runs", "delete", f"{spool}/one", "--yes")
    assert code == 2 and said == "transfer: there is no run 'one'\n  hint: there are: none\n"


def test_delete_of_a_run_that_is_read_needs_force(spool, run):
    with RowStream(f"{spool}/one", 8, timeout=20) as rows:
        next(iter(rows))
        code, _, said = run("runs", "delete", f"{spool}/one", "--yes")
        assert code == 2 and "has 1 readers" in said and "--force" in said
        code, output, _ = run("runs", "delete", f"{spool}/one", "--yes", "--force", "--json")
    assert code == 0 and json.loads(output) == {"deleted": "one", "rows": 100, "bytes": 1600}


def test_groups_and_forget_group(spool, run):
    train(f"{spool}/one", 6, group="a")
    with RowStream(f"{spool}/one", 8, group="b", timeout=20) as rows:
        next(iter(rows))
        head, a, b = lines_of(run("runs", "groups", f"{spool}/one")[1])
        words = "name acknowledged delivered rows behind shards never came holds idle readers"
        assert head == words.split()
        assert a[:5] == ["a", "epoch", "0,", "row", "48"] and a[-1] == "0"
        assert b[0] == "b" and b[-1] == "1"
        code, _, said = run("runs", "forget-group", f"{spool}/one", "b", "--yes")
        assert code == 2 and "has 1 readers" in said and "--force" in said
        code, output, _ = run("runs", "forget-group", f"{spool}/one", "b", "--yes", "--force", "--json")
        assert (code, json.loads(output)) == (0, {"forgotten": "b", "run": "one", "bytes": 0})
    code, _, said = run("runs", "forget-group", f"{spool}/one", "a", stdin=b"n\n")
    assert code == 1 and said.endswith("(52 rows behind, holds 0 B)? [y/N] transfer: nothing was changed\n")
    assert run("runs", "forget-group", f"{spool}/one", "a", stdin=b"y\n")[0] == 0
    assert run("runs", "groups", f"{spool}/one", "--json")[:2] == (0, b"")
    code, _, said = run("runs", "forget-group", f"{spool}/one", "a", "--yes")
    assert code == 2 and "run one has no group 'a'" in said


@pytest.mark.parametrize("shuffle", [None, 7])
def test_lineage_leads_each_row_of_a_step_back_to_its_task(spool, run, shuffle):
    """Frame `sequence` of partition p begins with the id that is 55 * p + 10 * sequence."""
    batches = train(f"{spool}/one", 20, shuffle=shuffle)
    code, output, said = run("runs", "lineage", f"{spool}/one", "--json")
    assert code == 0, said
    told = [json.loads(line) for line in output.splitlines()]
    assert [(one["first"], one["steps"], one["epoch"], one["begin"], one["rows"]) for one in told] == [
        (0, 12, 0, 0, 8), (12, 1, 0, 96, 4), (13, 7, 1, 0, 8),
    ]  # fmt: skip
    assert {one["seed"] for one in told} == {shuffle}
    for step in (3, 12, 17):
        one = json.loads(run("runs", "lineage", f"{spool}/one", "--step", step, "--json")[1])
        ids = [
            55 * piece["partition"] + 10 * piece["sequence"] + row
            for piece in one["pieces"]
            for begin, end in piece["rows"]
            for row in range(begin, end)
        ]
        assert sorted(ids) == sorted(batches[step])
        assert all((piece["job"], piece["rank"]) == ("job", 0) for piece in one["pieces"])


def test_lineage_for_people(spool, run):
    train(f"{spool}/one", 4, world=2)
    code, output, _ = run("runs", "lineage", f"{spool}/one")
    assert code == 0
    assert lines_of(output)[1] == ["0", "to", "3", "0", "0", "to", "31", "8", "2", "-"]
    code, output, _ = run("runs", "lineage", f"{spool}/one", "--step", 1)
    lines = lines_of(output)
    assert lines[-3:] == [
        ["0", "job", "0", "0", "0", "8", "to", "9"],
        ["0", "job", "0", "0", "1", "0", "to", "1"],
        ["1", "job", "0", "0", "1", "2", "to", "5"],
    ]
    code, _, said = run("runs", "lineage", f"{spool}/one", "--step", 4)
    assert code == 2 and "steps 0 to 3 are known" in said
    with RowStream(f"{spool}/one", 8, group="quiet", timeout=20):
        code, output, _ = run("runs", "lineage", f"{spool}/one", "--group", "quiet")
    assert (code, output) == (0, b"no steps: only acknowledged steps are listed\n")
    for more in ((), ("--step", 1)):
        code, output, said = run("runs", "lineage", f"{spool}/one", "--group", "defaults", *more)
        assert (code, output) == (2, b"") and "run one has no group 'defaults'" in said
        assert "there are: default, quiet" in said
    run("runs", "forget-group", f"{spool}/one", "default", "--yes")
    assert lines_of(run("runs", "lineage", f"{spool}/one")[1])[1][:3] == ["0", "to", "3"]


def test_lineage_as_parquet(spool, run, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pip install tensor-transfer[spark]")
    batches = train(f"{spool}/one", 20, shuffle=7)
    file = tmp_path / "lineage.parquet"
    code, output, said = run("runs", "lineage", f"{spool}/one", "--parquet", file)
    assert code == 0, said
    assert output.decode() == f"156 rows of 20 steps: {file}\n"
    rows = parquet.read_table(file).to_pylist()
    for step, ids in enumerate(batches):
        mine = [row for row in rows if row["step"] == step]
        assert [55 * row["partition"] + 10 * row["sequence"] + row["row"] for row in mine] == ids
        assert {(row["job"], row["rank"], row["epoch"]) for row in mine} == {("job", 0, int(step > 12))}
    assert list(tmp_path.glob("*.partial")) == []
    assert run("runs", "lineage", f"{spool}/one", "--parquet", file, "--json")[0] == 2
    code, _, said = run("runs", "lineage", f"{spool}/one", "--parquet", tmp_path / "no" / "where")
    assert code == 1 and "No such file" in said and said.count("\n") == 1


def test_parquet_without_pyarrow_is_one_clear_line(spool, start):
    train(f"{spool}/one", 1)
    without = "import sys; sys.modules['pyarrow'] = None; from transfer.cli import main; main()"
    command = start("runs", "lineage", f"{spool}/one", "--parquet", "x", program=("-c", without))
    code, _, said = command.end()
    assert (code, said) == (
        1,
        "transfer: Parquet needs pyarrow\n  hint: pip install 'tensor-transfer[spark]'\n",
    )


def test_nobody_there_is_a_time_out(run):
    code, output, said = run("runs", "list", f"127.0.0.1:{free_port()}", "--timeout", "0.5")
    assert (code, output) == (3, b"")
    assert "no spool answers at tcp://127.0.0.1:" in said and "`transfer serve`" in said


@pytest.mark.parametrize("command", ["inspect", "delete", "lineage"])
def test_a_run_has_to_be_named(run, command):
    code, _, said = run("runs", command, "127.0.0.1:5570")
    assert code == 2 and "names no run" in said
