"""A trainer sends its weights to an inference process, which keeps working and takes them over in place.

    python -m examples.weight_updates --updates 20

The weights are the model's state_dict, one message each; `out=` writes them into the other model. Where both
processes see the same GPU, tensors of 64 KiB and more do not leave it, once the first message has arrived;
elsewhere they go through shared memory, by the same program. The inference process reports how well each
version answers.
"""

from __future__ import annotations

import argparse
import multiprocessing
from typing import Any

import torch

import transfer

FEATURES = 64


def network(device: str) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1)).to(
        device
    )


def samples(count: int, seed: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Points, and whether the sum of their coordinates is positive."""
    points = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(seed))
    return points.to(device), (points.sum(1, keepdim=True) > 0).float().to(device)


def infer(endpoint: str, device: str, reports: Any) -> None:
    """Answers with the newest weights, and reports for each version how many answers are right."""
    model = network(device)
    points, right = samples(2000, seed=1, device=device)
    with transfer.Context() as context, context.socket(transfer.PULL, rcvtimeo=60_000) as pull:
        pull.bind(endpoint)
        reports.send(pull.last_endpoint)
        version = 0
        while version >= 0:
            _, meta = pull.recv_tensors(out=model.state_dict())
            version = meta["version"]
            with torch.no_grad():
                answers = model(points) > 0
            reports.send((abs(version), float((answers == right.bool()).float().mean())))


def train(endpoint: str, device: str, updates: int) -> None:
    torch.manual_seed(0)
    model = network(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    with transfer.Context() as context, context.socket(transfer.PUSH, sndhwm=2) as push:
        push.connect(endpoint)
        for version in range(1, updates + 1):
            for step in range(10):
                points, right = samples(256, seed=1000 * version + step, device=device)
                loss = torch.nn.functional.binary_cross_entropy_with_logits(model(points), right)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            # The weights may change as soon as this returns: the message keeps those of now.
            push.send_tensors(
                model.state_dict(), meta={"version": version if version < updates else -version}
            )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--updates", type=int, default=20, help="how often the weights are sent")
    parser.add_argument(
        "--device", default="cuda:0" if torch.cuda.is_available() else "cpu", help="of both models"
    )
    chosen = parser.parse_args(arguments)
    spawn = multiprocessing.get_context("spawn")  # CUDA survives no fork
    reports, theirs = spawn.Pipe(duplex=False)
    process = spawn.Process(target=infer, args=("tcp://127.0.0.1:0", chosen.device, theirs))
    process.start()
    try:
        train(reports.recv(), chosen.device, chosen.updates)
        for _ in range(chosen.updates):
            version, share = reports.recv()
            print(f"version {version}: {share:.0%} right")
        process.join(30)
    finally:
        process.kill()
        process.join()


if __name__ == "__main__":
    main()
