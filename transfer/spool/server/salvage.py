"""Finds the undamaged runs of a spool's folder, and copies them; the folder is not changed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from transfer.log import Log, LogMessage
from transfer.log.checks import lock_shared
from transfer.log.private import FOLDER_MODE
from transfer.log.quarantine import of_a_copy
from transfer.log.read_only import LogCopy
from transfer.spool.format import rows as row_layouts
from transfer.spool.server.run_record import RunRecord, run_group_keys, run_key
from transfer.spool.server.store import HOLD, SpoolStore
from transfer.transports.errors import LogDamaged, ProtocolError, UsageError

_LIMIT, _BYTES = 1000, 64 << 20


class SalvagedRun(NamedTuple):
    """A run of a folder. damage: what is damaged; "": nothing."""

    name: str
    state: str
    rows: int
    damage: str = ""


@contextmanager
def opened(folder: Path) -> Iterator[SpoolStore]:
    """Opens the spool of a folder, as the next start would find it, without changing the folder.

    Raises LogInUse: a spool runs there; LogDamaged: there is no usable spool.
    """
    with LogCopy(folder) as log:
        store = SpoolStore(log)
        try:
            yield store
        finally:
            store.close()


@contextmanager
def salvaged(folder: Path, out: Path) -> Iterator[tuple[SpoolStore, str]]:
    """As `opened`, with the reason why its log is cut off, or "". If it is cut off, the store is of a copy,
    where damage can be cut off.

    The copy is next to `out`, and is removed again. Raises LogInUse, UsageError: one of both exists.
    """
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise UsageError(f"{out} is not empty", hint="name a folder that does not exist yet")
    with ExitStack() as stack:
        try:
            store, cut = stack.enter_context(opened(folder)), ""
        except LogDamaged as error:
            cut = str(error).partition("\n  hint: ")[0]
            copy = stack.enter_context(_copy_of(folder, out.with_name(out.name + ".copy")))
            with of_a_copy():
                Log(copy, repair=True).close()
            store = stack.enter_context(opened(copy))
        yield store, cut


@contextmanager
def _copy_of(folder: Path, copy: Path) -> Iterator[Path]:
    try:
        copy.mkdir(FOLDER_MODE, parents=True)
    except FileExistsError as error:
        raise UsageError(
            f"{copy} exists: another salvage is running, or a killed one left it",
            hint="delete it if no salvage runs, or name another --out",
        ) from error
    try:
        fd = lock_shared(folder)
        try:
            shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("quarantine"), dirs_exist_ok=True)
        finally:
            if fd >= 0:
                os.close(fd)
        yield copy
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def verify(store: SpoolStore) -> list[SalvagedRun]:
    """Reads all of each run: every row, also staged ones, with its checksum, and their count."""
    return [
        SalvagedRun(entry.run.name, entry.state, entry.rows, entry.damage or _problem(store, entry))
        for entry in store.entries.values()
    ]


def _problem(store: SpoolStore, entry: RunRecord) -> str:
    visible, before = entry.run.visible, 0
    try:
        for number, end in enumerate(visible.ends):
            if end > entry.first:
                row_layouts.check(store.frame(entry, number), entry.run.layouts or (), end - before)
            before = end
        for job in entry.run.jobs.values():
            for offset in job.offsets:  # staged: a commit would make them visible
                store.log.read(entry.topic, offset, limit=1)
    except (LogDamaged, ProtocolError) as error:
        return str(error).partition("\n  hint: ")[0]
    return ""


def salvage(store: SpoolStore, out: Path) -> list[SalvagedRun]:
    """Copies each undamaged run, with its groups and lineage, into a new folder. Returns all runs."""
    found = verify(store)
    with Log(out) as log:
        for one in found:
            if not one.damage:
                _copy_run(store, store.entries[one.name], log)
        log.commit(timeout=3600.0)
    return found


def _copy_run(store: SpoolStore, entry: RunRecord, log: Log) -> None:
    log.acknowledge(entry.topic, HOLD, 0)
    for topic in (entry.topic, entry.lineage):
        for message in _messages(store.log, topic):
            if message.discarded:  # its rows are not needed, and its offset is
                _, offset = log.append(topic, message.body, blob=b"")
                log.discard(topic, offset, offset + 1)
            else:
                log.append(topic, message.body, blob=message.blob)
        log.commit(timeout=3600.0)
    state: Mapping[bytes, bytes] = store.log.state
    for key in (run_key(entry), *run_group_keys(entry, state)):
        log.put(key, state[key])


def _messages(log: Log, topic: str) -> Iterator[LogMessage]:
    offset, end = log.range(topic)
    while offset < end:
        found = log.read(topic, offset, limit=_LIMIT, nbytes=_BYTES)
        yield from found
        offset = found[-1].offset + 1
