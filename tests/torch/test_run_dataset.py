"""`RunDataset` and `ShardedStream`: tensors, the workers of a DataLoader, checkpoints, meshes."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from tests.spool.fake_source import RAGGED, Run, Source, agrees, run_in_folder
from transfer.spool import RowStream
from transfer.torch import RunDataset, ShardedStream, StreamDataset
from transfer.transports.errors import OptionError, UsageError

URL = "run://spool:5570/run"
ROOT = Path(__file__).parents[2]


def dataset_of(run, batch_size=8, **more):
    return StreamDataset(URL, batch_size, source=lambda: Source(run), **more)


def ids_of(batches):
    return [int(i) for batch in batches for i in batch["id"]]


def alone(folder, batch, **more):
    """What one process reads."""
    with RowStream(run_in_folder(folder, 300, 100)(), batch, group="alone", **more) as stream:
        return [batch["id"].tolist() for batch in stream]


def test_a_run_url_makes_a_run_dataset():
    dataset = dataset_of(Run(30))
    assert isinstance(dataset, StreamDataset) and isinstance(dataset, RunDataset) and dataset.endpoint == URL
    with dataset:
        batches = list(dataset)
    assert ids_of(batches) == list(range(30)) and all(agrees(batch) for batch in batches)
    with StreamDataset() as listening:
        assert isinstance(listening, StreamDataset) and listening.endpoint.startswith("tcp://")
        for use in (
            lambda: listening.epoch,
            lambda: next(listening.one_epoch()),
            lambda: listening.set_epoch(0),
            listening.acknowledge,
            lambda: pickle.dumps(listening),
        ):
            with pytest.raises(UsageError, match="listens"):
                use()
    with pytest.raises(UsageError, match="receives no messages"):
        _ = dataset.progress
    for url, option in ((URL, "verify"), ("tcp://127.0.0.1:0", "epochs")):
        with pytest.raises(OptionError, match=f"no option '{option}'"):
            StreamDataset(url, **{option: 1})


@pytest.mark.parametrize("url", [URL, "tcp://127.0.0.1:0"])
@pytest.mark.parametrize(("option", "hint"), [("timeuot", "mean 'timeout'"), ("pack", "Known: .*drop_last")])
def test_an_option_that_there_is_not(url, option, hint):
    with pytest.raises(OptionError, match=f"no option '{option}'(.|\n)*{hint}"):
        StreamDataset(url, **{option: 1})
    with pytest.raises(OptionError, match=f"no option '{option}'"):
        ShardedStream(URL, rank=0, world_size=1, **{option: 1})


@pytest.mark.parametrize("url", [URL, "tcp://127.0.0.1:0"])
def test_one_name_is_no_list_of_columns(url):
    with pytest.raises(OptionError, match="columns is a list of names, not 'id'"):
        StreamDataset(url, columns="id")
    with pytest.raises(OptionError, match="columns is a list of names, not 'id'"):
        ShardedStream(URL, columns="id", rank=0, world_size=1)


class Doubling(StreamDataset):
    """A user's own."""

    def __iter__(self):
        for batch in super().__iter__():
            yield {"id": 2 * batch["id"]}


def test_a_subclass_reads_runs_and_goes_to_workers(tmp_path):
    dataset = Doubling(URL, 16, source=run_in_folder(tmp_path, 64))
    assert isinstance(dataset, StreamDataset)
    with pickle.loads(pickle.dumps(dataset)) as copy:  # as a worker that is spawned is given it
        assert type(copy) is Doubling and ids_of(copy) == list(range(0, 128, 2))
    loader = DataLoader(dataset, batch_size=None, num_workers=2)
    assert ids_of(loader) == list(range(0, 128, 2))


_TYPED = """
from torch.utils.data import IterableDataset
from transfer.torch import RunDataset, ShardedStream, StreamDataset

for b1 in StreamDataset("run://h:1/a", 64, epochs=3):
    reveal_type(b1)
for b2 in StreamDataset("run://h:1/a", 64, columns=("id", "x")):
    reveal_type(b2)
reveal_type(next(StreamDataset("run://h:1/a").one_epoch()))
for b3 in StreamDataset(batch_size=4, verify=False):
    reveal_type(b3)
for b4 in ShardedStream("run://h:1/a", 64, columns=["x"], rank=0, world_size=2):
    reveal_type(b4)
for b5 in RunDataset("run://h:1/a", 64, shuffle=7):
    reveal_type(b5)
StreamDataset("run://h:1/a", epoch=3)
"""


