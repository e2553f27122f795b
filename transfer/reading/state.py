"""What a stream of rows saves of its position, and several workers' made into one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from transfer.reading.lineage import Lineage
from transports.errors import OptionError

STATE_VERSION = 2
_NUMBERS = ("epoch", "row", "step", "batch_size", "world_size", "worker", "workers")
#: what only one of several workers tells: [epoch, base, index, number] of its next step, and of the first one
#: that its lineage does not tell of
_PLACES = ("next", "marked")


def check_state(state: Mapping[str, Any]) -> None:
    """Raises OptionError for what is no state of this version."""
    if state.get("version") != STATE_VERSION:
        raise OptionError(f"a state of version {state.get('version')!r} is unknown")
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
    if not isinstance(state.get("lineage"), list) or "run" not in state or "seed" not in state:
        raise OptionError("the state is not whole")


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """One state of those of all workers of a rank: before the first step that any of them still has to do.

    If they are those behind one batch, it is the position behind that batch, exactly. Raises OptionError
    unless each worker is there once.
    """
    states = list(states)
    for state in states:
        check_state(state)
    states.sort(key=lambda state: int(state["worker"]))
    if not states or [state["worker"] for state in states] != list(range(states[0]["workers"])):
        raise OptionError("to merge states, that of each worker is needed, once")
    first = min(states, key=lambda state: int(state["step"]))
    last = max(states, key=lambda state: int(state["step"]))
    merged = {name: value for name, value in first.items() if name not in _PLACES}
    lineage = Lineage(last["lineage"]).between(0, first["step"])
    return merged | {"worker": 0, "workers": 1, "lineage": lineage}
