"""One rank of a training over gloo, for tests: writes down the ids of every step, and may kill itself.

    python -m tests.torch.rank URL RANK WORLD FOLDER MEETING [--kill-at STEP] [--steps N]

`FOLDER/ids-STEP-RANK.json` has the ids of a step; a step that is done again replaces them. Every third step
is followed by a checkpoint of rank 0 and the spool's acknowledgement.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from transfer.torch import ShardedStream


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("rank", type=int)
    parser.add_argument("world", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("meeting")
    parser.add_argument("--kill-at", type=int, default=-1)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{arguments.folder / arguments.meeting}",
        rank=arguments.rank,
        world_size=arguments.world,
        timeout=timedelta(seconds=30),
    )
    stream = ShardedStream(arguments.url, arguments.batch, epochs=arguments.epochs, shuffle=7, timeout=30)
    saved = arguments.folder / "checkpoint.json"
    if saved.exists():
        stream.load_state_dict(json.loads(saved.read_text()))
    for batch in stream:
        step = stream.state_dict()["step"] - 1
        if step == arguments.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        (arguments.folder / f"ids-{step}-{arguments.rank}.json").write_text(json.dumps(batch["id"].tolist()))
        dist.all_reduce(torch.zeros(1))  # a rank with fewer steps would let the others wait here
        if step % 3 == 2:
            if arguments.rank == 0:
                state = stream.state_dict()
                saved.write_text(json.dumps(state))
                stream.acknowledge(state)
            dist.barrier()
    if arguments.rank == 0:
        stream.acknowledge()
    dist.barrier()
    stream.close()
    dist.destroy_process_group()
    print(json.dumps({"steps": stream.stream.batches, "again": stream.stream.redelivered_rows}), flush=True)


if __name__ == "__main__":
    main()
