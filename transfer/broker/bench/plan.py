"""The plan of one measurement of a broker. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from transfer.transports.errors import OptionError

#: prefixes of the modes' topics
DIRECT, FANOUT, MIXED = "bench/direct", "bench/fanout", "bench/mixed"
#: payload bytes by the name of their class
CLASSES = {"small": 1 << 10, "medium": 64 << 10, "large": 1 << 20}
#: processes of one side at most
MOST_PROCESSES = 256
#: default duration of a measurement, in seconds
DURATION = 10.0


class Mode(StrEnum):
    """The pattern of a measurement.

    DIRECT_ACK: each publisher sends to a consumer of a group, which acknowledges; both use transfer's own
    sockets and a topic that is kept. FANOUT: publishers send to all subscribers by TTP, on topics that keep
    nothing. MIXED: publishers send by transfer's own sockets to many topics in turn. The first, third … are
    kept, and a group consumes them; a subscriber receives the others by TTP.
    """

    DIRECT_ACK = "direct-ack"
    FANOUT = "fanout"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Plan:
    """One measurement.

    payload_class: see CLASSES. compress: publishers compress each payload with LZ4, receivers decompress it.
    duration: seconds of publication. connections: publishers, each a process with a connection, and as many
    consumers if there is a group. fanout_subs: subscribers of FANOUT. mixed_topics: topics of MIXED.
    in_flight: messages of a publisher at most that their receivers do not have yet. Raises OptionError.
    """

    mode: Mode = Mode.DIRECT_ACK
    payload_class: str = "small"
    compress: bool = False
    duration: float = DURATION
    connections: int = 1
    fanout_subs: int = 8
    mixed_topics: int = 8
    in_flight: int = 64

    def __post_init__(self) -> None:
        if self.payload_class not in CLASSES:
            raise OptionError(
                f"there is no payload class {self.payload_class!r}", hint=f"one of {', '.join(CLASSES)}"
            )
        if not self.duration > 0:
            raise OptionError(f"a duration of {self.duration:g} s")
        for name in ("connections", "fanout_subs", "mixed_topics", "in_flight"):
            value = getattr(self, name)
            most = 10_000 if name == "in_flight" else MOST_PROCESSES
            if not 1 <= value <= most:
                raise OptionError(f"{name} of {value}", hint=f"1 to {most}")
        if self.mode is Mode.MIXED and self.mixed_topics < 2:
            raise OptionError("mixed needs at least two topics")

    @property
    def nbytes(self) -> int:
        """Bytes of a payload before compression."""
        return CLASSES[self.payload_class]

    @property
    def copies(self) -> int:
        """Receivers of each message."""
        return self.fanout_subs if self.mode is Mode.FANOUT else 1

    @property
    def name(self) -> str:
        """The name in the table: `fanout 1→8 medium lz4`."""
        what = {
            Mode.DIRECT_ACK: f"{self.connections}",
            Mode.FANOUT: f"{self.connections}→{self.fanout_subs}",
            Mode.MIXED: f"{self.connections}, {self.mixed_topics} topics",
        }[self.mode]
        return f"{self.mode.value} {what}, {self.payload_class}{', lz4' * self.compress}"

    def topics(self) -> list[str]:
        """Returns all topics. In DIRECT_ACK and FANOUT each publisher has one."""
        stem = {Mode.DIRECT_ACK: DIRECT, Mode.FANOUT: FANOUT, Mode.MIXED: f"{MIXED}/kept"}[self.mode]
        if self.mode is not Mode.MIXED:
            return [f"{stem}/{number}" for number in range(self.connections)]
        words = ("kept", "live")
        return [f"{MIXED}/{words[number % 2]}/{number}" for number in range(self.mixed_topics)]


#: patterns, split at slashes, of topics that a broker for measurements does not keep
TRANSIENT = (f"{FANOUT}/*", f"{MIXED}/live/*")


def matrix(common: Plan, *, compress: bool) -> Iterator[Plan]:
    """Yields every mode with every payload class. common: the other fields. compress: each with LZ4, too."""
    for mode in Mode:
        for payload_class in CLASSES:
            for packed in (False, True) if compress else (False,):
                yield replace(common, mode=mode, payload_class=payload_class, compress=packed)
