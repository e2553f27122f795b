"""What is whole of a spool's folder, copied into a new one; the old one stays as it is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from transfer import rows as row_layouts
from transfer.log import Log, Message
from transfer.log.quarantine import of_a_copy
from transfer.spool.entry import Entry, run_group_keys, run_key
from transfer.spool.store import HOLD, Store
from transports.errors import LogDamaged, ProtocolError, UsageError

_LIMIT, _BYTES = 1000, 64 << 20


class Found(NamedTuple):
    """A run of a folder. damage: what of it is not whole; "": all of it is."""

    name: str
    state: str
    rows: int
    damage: str = ""


@contextmanager
def copy_of(folder: Path, beside: Path) -> Iterator[tuple[Store, str]]:
    """The spool of a copy of the folder, since opening one may change it; and why its log is cut off, or "".

    beside: where the copy is made, which is removed again. Raises UsageError, LogDamaged.
    """
    if not (folder / "LOCK").exists():
        raise UsageError(f"{folder} is no folder of a spool")
    copy = beside.with_name(beside.name + ".copy")
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("quarantine"))
    try:
        cut = ""
        try:
            store = Store(copy)
        except LogDamaged as error:
            cut = str(error).partition("\n  hint: ")[0]
            with of_a_copy():
                Log(copy, repair=True).close()
            store = Store(copy)
        try:
            yield store, cut
        finally:
            store.close()
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def verify(store: Store) -> list[Found]:
    """Reads all of each run: every row, with its checksum, and their count."""
    return [
        Found(entry.run.name, entry.state, entry.rows, entry.damage or _problem(store, entry))
        for entry in store.entries.values()
    ]


def _problem(store: Store, entry: Entry) -> str:
    visible, before = entry.run.visible, 0
    try:
        for number, end in enumerate(visible.ends):
            if end > entry.first:
                row_layouts.check(store.frame(entry, number), entry.run.layouts or (), end - before)
            before = end
    except (LogDamaged, ProtocolError) as error:
        return str(error).partition("\n  hint: ")[0]
    return ""


def salvage(store: Store, out: Path) -> list[Found]:
    """Copies each run that is whole, with its groups and lineage, into a new folder: all runs, as found."""
    if out.exists() and any(out.iterdir()):
        raise UsageError(f"{out} is not empty", hint="name a folder that is not there yet")
    found = verify(store)
    with Log(out) as log:
        for one in found:
            if not one.damage:
                _copy_run(store, store.entries[one.name], log)
        log.commit(timeout=3600.0)
    return found


def _copy_run(store: Store, entry: Entry, log: Log) -> None:
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


def _messages(log: Log, topic: str) -> Iterator[Message]:
    offset, end = log.range(topic)
    while offset < end:
        found = log.read(topic, offset, limit=_LIMIT, nbytes=_BYTES)
        yield from found
        offset = found[-1].offset + 1
