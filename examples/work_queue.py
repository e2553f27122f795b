"""A work queue that loses nothing: jobs wait in a broker until a worker has finished them.

    transfer broker --data broker-data &
    python -m examples.work_queue submit 1 2 3 4 5
    python -m examples.work_queue work
    python -m examples.work_queue work        # in other terminals: as many as you like

A worker that dies, or takes longer than the broker's time-out, loses its job to another one. A job that fails
again and again becomes a dead letter with its reason: `transfer dlq list`.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable

import transfer
from transfer.broker.clients.native import BrokerClient

TOPIC, GROUP = "jobs", "workers"


def submit(endpoint: str, numbers: list[int]) -> None:
    """Returns when all jobs are on the broker's disk."""
    with BrokerClient(endpoint) as client:
        client.publish_many(TOPIC, [json.dumps({"number": number}).encode() for number in numbers])
    print(f"{len(numbers)} jobs submitted")


def work(endpoint: str, idle: float, process: Callable[[int], int]) -> int:
    """Processes jobs until none has come for `idle` seconds; how many."""
    finished = 0
    with BrokerClient(endpoint) as client:
        jobs = client.consume(TOPIC, GROUP, begin="old")
        while True:
            try:
                job = jobs.recv(timeout=idle)
            except transfer.Again:
                return finished
            number = json.loads(bytes(job.data))["number"]
            try:
                result = process(number)
            except ValueError as error:
                jobs.nack(job, str(error))  # another attempt later, by any worker
                continue
            jobs.ack(job, wait=True)  # the broker has it on its disk: no worker gets this job again
            finished += 1
            print(f"process {os.getpid()}: {number} -> {result}", flush=True)


def largest_factor(number: int) -> int:
    """The work."""
    if number < 1:
        raise ValueError(f"{number} has no factors")
    return next(factor for factor in range(number // 2 or 1, 0, -1) if number % factor == 0)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--broker", default="tcp://127.0.0.1:5580", help="its endpoint for requests")
    commands = parser.add_subparsers(dest="command", required=True)
    submitting = commands.add_parser("submit", help="add jobs")
    submitting.add_argument("numbers", type=int, nargs="+")
    working = commands.add_parser("work", help="process jobs")
    working.add_argument("--idle", type=float, default=5.0, help="seconds without a job after which it ends")
    chosen = parser.parse_args(arguments)
    if chosen.command == "submit":
        submit(chosen.broker, chosen.numbers)
    else:
        print(f"{work(chosen.broker, chosen.idle, largest_factor)} jobs finished")


if __name__ == "__main__":
    main()
