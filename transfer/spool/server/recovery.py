"""Recovers the state of a store from its log: all runs, with their rows and their groups."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress

from transfer.log import Log
from transfer.spool.format.row_source import SEALED
from transfer.spool.server.group import group_from_json
from transfer.spool.server.replay import replay
from transfer.spool.server.run_log import RunLog, mark_damaged
from transfer.spool.server.run_record import GROUP_KEY, RUN_KEY, RunRecord, VisibleState, entry_of, number_of
from transfer.transports.errors import LogDamaged, LogFull, TransferError

_log = logging.getLogger("transfer.spool")


def recover(runs: RunLog, now: Callable[[], float]) -> dict[str, RunRecord]:
    """Returns the runs by name, and removes the remains of a crash. Raises LogDamaged."""
    state = dict(runs.log.state)
    found = [entry_of(key, value) for key, value in state.items() if key.startswith(RUN_KEY)]
    numbers = {entry.number: entry for entry in found}
    _drop_strays(runs.log, numbers)
    for entry in found:
        entry.noted = entry.touched, dict(entry.active)
        entry.touched = entry.touched or now()  # an earlier release did not store it
        _recover_run(runs, entry)
        entry.seen = VisibleState(entry.run.visible.rows, entry.run.state)
        entry.active = {job: entry.active.get(job, entry.touched) for job in entry.run.jobs}
    _recover_groups(state, numbers, now)
    return {entry.run.name: entry for entry in found}


def _drop_strays(log: Log, numbers: Collection[int]) -> None:
    """Removes topics without a run: a crash came while a run was made, or after its deletion."""
    for topic in log.topics:
        of_run = number_of(topic)
        if of_run is not None and of_run not in numbers:
            if log.damage:  # or damage took the run's state
                _log.error("topic %s of the spool's log belongs to no run, and is kept", topic)
            else:
                log.drop(topic)


def _recover_groups(
    state: Mapping[bytes, bytes], numbers: Mapping[int, RunRecord], now: Callable[[], float]
) -> None:
    for key, value in state.items():
        if key.startswith(GROUP_KEY):
            number, _, name = key[len(GROUP_KEY) :].decode().partition("/")
            if int(number) in numbers:
                group = group_from_json(value)
                group.used_noted, group.used = group.used, group.used or now()
                numbers[int(number)].groups[name] = group


def _recover_run(runs: RunLog, entry: RunRecord) -> None:
    """Recovers a run, or records why that fails: other runs must be served all the same."""
    try:
        if runs.log.range(entry.topic)[0] > 0:
            raise LogDamaged("its first messages are not in the log any more")
        if not (entry.tidy and runs.read_index(entry)):
            _replay(runs, entry)
        _check_messages(runs.log, entry)
    except (TransferError, ValueError, KeyError, IndexError) as error:
        mark_damaged(entry, error)


def _replay(runs: RunLog, entry: RunRecord) -> None:
    runs.discard(entry, replay(entry, runs.messages(entry.topic)))
    if entry.run.state == SEALED:
        entry.tidy = True
        with suppress(LogFull):
            if entry.index < 0:
                runs.keep_index(entry)
            runs.put(entry)


def _check_messages(log: Log, entry: RunRecord) -> None:
    """Raises LogDamaged if the log reports damage to messages that the run's readers need."""
    offsets = entry.run.visible.offsets
    for one in log.damage:
        if one.topic == entry.topic and any(one.begin <= offset < one.end for offset in offsets):
            raise LogDamaged(one.text)
