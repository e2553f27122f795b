"""Runs the roles of a measurement in processes, and exchanges messages with them."""

from __future__ import annotations

import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Any, Self

from transfer.transports.errors import Again, InternalError, TransferError

#: seconds that a process may take to be ready, and to end
PATIENCE = 60.0
#: seconds between two checks of processes
_CHECK_INTERVAL = 0.1
_SPAWN = multiprocessing.get_context("spawn")


class Stage:
    """A role's connection to the process that started it. Raises EOFError when that process has gone."""

    def __init__(self, line: Connection) -> None:
        self._line = line

    def send(self, value: object) -> None:
        """Sends an intermediate result."""
        self._line.send(("value", value))

    def receive(self) -> Any:
        """Waits for, and returns, the next message."""
        return self._line.recv()

    def poll(self) -> Any:
        """Returns the next message, or None if there is none."""
        return self._line.recv() if self._line.poll() else None


class BenchMember:
    """One process. result: the return value of its role, when it has ended."""

    def __init__(self, process: SpawnProcess, line: Connection) -> None:
        self.result: Any = None
        self.ended = False
        self._process = process
        self._line = line

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def line(self) -> Connection:
        """The connection, which is ready when the process has sent something."""
        return self._line

    def send(self, word: object) -> None:
        """Sends a message for `Stage.receive`. Raises InternalError when the process has gone."""
        try:
            self._line.send(word)
        except OSError as error:
            self.receive(0.5)  # raises why it went
            raise InternalError("a process of the measurement has gone") from error

    def receive(self, patience: float = PATIENCE) -> Any:
        """Returns the next message of the process, or its role's result.

        Raises Again, and InternalError when it failed or has gone.
        """
        if not self._line.poll(patience):
            raise Again(f"a process of the measurement sent nothing for {patience:g} s")
        try:
            kind, value = self._line.recv()
        except (EOFError, ConnectionError) as error:
            raise InternalError("a process of the measurement died") from error
        if kind == "failed":
            raise InternalError(f"a process of the measurement failed: {value}")
        if kind == "done":
            self.result, self.ended = value, True
        return value

    def end(self, *, kill: bool) -> None:
        """Waits for the process's end, or kills it. Idempotent."""
        if self._line.closed:
            return
        if kill:
            self._process.kill()
        self._process.join(PATIENCE / 4)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(PATIENCE)
        self._process.close()
        self._line.close()


class Processes:
    """Starts processes, and ends all of them at the end of its block. Not thread-safe."""

    def __init__(self) -> None:
        self._members: list[BenchMember] = []
        self._shared: list[Connection] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        members, self._members = self._members, []
        try:
            for member in members:
                member.end(kill=error is not None or not member.ended)
        except BaseException:
            for member in members:
                member.end(kill=True)
            raise
        finally:
            self.started()

    def pipe(self) -> tuple[Connection, Connection]:
        """Returns (reading end, writing end) for two members. See `started`."""
        ends = _SPAWN.Pipe(duplex=False)
        self._shared += ends
        return ends

    def add(self, part: Callable[..., object], *arguments: object) -> BenchMember:
        """Starts a process that calls `part(stage, *arguments)`, a function of a module."""
        ours, theirs = _SPAWN.Pipe()
        process = _SPAWN.Process(target=_play, args=(part, theirs, arguments), daemon=True)
        try:
            with _without_ctrl_c():
                process.start()
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        member = BenchMember(process, ours)
        self._members.append(member)
        return member

    def started(self) -> None:
        """Closes this process's ends of the pipes, after all members have theirs."""
        shared, self._shared = self._shared, []
        for end in shared:
            end.close()


def until_done(
    members: Iterable[BenchMember],
    patience: float,
    others: Iterable[BenchMember] = (),
) -> None:
    """Waits until the roles of all `members` have ended.

    others: their failure ends the wait, too. Raises Again, InternalError.
    """
    members, others = list(members), list(others)
    deadline = time.monotonic() + patience
    while left := [member for member in members if not member.ended]:
        watched = {one.line: one for one in [*left, *(one for one in others if not one.ended)]}
        for line in wait(list(watched), _CHECK_INTERVAL):
            assert isinstance(line, Connection)
            watched[line].receive(0)
        if time.monotonic() > deadline:
            raise Again(f"a process of the measurement has not ended within {patience:g} s")


@contextmanager
def _without_ctrl_c() -> Iterator[None]:
    """Blocks SIGINT while a process starts, which inherits that: Ctrl-C is for this process alone."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _play(part: Callable[..., object], line: Connection, arguments: tuple[object, ...]) -> None:
    """The main function of each process."""
    try:
        report: tuple[str, object] = ("done", part(Stage(line), *arguments))
    except EOFError:
        return
    except (TransferError, OSError) as error:
        report = ("failed", str(error))
    except BaseException:  # noqa: BLE001 - the process that started this one raises it
        report = ("failed", traceback.format_exc(limit=8))
    try:
        line.send(report)
    except OSError:
        return  # the process that started this one has gone
