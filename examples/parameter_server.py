"""Asynchronous parameter server: workers push gradients, the server applies them and publishes weights.

    python -m examples.parameter_server --workers 3 --steps 200

Gradients go by PUSH/PULL and weights by PUB/SUB, so no worker waits for another. Weights are a dict of
tensors, published with their version; a worker computes with the newest version that has arrived. The server
drops gradients that are too old.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections import Counter, deque
from typing import Any

import numpy as np

import transfer

FEATURES, BATCH, RATE = 8, 32, 0.05
#: versions that a gradient may be behind the weights
MOST_STALE = 20
#: gradients of one worker that the server has not taken yet
IN_FLIGHT = 3
TRUE_WEIGHTS = np.linspace(-1, 1, FEATURES)


def serve(ready: Any, done: Any, steps: int) -> None:
    """Applies gradients, and publishes the weights after each."""
    weights, version, counts = np.zeros(FEATURES), 0, Counter[str]()
    with (
        transfer.Context() as context,
        context.socket(transfer.PULL, rcvtimeo=30_000) as gradients,
        context.socket(transfer.PUB, conflate=True) as updates,
    ):
        gradients.bind("tcp://127.0.0.1:*")
        updates.bind("tcp://127.0.0.1:*")
        ready.put((gradients.last_endpoint, updates.last_endpoint))
        while version < steps:
            tensors, meta = gradients.recv_tensors()
            if version - meta["version"] > MOST_STALE:
                counts["stale"] += 1
                continue
            weights -= RATE * tensors["weights"]
            version += 1
            counts[f"worker {meta['worker']}"] += 1
            updates.send_tensors({"weights": weights}, meta={"version": version})
        done.put((float(np.abs(weights - TRUE_WEIGHTS).max()), dict(counts)))


def work(number: int, gradients: str, updates: str) -> None:
    """Computes gradients of a linear regression with the newest weights, until the server ends."""
    random = np.random.default_rng(number)
    weights, version = np.zeros(FEATURES), 0
    with (
        transfer.Context() as context,
        context.socket(transfer.PUSH) as push,
        context.socket(transfer.SUB, conflate=True) as newest,
    ):
        newest.subscribe(b"")
        newest.connect(updates)
        push.connect(gradients)
        on_the_way: deque[transfer.Tracker] = deque()
        while True:
            if len(on_the_way) == IN_FLIGHT:  # else the kernel's buffers fill with gradients that grow old
                try:
                    on_the_way.popleft().wait_confirmed(30)
                except transfer.Broken:  # the server has finished
                    return
            if newest.poll(0):
                tensors, meta = newest.recv_tensors()
                weights, version = tensors["weights"], meta["version"]
            x = random.standard_normal((BATCH, FEATURES))
            error = x @ weights - x @ TRUE_WEIGHTS
            gradient = 2 * x.T @ error / BATCH
            meta = {"version": version, "worker": number}
            on_the_way.append(push.send_tensors({"weights": gradient}, meta=meta, track=True))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200, help="gradients that are applied")
    chosen = parser.parse_args(arguments)
    spawn = multiprocessing.get_context("spawn")
    ready, done = spawn.Queue(), spawn.Queue()
    server = spawn.Process(target=serve, args=(ready, done, chosen.steps))
    server.start()
    gradients, updates = ready.get(timeout=60)
    workers = [spawn.Process(target=work, args=(n, gradients, updates)) for n in range(chosen.workers)]
    for worker in workers:
        worker.start()
    try:
        error, counts = done.get(timeout=120)
    finally:
        for process in [*workers, server]:
            process.terminate()
            process.join()
    print(f"{chosen.steps} gradients applied, largest error of a weight {error:.4f}")
    print(", ".join(f"{name}: {count}" for name, count in sorted(counts.items())))


if __name__ == "__main__":
    main()
