"""Which rows of a run each rank and worker gets in each step: arithmetic only. Pure.

An epoch's rows are cut into steps of `world * batch` rows from the row where reading began; rank r gets the
r-th `batch` rows of each. Worker w of W gets every W-th step from the w-th on, across epochs, so that asking
the workers in turn gives the steps in order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from transfer.spool.format.protocol import Fetch


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """The position before a step: the `index`-th of those that began at row `base` of the epoch.

    number: the step's number since the beginning of the training.
    """

    epoch: int
    base: int
    index: int
    number: int


@dataclass(frozen=True, slots=True)
class RowRequest:
    """A request for `times` steps from a place on, of which a worker gets every `workers`-th.

    tail: it is for the last, shorter step of an epoch.
    """

    place: StreamPlace
    times: int
    tail: bool
    fetch: Fetch


@dataclass(slots=True)
class StreamPlan:
    """The numbers that determine all steps. batch: rows per rank. epochs: None without end.

    columns: those to fetch; None: all. total: rows of the run, known only when it is over. Until then every
    step is a full one.
    """

    batch: int
    rank: int = 0
    world: int = 1
    workers: int = 1
    drop_last: bool = False
    epochs: int | None = 1
    seed: int | None = None
    columns: list[str] | None = None
    total: int | None = None

    @property
    def step_rows(self) -> int:
        """Rows of a full step, all ranks together."""
        return self.world * self.batch

    def steps(self, base: int) -> int:
        """Returns the number of steps of an epoch from row `base` on, when the run is over."""
        return self._whole(base) + bool(self._tail(base))

    def dropped(self, base: int) -> int:
        """Returns the rows at an epoch's end that no rank gets."""
        return 0 if self._tail(base) else self._rest(base)

    def _whole(self, base: int) -> int:
        assert self.total is not None
        return max(0, self.total - base) // self.step_rows

    def _rest(self, base: int) -> int:
        assert self.total is not None
        return max(0, self.total - base) % self.step_rows

    def _tail(self, base: int) -> int:
        """Returns the rows of the last, shorter step. 0 with fewer rows than ranks, or ranks would differ."""
        rest = self._rest(base)
        return 0 if self.drop_last or rest < self.world else rest

    def ended(self, place: StreamPlace) -> bool:
        """Whether no step is left, also if all further epochs, even endlessly many, have none."""
        if self.epochs is not None:
            return place.epoch >= self.epochs
        return self.total is not None and place.base == 0 and not self.steps(0)

    def settled(self, place: StreamPlace) -> StreamPlace:
        """Returns the same place in a later epoch, if this epoch has no such step."""
        while self.total is not None and not self.ended(place):
            steps = self.steps(place.base)
            if place.index < steps:
                break
            place = StreamPlace(place.epoch + 1, 0, place.index - steps, place.number)
        return place

    def after(self, place: StreamPlace, steps: int) -> StreamPlace:
        """Returns the place so many steps later, including those of other workers."""
        return self.settled(replace(place, index=place.index + steps, number=place.number + steps))

    def row(self, place: StreamPlace) -> int:
        """Returns the row of the epoch at which the step of a settled place begins."""
        return place.base + place.index * self.step_rows

    def rows_of(self, place: StreamPlace) -> tuple[int, int]:
        """Returns the step's rows, all ranks together: [begin, end)."""
        begin = self.row(place)
        if self.total is not None and begin + self.step_rows > self.total:
            return begin, begin + self._tail(place.base)
        return begin, begin + self.step_rows

    def ask(self, place: StreamPlace, most: int, visible: int) -> RowRequest:
        """Returns the request for the next steps of a settled place: at most `most`, and only visible ones.

        If none is visible, it asks for one step; the spool answers when that is visible.
        """
        known = visible if self.total is None else self.total
        left = max(0, known - place.base) // self.step_rows - place.index
        begin = self.row(place)
        if self.total is not None and left <= 0:
            rest = self._tail(place.base)
            first, last = self.rank * rest // self.world, (self.rank + 1) * rest // self.world
            rows = last - first
            return RowRequest(place, 1, True, self._fetch(place, begin + first, rows, rows, 1, self.total))
        times = max(1, min(most, -(-left // self.workers)))
        stride = self.workers * self.step_rows
        need = begin + (times - 1) * stride + self.step_rows
        begin += self.rank * self.batch
        return RowRequest(place, times, False, self._fetch(place, begin, self.batch, stride, times, need))

    def _fetch(self, place: StreamPlace, begin: int, rows: int, stride: int, times: int, need: int) -> Fetch:
        after = self.after(place, times * self.workers)
        return Fetch(
            epoch=place.epoch,
            seed=self.seed,
            begin=begin,
            rows=rows,
            stride=stride,
            times=times,
            need=need,
            next=(after.epoch, self.row(after)),
            least=self.step_rows if self.drop_last else self.world,
            columns=self.columns,
        )

    def complete(self, ask: RowRequest) -> int:
        """Returns how many of the requested steps exist: fewer if the run has ended since."""
        if ask.tail or self.total is None:
            return ask.times
        left = self._whole(ask.place.base) - ask.place.index
        return max(0, min(ask.times, -(-left // self.workers)))