@pytest.mark.slow
def test_types_of_batches(tmp_path):
    pytest.importorskip("mypy")
    (tmp_path / "program.py").write_text(_TYPED)
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path), str(tmp_path / "program.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    text = done.stdout + done.stderr
    found = re.findall('Revealed type is "(.*)"', text)
    dicts, tuples = "dict[str, Any]", "tuple[Any, ...]"
    short = [one.replace("builtins.", "") for one in found]
    assert short == [dicts, tuples, dicts, dicts, tuples, dicts], text
    assert text.count("error:") == 2 and 'keyword argument "epoch"' in text, text


def test_tensors_are_writable_views_without_a_warning():
    with dataset_of(Run(30)) as dataset:  # a warning is an error here
        first, second, *_ = list(dataset)
    assert first["x"].dtype == torch.float32
    assert second["x"].data_ptr() == first["x"].data_ptr() + 8 * 2 * 4
    first["x"][0, 0] = 42


def test_columns_give_a_tuple_in_their_order():
    run = Run(30, layouts=RAGGED)
    with dataset_of(run, columns=("tokens", "tokens.offsets", "id")) as dataset:
        tokens, offsets, ids = next(iter(dataset))
    assert ids.tolist() == list(range(8)) and offsets.tolist() == [0, 0, 1, 3, 6, 6, 7, 9, 12]
    assert tokens.tolist() == [1, 2, 2, 3, 3, 3, 5, 6, 6, 7, 7, 7]
    with dataset_of(run, columns=("nothing",)) as dataset, pytest.raises(OptionError, match="no column"):
        next(iter(dataset))


def test_in_a_data_loader_without_workers():
    with dataset_of(Run(30), epochs=2, shuffle=1) as dataset:
        batches = list(DataLoader(dataset, batch_size=None))
        assert sorted(ids_of(batches)) == sorted([*range(30)] * 2)
        assert dataset.stream.batches == 8 and dataset.epoch == 2
        with pytest.raises(UsageError, match="all epochs"):
            next(iter(dataset))


def test_epoch_by_epoch():
    run = Run(30)
    with RowStream(Source(run), 8, group="other", epochs=3, shuffle=1) as stream:
        expected = [ids_of(stream.one_epoch()) for _ in range(3)]
    with dataset_of(run, epochs=3, shuffle=1) as dataset:
        loader = DataLoader(dataset, batch_size=None)
        for epoch in (0, 1, 1, 2, 0):
            dataset.set_epoch(epoch)
            assert ids_of(loader) == expected[epoch]
        with pytest.raises(OptionError, match="none of the 3 epochs"):
            dataset.set_epoch(3)
        with pytest.raises(OptionError, match=r"whole number, not 1\.5"):
            dataset.set_epoch(1.5)
    with dataset_of(run, epochs=3, shuffle=1) as dataset:
        assert [ids_of(dataset.one_epoch()) for _ in range(3)] == expected


def test_nothing_is_opened_before_the_first_batch():
    opened = []

    def source():
        opened.append(Source(Run(30)))
        return opened[-1]

    dataset = StreamDataset(URL, 8, source=source)
    state = dataset.state_dict()
    dataset.load_state_dict(state)
    assert not opened and state == {"version": 3, "run": None}
    next(iter(dataset))
    assert len(opened) == 1
    dataset.close()
    assert opened[0].closed
    assert ids_of(dataset) == list(range(8, 30))  # opened again, and gone on with
    dataset.close()


def test_state_and_acknowledgement_without_workers():
    run = Run(30)
    with dataset_of(run) as dataset:
        batches = iter(dataset)
        first = [next(batches), next(batches)]
        state = dataset.state_dict()
        next(batches)
        dataset.acknowledge(state)
    assert run.acknowledged == (0, 16) and run.steps == [[0, 2, 0, 0, 8, 1]]
    with dataset_of(run, 5, rank=0, world_size=1) as dataset:
        dataset.load_state_dict(state)
        assert dataset.state_dict() == state  # nothing is opened for it
        rest = list(dataset)
        assert [len(batch["id"]) for batch in rest] == [5, 5, 4]
    assert ids_of(first + rest) == list(range(30))
    with dataset_of(run, shuffle=3) as dataset:
        dataset.load_state_dict(state)
        with pytest.raises(OptionError, match="another seed"):
            next(iter(dataset))
        with pytest.raises(UsageError, match="has read nothing"):
            dataset.acknowledge()
        with pytest.raises(OptionError, match="no state of a RunDataset"):
            dataset.load_state_dict({"some": "thing"})


def test_a_pickled_data_set_goes_on_where_it_was(tmp_path):
    dataset = StreamDataset(URL, 8, source=run_in_folder(tmp_path, 30))
    next(iter(dataset))
    other = pickle.loads(pickle.dumps(dataset))
    dataset.close()
    assert ids_of(other) == list(range(8, 30))
    other.close()


# --- worker processes -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_give_each_row_once_in_the_exact_order(tmp_path, method):
    expected = alone(tmp_path, 16, epochs=2, shuffle=7)
    options = {"epochs": 2, "shuffle": 7, "source": run_in_folder(tmp_path, 300, 100)}
    dataset = StreamDataset(URL, 16, **options)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=method)
    assert [batch["id"].tolist() for batch in loader] == expected
    opened = sorted(path.name.split("-", 2)[2] for path in tmp_path.glob("opened-*"))
    assert opened == ["0-of-1", "0-of-2", "1-of-2"]  # the first was `alone`
    assert not list(tmp_path.glob("lease-*"))
    assert not dataset._open_here


