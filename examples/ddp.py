"""DistributedDataParallel over a run of a spool: two gloo ranks on this machine, with checkpoint and resume.

    python examples/ddp.py run://127.0.0.1:5570/points --checkpoint ddp.pt

Reads the columns `x` (float32, any length) and `y` (float32), for instance of

    df.selectExpr("array(float(id % 7), float(id % 11)) as x", "float(id % 7 - id % 11) as y")

Kill it at any moment, a rank or all of it, and start it again: it goes on at the exact sample. With another
number of `--ranks` too. `--steps` ends it after so many steps, which shows the same.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from transfer.torch import ShardedStream


def train(rank: int, arguments: argparse.Namespace) -> None:
    """One rank."""
    torch.set_num_threads(1)
    meeting = f"file://{arguments.meeting}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=arguments.ranks)
    stream = ShardedStream(
        arguments.run,
        arguments.batch_size,
        epochs=arguments.epochs,
        shuffle=arguments.seed,
        columns=("x", "y"),
        group=arguments.group,
        timeout=60,
    )
    torch.manual_seed(0)
    model: Any = None
    optimizer: Any = None
    saved = torch.load(arguments.checkpoint) if arguments.checkpoint.exists() else None
    if saved is not None:
        stream.load_state_dict(saved["stream"])
    done, loss = 0, torch.zeros(1)
    with stream:
        for x, y in stream:
            if model is None:  # only now is the width known
                model = DistributedDataParallel(nn.Linear(x.shape[1], 1))
                optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
                if saved is not None:
                    model.load_state_dict(saved["model"])
                    optimizer.load_state_dict(saved["optimizer"])
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x).squeeze(1), y)
            loss.backward()
            optimizer.step()
            done += 1
            if done % arguments.every == 0:
                save(arguments.checkpoint, rank, stream, model, optimizer)
            if done == arguments.steps:
                break
        if model is not None:
            save(arguments.checkpoint, rank, stream, model, optimizer)
        state = stream.state_dict()
    where = f"epoch {state['epoch']}, row {state['row']}"
    print(f"rank {rank}: {done} steps, {where}, loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


def save(path: Path, rank: int, stream: ShardedStream[Any], model: Any, optimizer: Any) -> None:
    """First the checkpoint, then the word to the spool that its rows are done with. One rank does it for
    all."""
    if rank == 0:
        state = stream.state_dict()
        partial = path.with_suffix(".new")
        parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({"stream": state, **parts}, partial)
        os.replace(partial, path)
        stream.acknowledge(state)
    dist.barrier()  # no rank is further than one checkpoint


def main() -> None:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("run", help="run://HOST:PORT/NAME")
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64, help="of a rank")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--group", default="ddp")
    parser.add_argument("--steps", type=int, default=0, help="end after so many; 0: after all epochs")
    parser.add_argument("--every", type=int, default=50, help="steps between two checkpoints")
    arguments = parser.parse_args()
    # torch's ranks find each other by a file that must not be there yet.
    arguments.meeting = arguments.checkpoint.resolve().with_suffix(f".{os.getpid()}.meeting")
    try:
        spawn(train, (arguments,), nprocs=arguments.ranks)
    finally:
        arguments.meeting.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
