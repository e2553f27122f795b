"""Calls with one argument of a wrong kind, each under a deadline, and how they ended."""

from __future__ import annotations

import inspect
import math
import threading
import warnings
from dataclasses import dataclass, field
from typing import Any

#: of each wrong kind one
KINDS: dict[str, Any] = {
    "text": "x",
    "None": None,
    "object": object(),
    "-1": -1,
    "nan": math.nan,
    "huge": 1 << 70,
}
#: seconds; a call that takes longer hangs
DEADLINE = 30.0
#: a truth value: every object has one, as for pyzmq
TRUTHS = frozenset({"copy", "track"})


@dataclass
class Case:
    """One callable. good: arguments with which it returns at once. takes: what it takes besides, by its
    documentation: "parameter: kind kind", or the parameter alone."""

    name: str
    call: Any
    good: dict[str, Any] = field(default_factory=dict)
    takes: tuple[str, ...] = ()

    def wrong(self):
        """(what is wrong, arguments) of each call."""
        taken = {name.strip(): kinds.split() for name, _, kinds in (one.partition(":") for one in self.takes)}
        for name in [*self.good, *(name for name in parameters(self.call) if name not in self.good)]:
            for kind, value in KINDS.items():
                if name not in TRUTHS and kind not in taken.get(name, ()) and taken.get(name) != []:
                    yield f"{self.name}({name}={kind})", {**self.good, name: value}


def parameters(call) -> list[str]:
    """Those that can be given by name."""
    by_name = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    try:
        found = inspect.signature(call).parameters.values()
    except ValueError:  # of the compiled core
        return []
    return [one.name for one in found if one.kind in by_name and one.name != "self"]


def outcome(call, arguments) -> BaseException | str:
    """What the call raises, "hangs", or "returns"."""
    ended: list[BaseException | str] = []

    def run() -> None:
        try:
            made = call(**arguments)
            if hasattr(made, "close"):
                made.close()
        except BaseException as error:  # noqa: BLE001 - it is what is looked at
            # Its traceback would hold this frame, which holds `ended`: CPython before 3.12.4 crashes when it
            # collects a loop with a memoryview in it (python/cpython#77894).
            ended.append(error.with_traceback(None))
        else:
            ended.append("returns")

    thread = threading.Thread(target=run, daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        thread.start()
        thread.join(DEADLINE)
    return ended[0] if ended else "hangs"


def missing(name: str, owner: Any, cases: list[Case], but: set[str]) -> list[str]:
    """Public callables of an owner of which there is no case."""
    known = {case.name for case in cases} | but
    public = [one for one in dir(owner) if not one.startswith("_") and callable(getattr(owner, one, None))]
    return [f"{name}.{one}" for one in public if f"{name}.{one}" not in known and one not in known]
