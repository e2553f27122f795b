"""Durable appends, 64 in flight: the log, a bare file, and Redis Streams with a sync for every pipeline.

The measuring process writes the log and the file; Redis is a server behind a socket, as its users have it.
All of them write to the same disk.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

from bench.scene import cpu_seconds
from bench.work import KIB, MESSAGES_PER_SECOND, PATIENCE, Case, Failed, Sample, Work

IN_FLIGHT = 64
ROOT = Path(__file__).resolve().parents[2]
#: appends so many records and returns when they are durable
Append = Callable[[int], object]


@contextmanager
def folder() -> Iterator[Path]:
    """Makes a folder on the disk of this repository, since /tmp may be memory."""
    (ROOT / "build").mkdir(exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="bench-log-", dir=ROOT / "build"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


@contextmanager
def ours(path: Path, record: bytes) -> Iterator[Append]:
    from transfer.log import Log

    with Log(path) as log:

        def append(count: int) -> None:
            for _ in range(count):
                sequence, _ = log.append("records", record)
            log.commit(sequence)

        yield append


@contextmanager
def bare(path: Path, record: bytes) -> Iterator[Append]:
    """One write and one sync for all records in flight."""
    fd = os.open(path / "file", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def append(count: int) -> None:
        os.write(fd, record * count)
        os.fdatasync(fd)

    try:
        yield append
    finally:
        os.close(fd)


@contextmanager
def redis(path: Path, record: bytes) -> Iterator[Append]:
    from redis import Redis

    if shutil.which("redis-server") is None:
        raise Failed("redis-server is not installed")
    socket = path / "socket"
    options = f"--port 0 --unixsocket {socket} --dir {path} --appendonly yes --appendfsync always".split()
    server = subprocess.Popen(["redis-server", *options, "--save", "", "--loglevel", "warning"])
    try:
        client = Redis(unix_socket_path=str(socket))
        deadline = time.monotonic() + PATIENCE
        while not socket.exists():
            if time.monotonic() > deadline or server.poll() is not None:
                raise Failed("redis-server did not start")
            time.sleep(0.01)

        def append(count: int) -> None:
            pipeline = client.pipeline(transaction=False)
            for _ in range(count):
                pipeline.xadd("records", {"r": record})
            pipeline.execute()

        yield append
        client.close()
    finally:
        server.terminate()
        server.wait(PATIENCE)


PEERS = {"transfer-log": ours, "redis": redis, "bare file": bare}


def measure(work: Work, peer: str) -> Sample:
    record = os.urandom(work.size)
    with folder() as path, PEERS[peer](path, record) as append:
        append(IN_FLIGHT)
        begin, cpu = perf_counter(), cpu_seconds()
        for _ in range(work.count // IN_FLIGHT):
            append(IN_FLIGHT)
        seconds, cpu = perf_counter() - begin, cpu_seconds() - cpu
    sample = {"seconds": seconds, "msg_s": work.count / seconds}
    # A server's processor time is not visible here.
    return sample if peer == "redis" else {**sample, "cpu_s": cpu, "cpu_s_per_M": cpu / work.count * 1e6}


def works(quick: bool) -> list[Work]:
    count = IN_FLIGHT * (20 if quick else 400)
    return [Work("log_append", "1KiB", KIB, count, 0, tuple(PEERS), 1)]


CASES = {
    "log_append": Case(
        "log_append",
        "durable appends, 64 in flight, synced",
        works,
        measure,
        lambda _: MESSAGES_PER_SECOND,
        any_transport=False,
    )
}
