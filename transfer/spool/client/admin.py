"""What is asked of a spool beside its rows: which runs there are, and which rows a step of training had."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from transfer.spool.client.connection import ReconnectingClient
from transfer.spool.format.address import parse
from transfer.spool.format.protocol import (
    Ask,
    DeleteRun,
    Explain,
    ForgetGroup,
    InspectRun,
    Lineage,
    ListRuns,
    Read,
)
from transfer.transports.errors import Broken, LogDamaged, OptionError

if TYPE_CHECKING:
    from types import TracebackType

    from transfer.spool.format.rows import Arrays

#: bytes of rows that are read at a time to verify them
_VERIFIED = 4 << 20
#: rows whose origin is asked for at a time
_CHUNK = 1 << 17
#: what says where a row comes from: of which task's frame it is which row
_ORIGIN = ("job", "partition", "attempt", "sequence")


class Steps(NamedTuple):
    """Steps of training on end, and the rows of an epoch's order that they had, all ranks together.

    first: number of the first step. begin: row at which it begins. rows: of each step, of which rank r of R
    had [r * rows // R, (r + 1) * rows // R). seed: of the shuffle, None without. run_id: of the run that has
    these rows.
    """

    first: int
    steps: int
    epoch: int
    begin: int
    rows: int
    ranks: int
    seed: int | None = None
    run_id: str = ""

    @property
    def stop(self) -> int:
        return self.first + self.steps

    def between(self, first: int, stop: int) -> Steps | None:
        """Those of [first, stop) among them."""
        low, high = max(first, self.first), min(stop, self.stop)
        if low >= high:
            return None
        return self._replace(first=low, steps=high - low, begin=self.begin + (low - self.first) * self.rows)

    def goes_on(self, before: Steps) -> bool:
        """Whether these continue the others, so that both can be told as one."""
        return self == before._replace(
            first=before.stop, steps=self.steps, begin=before.begin + before.steps * before.rows
        )


class SpoolAdmin:
    """Asks the spool at `run://HOST:PORT`, of a run's address too, about its runs. Not thread-safe.

    timeout: seconds within which it must answer. Methods raise Again when it does not, and OptionError for
    a run that is not there. A context manager.
    """

    def __init__(self, address: str, *, timeout: float = 30.0) -> None:
        self.address = parse(address)
        self._link = ReconnectingClient(self.address.endpoint, timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent; any thread: a call elsewhere raises Closed."""
        self._link.close()

    def overview(self) -> dict[str, Any]:
        """`runs`: a summary of each, by name; `disk_bytes`; `full`: why writers wait just now, or ""."""
        found = self._ask(ListRuns())
        found["runs"].sort(key=lambda run: str(run["name"]))
        return found

    def inspect(self, run: str) -> dict[str, Any]:
        """A run's summary with its `columns`, `groups`, `readers` and the `jobs` that write to it."""
        return self._ask(InspectRun(run=run))

    def delete(self, run: str, *, force: bool = False, run_id: str = "") -> tuple[int, int]:
        """The run is gone with its groups: its (rows, bytes). force: though somebody reads or writes it,
        for which UsageError is raised else. run_id: only the run with this id, else Broken is raised.
        (0, 0) where the answer was lost, and the run is gone when it is asked for again."""
        run_id = run_id or self.inspect(run)["run_id"]  # asked again, it must not be a run of later
        found = self._ask_to_end(DeleteRun(run=run, force=force, run_id=run_id))
        return found.get("rows", 0), found.get("bytes", 0)

    def verify(self, run: Mapping[str, Any]) -> str:
        """Reads all rows of a run: what of them is damaged, or "". run: its summary."""
        if run["damage"]:
            return str(run["damage"])
        begin, end = run["first"], run["rows"]
        step = max(1, _VERIFIED * (end - begin) // max(1, run["bytes"]))
        while begin < end:
            ask = Read(run=run["name"], run_id=run["run_id"], begin=begin, end=min(begin + step, end))
            try:
                _, meta = self._link.ask(ask)
            except LogDamaged as error:
                return str(error).partition("\n  hint: ")[0]
            if not meta["count"]:
                return f"rows {begin:,} to {end:,} are not there"
            begin += meta["count"]
        return ""

    def groups(self, run: str) -> dict[str, Any]:
        """The run's groups by name, each with its positions (`acknowledged`, `delivered`), the rows that it
        has never acknowledged (`behind`), its `readers` of this moment, seconds without activity (`idle`),
        the bytes that a stream keeps since it has not acknowledged them (`held_bytes`), and `given_up`."""
        found = self.inspect(run)
        for name, group in found["groups"].items():
            group["readers"] = sum(reader["group"] == name for reader in found["readers"])
            group["behind"] = behind(found, name)
        groups: dict[str, Any] = found["groups"]
        return dict(sorted(groups.items()))

    def forget_group(self, run: str, group: str, *, force: bool = False) -> int:
        """The group's positions are gone, and a stream keeps no rows for it: the bytes that are given back.

        A reader of this name begins as a new group does. Raises OptionError: there is no such group;
        UsageError: it is being read, unless `force`. 0 where the answer was lost, and the group is gone when
        it is asked for again.
        """
        return int(self._ask_to_end(ForgetGroup(run=run, group=group, force=force)).get("bytes", 0))

    def lineage(self, run: str, group: str = "default") -> list[Steps]:
        """The steps that the group has acknowledged, in their order, each told once.

        Raises OptionError: there is no such group.
        """
        found = self._ask(Lineage(run=run, group=group))
        return merged(Steps(*record)._replace(run_id=found["run_id"]) for record in found["steps"])

    def step(self, run: str, group: str, number: int) -> Steps:
        """One step. Raises OptionError if it is not known."""
        known = self.lineage(run, group)
        for steps in known:
            found = steps.between(number, number + 1)
            if found is not None:
                return found
        told = f"steps {known[0].first} to {known[-1].stop - 1} are" if known else "none is"
        raise OptionError(
            f"step {number} of group {group!r} is not in the lineage of run {run!r}",
            hint=f"{told} known; a step is told when it was acknowledged",
        )

    def explain(self, run: str, lineage: Iterable[Steps]) -> Iterator[dict[str, Any]]:
        """Where each row of these steps comes from, as tables of at most 131,072 rows: columns by name.

        `step`, `rank`, `epoch`, `position` in the epoch's order; `run_id` and `job` (text), `partition`,
        `attempt` of the task that sent it, `sequence` of its frame, `row` in that frame. All others are
        int64. Raises Broken: the run is not the one of these steps any more.
        """
        import numpy as np

        for steps in lineage:
            stop = steps.begin + steps.steps * steps.rows
            bounds = np.arange(1, steps.ranks + 1) * steps.rows // steps.ranks
            for begin in range(steps.begin, stop, _CHUNK):
                end = min(begin + _CHUNK, stop)
                origin, names = self._explain(run, steps, begin, end)
                position = np.arange(begin, end)
                nth, within = np.divmod(position - steps.begin, steps.rows)
                yield {
                    "step": steps.first + nth,
                    "rank": np.searchsorted(bounds, within, side="right"),
                    "epoch": np.full(end - begin, steps.epoch),
                    "position": position,
                    "run_id": np.full(end - begin, steps.run_id),
                    **origin,
                    "job": np.array(names)[origin["job"]],
                }

    def _explain(self, run: str, steps: Steps, begin: int, end: int) -> tuple[Arrays, list[str]]:
        asked = Explain(
            run=run, run_id=steps.run_id, epoch=steps.epoch, seed=steps.seed, begin=begin, end=end
        )
        arrays, meta = self._link.ask(asked)
        if len(arrays["row"]) != end - begin:
            raise OptionError(
                f"run {run!r} has no rows {begin:,} to {end:,}", hint="it was deleted and written anew"
            )
        return arrays, meta["jobs"]

    def _ask_to_end(self, request: Ask) -> dict[str, Any]:
        """Asks for the end of something. {}: it is not there any more when it is asked for again, since the
        first answer was lost with the connection."""
        try:
            return self._ask(request)
        except (Broken, OptionError):
            if not self._link.repeated:
                raise
            return {}

    def _ask(self, request: Ask) -> dict[str, Any]:
        _, meta = self._link.ask(request)
        del meta["id"]
        return meta


def merged(told: Iterable[Steps]) -> list[Steps]:
    """The steps in their order, of what was told one after another.

    Ranks tell the same steps, each at its own time: these count once. Steps that were done anew, from an
    older checkpoint, count as they were done last; with them what followed the old ones is gone.
    """
    found: list[Steps] = []
    for steps in told:
        known = next((one for one in reversed(found) if one.first <= steps.first), None)
        if known is not None and known.between(steps.first, steps.stop) == steps:
            continue
        while found and found[-1].stop > steps.first:
            rest = found.pop().between(0, steps.first)
            if rest is not None:
                found.append(rest)
        if found and steps.goes_on(found[-1]):
            before = found.pop()
            steps = before._replace(steps=before.steps + steps.steps)
        found.append(steps)
    return found


def behind(run: Mapping[str, Any], group: str) -> int:
    """Rows of a run that a group has never acknowledged. run: its summary."""
    epoch, row = run["groups"][group]["acknowledged"] or (0, 0)
    return 0 if epoch else max(0, int(run["rows"]) - int(row))


def ranges(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A table of `explain` in few words: for each rank and frame its rows as [begin, end) pairs."""
    import numpy as np

    names = ("rank", *_ORIGIN)
    order = np.lexsort([table["row"], *(table[name] for name in reversed(names))])
    found: list[dict[str, Any]] = []
    for values in zip(*(table[name][order].tolist() for name in (*names, "row")), strict=True):
        *key, row = values
        if not found or [found[-1][name] for name in names] != key:
            found.append({**dict(zip(names, key, strict=True)), "rows": []})
        rows = found[-1]["rows"]
        if rows and rows[-1][1] == row:
            rows[-1][1] += 1
        else:
            rows.append([row, row + 1])
    return found