def test_workers_epoch_by_epoch(tmp_path):
    expected = alone(tmp_path, 64, epochs=2, shuffle=7)
    dataset = StreamDataset(URL, 64, epochs=2, shuffle=7, source=run_in_folder(tmp_path, 300, 100))
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")
    batches = []
    for epoch in range(2):
        dataset.set_epoch(epoch)
        batches += [batch["id"].tolist() for batch in loader]
    assert batches == expected


def test_workers_of_several_ranks(tmp_path):
    expected = alone(tmp_path, 32)
    parts = []
    for rank in range(2):
        source = run_in_folder(tmp_path, 300, 100)
        dataset = StreamDataset(URL, 16, rank=rank, world_size=2, source=source)
        loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")
        parts.append([batch["id"].tolist() for batch in loader])
    assert [a + b for a, b in zip(*parts, strict=True)] == expected
    opened = {path.name.split("-", 2)[2] for path in tmp_path.glob("opened-*")}
    assert opened == {"0-of-1", "0-of-4", "1-of-4", "2-of-4", "3-of-4"}


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata 0.11 with newer torch
@pytest.mark.parametrize(("workers", "then"), [(2, 2), (2, 0), (0, 0), (2, 1)])
def test_a_stateful_loader_goes_on_at_the_exact_step(tmp_path, workers, then):
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="pip install torchdata")
    expected = alone(tmp_path, 16, epochs=2, shuffle=7)
    source = run_in_folder(tmp_path, 300, 100)

    def loader_of(workers):
        dataset = StreamDataset(URL, 16, epochs=2, shuffle=7, source=source)
        more = {"multiprocessing_context": "fork"} if workers else {}
        return dataset, stateful.StatefulDataLoader(dataset, batch_size=None, num_workers=workers, **more)

    dataset, loader = loader_of(workers)
    batches = iter(loader)
    first = [next(batches)["id"].tolist() for _ in range(7)]
    state = loader.state_dict()
    del batches, loader
    dataset.close()
    for lease in tmp_path.glob("lease-*"):
        lease.unlink()  # of processes that were ended
    dataset.acknowledge(state)
    told = json.loads((tmp_path / "run.json").read_text())
    assert told["acknowledged"] == [0, 7 * 16] and told["steps"] == [[0, 7, 0, 0, 16, 1, 7]]

    dataset, loader = loader_of(then)
    if then == workers:
        loader.load_state_dict(state)
    else:
        dataset.load_state_dict(state)
    assert first + [batch["id"].tolist() for batch in loader] == expected
    dataset.close()


# --- ranks ------------------------------------------------------------------------------------------


@pytest.fixture
def process_group():
    """A process group of one process that says it is rank 5 of 8."""
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    dist.init_process_group("fake", rank=5, world_size=8, store=fake.FakeStore())
    yield
    dist.destroy_process_group()


def test_ranks_are_those_of_torch_distributed(process_group):
    run = Run(64)
    with ShardedStream(URL, 4, source=lambda: Source(run)) as stream:
        assert stream.share == (5, 8)
        assert ids_of(stream) == [*range(20, 24), *range(52, 56)]
        assert run.leases == {("default", 5)}


def test_ranks_of_a_mesh_that_differ_in_other_dimensions_have_the_same_rows(process_group):
    run = Run(64)
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
    # Rank 5 is pp 1, dp 0, tp 1.
    for names, share in ((None, (0, 2)), ("tp", (1, 2)), (("pp", "dp"), (2, 4)), (["dp", "pp"], (1, 4))):
        with ShardedStream(URL, 4, mesh=mesh, mesh_dim=names, source=lambda: Source(run)) as stream:
            assert stream.share == share
            index, size = share
            assert ids_of([next(iter(stream))]) == list(range(4 * index, 4 * index + 4))
            assert run.leases == {("default", 5)}
            assert stream.state_dict()["row"] == 4 * size
    with pytest.raises(OptionError, match="no dimension 'ep'"):
        ShardedStream(URL, 4, mesh=mesh, mesh_dim="ep")
    whole = dist.device_mesh.init_device_mesh("cpu", (8,))
    assert ShardedStream(URL, 4, mesh=whole).share == (5, 8)


def test_ranks_may_be_told_and_must_be_known():
    assert ShardedStream(URL, 4, rank=1, world_size=3).share == (1, 3)
    with pytest.raises(UsageError, match="not initialized"):
        ShardedStream(URL, 4)
    with pytest.raises(OptionError, match="together"):
        ShardedStream(URL, 4, rank=1)


def test_all_epochs_are_of_one_run(tmp_path):
    """Also where each epoch has worker processes of its own, and nothing is opened in this one."""
    dataset = StreamDataset(URL, 16, epochs=2, source=run_in_folder(tmp_path, 64))
    loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="fork")
    dataset.set_epoch(0)
    assert ids_of(loader) == list(range(64))
    run_in_folder(tmp_path, 64, run_id="77" * 16)  # another one of its name
    dataset.set_epoch(1)
    with pytest.raises(OptionError, match=f"{'5a' * 16}, and this one is {'77' * 16}"):
        list(loader)
    dataset.close()
