"""Starts the processes of one measurement with spawn: a hub, and spokes that connect to it.

The hub binds, so it sends its address to each spoke. The pipes between them carry only that, the start and
the reply at the end; the peer's sockets carry the measured messages.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import resource
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from bench.work import PATIENCE, Failed, Skipped, Work

Outcome = dict[str, Any]
Hub = Callable[[str, Work, list["Link"]], Outcome]
Spoke = Callable[[str, Work, "Link"], Outcome]

CLONE_NEWNET = 0x40000000


class Link:
    """A pipe to the other side with bounded waits."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, word: Any) -> None:
        self._connection.send(word)

    def receive(self, patience: float = PATIENCE) -> Any:
        """Returns the next word of the other side. Raises Failed if it stays silent or is gone."""
        if not self._connection.poll(patience):
            raise Failed(f"the other process sent nothing for {patience:.0f} s")
        try:
            return self._connection.recv()
        except EOFError:
            raise Failed("the other process ended early") from None


class Clock:
    """Wall and CPU seconds of this process (all its threads) since this object was made."""

    def __init__(self) -> None:
        self._cpu = cpu_seconds()
        self._wall = time.perf_counter()

    def stop(self) -> Outcome:
        wall = time.perf_counter() - self._wall
        return {"seconds": wall, "cpu": cpu_seconds() - self._cpu}


def cpu_seconds() -> float:
    """Returns the user and system seconds of this process, from getrusage."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def play(
    hub: Hub, spoke: Spoke, peer: str, work: Work, patience: float = 4 * PATIENCE
) -> tuple[Outcome, list[Outcome]]:
    """Returns (the hub's result, each spoke's result).

    Raises Skipped if a library is missing, Failed if a process failed or `patience` seconds passed.
    `work.params["netns"]` may name the network namespaces of the hub and of the spokes.
    """
    spawn = multiprocessing.get_context("spawn")
    places = work.params.get("netns", (None, None))
    pipes = [spawn.Pipe() for _ in range(work.spokes)]
    results = [spawn.Pipe(duplex=False) for _ in range(1 + work.spokes)]
    actors: list[tuple[Any, Any, str | None]] = [(hub, [pipe[0] for pipe in pipes], places[0])]
    actors += [(spoke, pipe[1], places[1]) for pipe in pipes]
    processes = [
        spawn.Process(target=_act, args=(function, peer, work, ends, result[1], place), daemon=True)
        for (function, ends, place), result in zip(actors, results, strict=True)
    ]
    try:
        for process in processes:
            process.start()
        for pipe in pipes:
            pipe[0].close()
            pipe[1].close()
        for result in results:
            result[1].close()
        outcomes = _collect([result[0] for result in results], patience)
    except BaseException:
        for process in processes:
            if process.pid is not None:
                process.kill()
        raise
    finally:
        for process in processes:
            _end(process)
        for result in results:
            result[0].close()
    return outcomes[0], outcomes[1:]


def _collect(readers: list[Connection], patience: float) -> list[Outcome]:
    """Returns one outcome of each process, in order. The first failure ends all of them."""
    outcomes: dict[int, Outcome] = {}
    deadline = time.monotonic() + patience
    while len(outcomes) < len(readers):
        waiting = [index for index in range(len(readers)) if index not in outcomes]
        ready = wait([readers[index] for index in waiting], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise Failed(f"no result within {patience:.0f} s")
        for index in waiting:
            if readers[index] not in ready:
                continue
            try:
                kind, value = readers[index].recv()
            except EOFError:
                raise Failed("a process of the benchmark died without an error") from None
            if kind == "skipped":
                raise Skipped(value)
            if kind == "failed":
                raise Failed(value)
            outcomes[index] = value
    return [outcomes[index] for index in range(len(readers))]


def _end(process: Any) -> None:
    """Waits for the end of the process, then kills it."""
    if process.pid is None:
        return
    process.join(5.0)
    if process.is_alive():
        process.kill()
        process.join()
    process.close()


def _act(function: Any, peer: str, work: Work, ends: Any, result: Connection, place: str | None) -> None:
    """The main function of each process: enters its namespace, runs its part, reports.

    It leaves by `_exit` after the result: some peers' libraries crash or hang in their tear-down, which is
    not measured.
    """
    try:
        raise_descriptor_limit()
        if place is not None:
            enter_namespace(place)
        links = [Link(end) for end in ends] if isinstance(ends, list) else Link(ends)
        report: tuple[str, Any] = ("done", function(peer, work, links))
    except (ImportError, Skipped) as reason:
        report = ("skipped", str(reason))
    except BaseException:  # noqa: BLE001 (the parent must get every error)
        report = ("failed", traceback.format_exc(limit=8))
    result.send(report)
    result.close()
    os._exit(0)


def raise_descriptor_limit() -> None:
    """Raises the limit of descriptors as far as this process may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def enter_namespace(name: str) -> None:
    """Moves the calling thread (and those it starts) into a network namespace of `ip netns`."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(f"/run/netns/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(descriptor, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns to {name}")
    finally:
        os.close(descriptor)
