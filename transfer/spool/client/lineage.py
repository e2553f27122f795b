"""Which training step consumed which rows, in compact records. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from transfer.transports.errors import OptionError

#: first step, number of steps, epoch, row at which the first begins, rows of each (all ranks together), ranks
Record = list[int]


def with_seed(records: Iterable[Record], seed: int | None) -> list[Record]:
    """Returns records as a spool keeps them: with the seed of a shuffled order as the seventh number."""
    return [list(record) if seed is None else [*record, seed] for record in records]


class Lineage:
    """Steps and the rows that they consumed, all ranks together; consecutive steps are one record.

    A record is [first_step, steps, epoch, begin_row, rows_per_step, ranks]. Of a step's rows, rank r of R
    consumed [r * rows // R, (r + 1) * rows // R). Not thread-safe.
    """

    def __init__(self, records: Iterable[Record] = ()) -> None:
        self.records: list[Record] = [list(record) for record in records]

    def add(self, step: int, epoch: int, begin: int, end: int, ranks: int) -> None:
        """Adds a step. Numbers rise; a repeated number replaces its step and removes all later ones."""
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
        """Returns the records of steps [first, stop), cut at the limits."""
        found = []
        for start, steps, epoch, begin, rows, ranks in self.records:
            low, high = max(first, start), min(stop, start + steps)
            if low < high:
                found.append([low, high - low, epoch, begin + (low - start) * rows, rows, ranks])
        return found

    def since(self, epoch: int, row: int) -> list[Record]:
        """Returns the records of steps that end after this row."""
        found = []
        for first, steps, of, begin, rows, ranks in self.records:
            done = steps if of < epoch else max(0, min(steps, (row - begin) // rows)) if of == epoch else 0
            if done < steps:
                found.append([first + done, steps - done, of, begin + done * rows, rows, ranks])
        return found

    def rows_of(self, step: int) -> tuple[int, int, int]:
        """Returns (epoch, begin, end) of the step's rows. Raises OptionError if it is unknown."""
        for _, _, epoch, begin, rows, _ in self.between(step, step + 1):
            return epoch, begin, begin + rows
        known = f"{self.records[0][0]} to {sum(self.records[-1][:2]) - 1}" if self.records else "none"
        raise OptionError(f"step {step} is not in the lineage", hint=f"Known steps: {known}.")
