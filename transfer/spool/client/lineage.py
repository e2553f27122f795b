"""Which step of the training consumed which rows, told in few words. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from transfer.transports.errors import OptionError

#: first step, how many, epoch, row at which the first begins, rows of each (all ranks together), ranks
Record = list[int]


def with_seed(records: Iterable[Record], seed: int | None) -> list[Record]:
    """Records as a spool keeps them: of a shuffled order its seed is the seventh number."""
    return [list(record) if seed is None else [*record, seed] for record in records]


class Lineage:
    """Steps and the rows that they consumed, all ranks together; steps on end are one record.

    A record is [first_step, steps, epoch, begin_row, rows_per_step, ranks]. Of a step's rows, rank r of R had
    [r * rows // R, (r + 1) * rows // R). Not thread-safe.
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.records: list[Record] = [list(record) for record in records]

    def add(self, step: int, epoch: int, begin: int, end: int, ranks: int) -> None:
        """One more step. Numbers rise; one that was there before, and all later ones, are forgotten."""
        if self.records and step < self.records[-1][0] + self.records[-1][1]:
            self.records = self.between(0, step)
        rows = end - begin
        if self.records:
            first, steps, *what = self.records[-1]
            if step == first + steps and what == [epoch, begin - steps * rows, rows, ranks]:
                self.records[-1][1] += 1
                return
        self.records.append([step, 1, epoch, begin, rows, ranks])

    def between(self, first: int, stop: int) -> list[Record]:
        """The records of steps [first, stop), cut where they reach beyond."""
        found = []
        for start, steps, epoch, begin, rows, ranks in self.records:
            low, high = max(first, start), min(stop, start + steps)
            if low < high:
                found.append([low, high - low, epoch, begin + (low - start) * rows, rows, ranks])
        return found

    def since(self, epoch: int, row: int) -> list[Record]:
        """The records of steps that do not end before this row."""
        found = []
        for first, steps, of, begin, rows, ranks in self.records:
            done = steps if of < epoch else max(0, min(steps, (row - begin) // rows)) if of == epoch else 0
            if done < steps:
                found.append([first + done, steps - done, of, begin + done * rows, rows, ranks])
        return found

    def rows_of(self, step: int) -> tuple[int, int, int]:
        """(epoch, begin, end) of the rows that the step consumed. Raises OptionError if it is not known."""
        for _, _, epoch, begin, rows, _ in self.between(step, step + 1):
            return epoch, begin, begin + rows
        known = f"{self.records[0][0]} to {sum(self.records[-1][:2]) - 1}" if self.records else "none"
        raise OptionError(f"step {step} is not in the lineage", hint=f"Steps that are: {known}.")
