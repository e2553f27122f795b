"""The saved position of a stream of rows, and the merge of several workers' positions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from transfer.spool.client.lineage import Lineage
from transfer.transports.arguments import shown
from transfer.transports.errors import OptionError

#: of the result of `state_dict`. 2 does not identify the run among those of its name
STATE_VERSION = 3
_OLDEST = 2
_NUMBERS = ("epoch", "row", "step", "batch_size", "world_size", "worker", "workers")
#: the keys that only a worker's state has: [epoch, base, index, number] of its next step, and of the first
#: one that its lineage does not have
_PLACES = ("next", "marked")


#: the keys that the states of all workers of a rank share
_SHARED = ("run", "run_id", "seed", "workers")


def check_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the state in this version's form; run_id is "" in version 2. Raises OptionError for an invalid
    state."""
    if not isinstance(state, Mapping):
        raise OptionError(f"a state is a result of `state_dict()`, not {shown(state)}")
    version = state.get("version")
    if type(version) is not int or not _OLDEST <= version <= STATE_VERSION:
        raise OptionError(
            f"a state of version {version!r} is unknown",
            hint=f"this release reads versions {_OLDEST} to {STATE_VERSION}",
        )
    state = {"run_id": ""} | dict(state) if version < STATE_VERSION else dict(state)
    for name in _NUMBERS:
        if type(state.get(name)) is not int or state[name] < 0:
            raise OptionError(f"the state has no {name}, or a wrong one: {state.get(name)!r}")
    for name in _PLACES if state["workers"] > 1 else ():
        place = state.get(name)
        if (
            not isinstance(place, list)
            or len(place) != 4
            or not all(type(n) is int and n >= 0 for n in place)
        ):
            raise OptionError(f"the state has no {name}, or a wrong one: {place!r}")
    whole = isinstance(state.get("lineage"), list) and isinstance(state.get("run_id"), str)
    if not whole or "run" not in state or "seed" not in state:
        raise OptionError("the state is not complete")
    return state | {"version": STATE_VERSION}


def check_run(run: str, mine: str, its: str) -> None:
    """Checks that two ids are of the same run. Raises OptionError, which names both."""
    if its and mine != its:
        raise OptionError(
            f"the state belongs to another run {run!r}: {its}, and this one is {mine}",
            hint="The run was deleted and written again, and has other rows. Start without the state.",
        )


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merges the states of all workers of a rank: the position before the first step that is left to any.

    If all states are those after one batch, it is exactly the position after that batch. Raises OptionError
    unless each worker is there once, and all have read one run.
    """
    found = sorted(map(check_state, states), key=lambda state: int(state["worker"]))
    if not found or [state["worker"] for state in found] != list(range(found[0]["workers"])):
        raise OptionError("merging needs the state of each worker, once")
    for state in found[1:]:
        check_run(state["run"], found[0]["run_id"], state["run_id"])
        if any(state[name] != found[0][name] for name in _SHARED):
            raise OptionError("the states are of workers that read other runs, or in another order")
    first = min(found, key=lambda state: int(state["step"]))
    last = max(found, key=lambda state: int(state["step"]))
    merged = {name: value for name, value in first.items() if name not in _PLACES}
    lineage = Lineage(last["lineage"]).between(0, first["step"])
    return merged | {"worker": 0, "workers": 1, "lineage": lineage}
