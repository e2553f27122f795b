"""Runs line-ups: every peer once, then every peer again, so that noise affects all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from bench.cases import MODULES, case_named
from bench.peers import OURS, PEERS
from bench.stats import Spread, ratio
from bench.work import Case, Failed, Metric, Sample, Skipped, Work

Progress = Callable[[str], None]


@dataclass(slots=True)
class LineUp:
    """The samples of each peer for one `Work`, in the order of the rounds."""

    case: Case
    work: Work
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    #: why a peer has no result
    absent: dict[str, str] = field(default_factory=dict)

    @property
    def metric(self) -> Metric:
        return self.case.metric(self.work)

    def values(self, peer: str, key: str) -> list[float]:
        """Returns the number `key` of each round; empty when the peer has none."""
        return [sample[key] for sample in self.samples.get(peer, []) if key in sample]

    def spread(self, peer: str, key: str) -> Spread | None:
        values = self.values(peer, key)
        return Spread.of(values) if values else None

    def ratio(self, peer: str, ours: str = OURS, key: str | None = None) -> Spread | None:
        """Returns ours divided by that peer's, round by round."""
        key = self.metric.key if key is None else key
        return ratio(self.values(ours, key), self.values(peer, key))

    def lost(self, peer: str) -> int:
        """Returns the messages that did not arrive, over all rounds."""
        return int(sum(self.values(peer, "lost")))


def run_line_up(work: Work, repeat: int, progress: Progress) -> LineUp:
    """Runs `repeat` rounds over the peers of `work`. A peer that cannot run is skipped, with the reason."""
    case = case_named(work.case)
    line_up = LineUp(case, work)
    for turn in range(repeat):
        for peer in work.peers:
            if peer in line_up.absent:
                continue
            progress(f"{work.case} {work.label} · {peer} · round {turn + 1} of {repeat}")
            try:
                sample = case.measure(work, peer)
            except Skipped as reason:
                line_up.absent[peer] = f"skipped: {reason}"
            except Failed as reason:
                line_up.absent[peer] = f"failed: {str(reason).strip().splitlines()[-1]}"
                line_up.samples.pop(peer, None)
            else:
                line_up.samples.setdefault(peer, []).append(sample)
    return line_up


def select(
    cases: Iterable[str],
    sizes: Iterable[str],
    peers: Iterable[str],
    quick: bool,
    transports: Iterable[str] = (),
) -> list[Work]:
    """Returns the matching works; an empty choice means all. Raises KeyError for an unknown case.

    transports: `transfer` also uses these, in every case over tcp.
    """
    wanted_sizes = {plain(size) for size in sizes}
    wanted_peers = frozenset(peers)
    more = tuple(f"{OURS}-{transport}" for transport in transports)
    chosen = []
    for name in cases or MODULES:
        case = case_named(name)
        for work in case.works(quick):
            if wanted_sizes and not wanted_sizes & {plain(work.label), plain(str(work.size))}:
                continue
            running = (
                tuple(peer for peer in _candidates(work) if peer in wanted_peers)
                if wanted_peers
                else work.peers
            )
            if OURS in running and case.any_transport:
                running += tuple(peer for peer in more if peer not in running)
            if running:
                chosen.append(replace(work, peers=running))
    return chosen


def _candidates(work: Work) -> tuple[str, ...]:
    """Returns the peers of the work; if it has `transfer`, its variants may be named, too."""
    variants = [peer for peer in PEERS if peer.startswith(OURS) and peer not in work.peers]
    return (*work.peers, *(variants if OURS in work.peers else ()))


def plain(size: str) -> str:
    """Normalizes a size: `64 KiB`, `64kib` and `64KB` are one, and so are `64` and `64B`."""
    word = size.lower().replace(" ", "").replace("×", "x").replace("kb", "kib").replace("mb", "mib")
    return f"{word}b" if word.isdigit() else word
