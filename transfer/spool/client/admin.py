"""Administrative requests to a spool: its runs, its groups, and the rows of a training step."""

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
    LineageRequest,
    ListRuns,
    Read,
)
from transfer.transports.errors import Broken, LogDamaged, OptionError

if TYPE_CHECKING:
    from transfer.spool.format.rows import Arrays

#: bytes of rows that `verify` reads at a time
_VERIFIED = 4 << 20
#: rows whose origin one request asks for
_CHUNK = 1 << 17
#: the columns of a row's origin: the task, its frame, and the row in that frame
_ORIGIN = ("job", "partition", "attempt", "sequence")


class Steps(NamedTuple):
    """Consecutive training steps, and the rows of an epoch's order that they consumed, all ranks together.

    first: number of the first step. begin: row at which it begins. rows: of each step; rank r of R consumed
    [r * rows // R, (r + 1) * rows // R). seed: of the shuffle, or None. run_id: of the run with these rows.
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
        """Returns the part of these steps inside [first, stop)."""
        low, high = max(first, self.first), min(stop, self.stop)
        if low >= high:
            return None
        return self._replace(first=low, steps=high - low, begin=self.begin + (low - self.first) * self.rows)

    def goes_on(self, before: Steps) -> bool:
        """Whether these steps continue `before`, so that one record can describe both."""
        return self == before._replace(
            first=before.stop, steps=self.steps, begin=before.begin + before.steps * before.rows
        )


class SpoolAdmin:
    """Manages the runs of the spool at `run://HOST:PORT`; a run's address works, too. Not thread-safe.

    A context manager. Methods raise Again if the spool does not answer, and OptionError for an unknown run.

    Args:
        address: the spool's address.
        timeout: seconds within which the spool must answer.
    """

    def __init__(self, address: str, *, timeout: float = 30.0) -> None:
        self.address = parse(address)
        self._link = ReconnectingClient(self.address.endpoint, timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. Idempotent; any thread: a call in another thread raises Closed."""
        self._link.close()

    def overview(self) -> dict[str, Any]:
        """Returns `runs`: a summary of each, by name; `disk_bytes`; `full`: why writers wait now, or ""."""
        found = self._ask(ListRuns())
        found["runs"].sort(key=lambda run: str(run["name"]))
        return found

    def inspect(self, run: str) -> dict[str, Any]:
        """Returns a run's summary with its `columns`, `groups`, `readers` and the `jobs` that write to it."""
        return self._ask(InspectRun(run=run))

    def delete(self, run: str, *, force: bool = False, run_id: str = "") -> tuple[int, int]:
        """Deletes a run with its groups.

        Args:
            run: its name.
            force: deletes it even while clients read or write it; by default that raises UsageError.
            run_id: deletes only the run with this id; another one raises Broken.

        Returns:
            (rows, bytes) of the run; (0, 0) if the answer was lost and the run is gone at the second request.
        """
        run_id = run_id or self.inspect(run)["run_id"]  # a repeated request must not delete a later run
        found = self._ask_to_end(DeleteRun(run=run, force=force, run_id=run_id))
        return found.get("rows", 0), found.get("bytes", 0)

    def verify(self, run: Mapping[str, Any]) -> str:
        """Reads all rows of a run; returns a description of the damage, or "". run: its summary."""
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
                return f"rows {begin:,} to {end:,} are missing"
            begin += meta["count"]
        return ""

    def groups(self, run: str) -> dict[str, Any]:
        """Returns the run's groups by name.

        Each has its positions (`acknowledged`, `delivered`), the rows that it has never acknowledged
        (`behind`), its current `readers`, seconds without activity (`idle`), the bytes that a stream keeps
        for it (`held_bytes`), and `given_up`.
        """
        found = self.inspect(run)
        for name, group in found["groups"].items():
            group["readers"] = sum(reader["group"] == name for reader in found["readers"])
            group["behind"] = behind(found, name)
        groups: dict[str, Any] = found["groups"]
        return dict(sorted(groups.items()))

    def forget_group(self, run: str, group: str, *, force: bool = False) -> int:
        """Deletes a group's positions; a stream keeps no more rows for it.

        A later reader of this name begins as a new group.

        Returns:
            The bytes that are freed; 0 if the answer was lost and the group is gone at the second request.

        Raises:
            OptionError: there is no such group.
            UsageError: a client reads it, unless `force`.
        """
        return int(self._ask_to_end(ForgetGroup(run=run, group=group, force=force)).get("bytes", 0))

    def lineage(self, run: str, group: str = "default") -> list[Steps]:
        """Returns the steps that the group has acknowledged, in order, each once.

        Raises OptionError: there is no such group.
        """
        found = self._ask(LineageRequest(run=run, group=group))
        return merged(Steps(*record)._replace(run_id=found["run_id"]) for record in found["steps"])

    def step(self, run: str, group: str, number: int) -> Steps:
        """Returns one step. Raises OptionError if it is unknown."""
        known = self.lineage(run, group)
        for steps in known:
            found = steps.between(number, number + 1)
            if found is not None:
                return found
        range_text = f"steps {known[0].first} to {known[-1].stop - 1} are" if known else "none is"
        raise OptionError(
            f"step {number} of group {group!r} is not in the lineage of run {run!r}",
            hint=f"{range_text} known; a step is known when it was acknowledged",
        )

    def explain(self, run: str, lineage: Iterable[Steps]) -> Iterator[dict[str, Any]]:
        """Yields the origin of each row of these steps, as tables of at most 131,072 rows: columns by name.

        The columns: `step`, `rank`, `epoch`, `position` in the epoch's order; `run_id` and `job` (text),
        `partition`, `attempt` of the task that sent it, `sequence` of its frame, `row` in that frame. All but
        the texts are int64. Raises Broken: the run is not the one of these steps any more.
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
        """Sends a request that deletes something. Returns {} if it is gone at the second request, since the
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


def merged(records: Iterable[Steps]) -> list[Steps]:
    """Returns the steps in order, from records in the order of their arrival.

    Ranks report the same steps, each at another time: these count once. Steps that were repeated from an
    older checkpoint count as they were done last; the steps after the old ones are dropped.
    """
    found: list[Steps] = []
    for steps in records:
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
    """Returns how many rows of a run a group has never acknowledged. run: its summary."""
    epoch, row = run["groups"][group]["acknowledged"] or (0, 0)
    return 0 if epoch else max(0, int(run["rows"]) - int(row))


def ranges(table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Summarizes a table of `explain`: for each rank and frame its rows as [begin, end) pairs."""
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
