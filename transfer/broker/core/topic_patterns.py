"""Topics and patterns: which texts are allowed, and which topics a pattern means. Pure.

A topic is text of 1 to 255 bytes in UTF-8, without NUL. Topics are shared by all protocols; what a
pattern means depends on its kind:

| kind | means | wildcards | |---|---|---| | EXACT | the topic that reads the same | none | | PREFIX |
topics that begin with it; the empty one means all | none | | DOTS | topics whose segments, split at dots,
fit | `*`: any one segment; `>`, last only: one or more segments | | PATHS | topics whose segments, split
at slashes, fit | `*`: any one segment |

Wildcards are whole segments. No wildcard stands for an empty segment, nor does any pattern with a
wildcard mean a topic that has one anywhere (`a..b` for DOTS, `/a` or `a//b` for PATHS): such a topic is
reached by its full text and by prefixes.

DOTS are strict, in patterns and in what publishers say: no empty segment, no white space, no `*` or `>`
within a longer segment, and `>` does not go together with `*`. PATHS are lenient: white space is allowed,
a `*` within a longer segment is a letter as any other, and only a pattern with a wildcard must not have
empty segments.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple

from transfer.broker.protocols.names import MAX_TOPIC
from transfer.transports.errors import UsageError

#: bytes of a topic or pattern at most
MAX_BYTES = MAX_TOPIC
#: the wildcards, each a segment of its own
ONE, REST = "*", ">"


class Kind(Enum):
    """How a pattern is read."""

    EXACT = "exact"
    PREFIX = "prefix"
    DOTS = "dots"
    PATHS = "paths"


#: what splits topics into segments, for the kinds that do
MARKS = {Kind.DOTS: ".", Kind.PATHS: "/"}


class Rank(IntEnum):
    """How closely a pattern describes its topics; the lower, the closer. It decides between routes."""

    EXACT = 0  # no wildcard
    ONE = 1  # `*`
    REST = 2  # `>`, and every prefix


class Shape(NamedTuple):
    """Where a pattern has wildcards: patterns of one shape differ only in their other segments.

    size: how many segments, `>` not counted. ones: the places of `*`, from 0 on. rest: `>` goes on behind.
    """

    kind: Kind
    size: int
    ones: tuple[int, ...]
    rest: bool


@dataclass(frozen=True, slots=True)
class Pattern:
    """Which topics somebody wants. Make it with `pattern`, which looks at the text; equal by kind and
    text."""

    kind: Kind
    text: str

    @property
    def segments(self) -> tuple[str, ...] | None:
        """The segments of a pattern with wildcards; None for one without."""
        mark = MARKS.get(self.kind)
        if mark is None or (ONE not in self.text and REST not in self.text):
            return None
        segments = tuple(self.text.split(mark))
        return segments if _is_wild(self.kind, segments) else None

    @property
    def shape(self) -> Shape | None:
        """Where it has wildcards; None for one without, and for a prefix."""
        segments = self.segments
        if segments is None:
            return None
        rest = self.kind is Kind.DOTS and segments[-1] == REST
        ones = tuple(place for place, segment in enumerate(segments) if segment == ONE)
        return Shape(self.kind, len(segments) - rest, ones, rest)

    @property
    def rank(self) -> Rank:
        """How closely it describes its topics."""
        if self.kind is Kind.PREFIX:
            return Rank.REST
        segments = self.segments
        if segments is None:
            return Rank.EXACT
        return Rank.REST if self.kind is Kind.DOTS and segments[-1] == REST else Rank.ONE

    def matches(self, topic: str) -> bool:
        """Whether it means this topic. Plain and slow: `pattern_index` finds the same for many patterns."""
        if self.kind is Kind.PREFIX:
            return topic.startswith(self.text)
        wanted = self.segments
        if wanted is None:
            return topic == self.text
        given = topic.split(MARKS[self.kind])
        if "" in given:
            return False
        if self.rank is Rank.REST:
            fixed = len(wanted) - 1
            return len(given) > fixed and _fit(wanted[:fixed], given)
        return len(given) == len(wanted) and _fit(wanted, given)


def pattern(kind: Kind, text: str) -> Pattern:
    """The pattern of this kind that the text says. Raises UsageError if there is none such."""
    what = f"the pattern {text!r:.80}"
    if text or kind is not Kind.PREFIX:
        check_text(text, what)
    if kind is Kind.DOTS:
        _check_dots(text, what)
        segments = text.split(".")
        if REST in segments[:-1]:
            raise UsageError(f"{what} goes on behind '>'", hint="'>' is the last segment")
        if segments[-1] == REST and ONE in segments:
            raise UsageError(f"{what} has both '*' and '>'", hint="use one of them")
    elif kind is Kind.PATHS:
        segments = text.split("/")
        if ONE in segments and "" in segments:
            raise UsageError(f"{what} has an empty segment", hint="no '/' first, last or doubled beside '*'")
    return Pattern(kind, text)


def check_topic(text: str, kind: Kind = Kind.EXACT) -> None:
    """Whether a publisher may use this topic where patterns are of this kind. Raises UsageError if not.

    DOTS: segments as above and none of them a wildcard. Other kinds: any text of 1 to 255 bytes without
    NUL.
    """
    what = f"the topic {text!r:.80}"
    check_text(text, what)
    if kind is Kind.DOTS:
        _check_dots(text, what)
        if ONE in text or REST in text:
            raise UsageError(f"{what} has a wildcard", hint="'*' and '>' are for those who subscribe")


def check_text(text: str, what: str) -> None:
    """Whether a text may be a topic, a pattern or another name at all: 1 to 255 bytes of UTF-8, no NUL.

    what: names it in the UsageError that is raised if not.
    """
    if not text:
        raise UsageError(f"{what} is empty")
    if "\0" in text:
        raise UsageError(f"{what} has a NUL")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} is no UTF-8") from error
    if size > MAX_BYTES:
        raise UsageError(f"{what} has {size} bytes", hint=f"at most {MAX_BYTES}")


def _check_dots(text: str, what: str) -> None:
    """The rules of DOTS that patterns and topics share."""
    if len(text.split()) != 1 or text != text.strip():
        raise UsageError(f"{what} has white space")
    for segment in text.split("."):
        if not segment:
            raise UsageError(f"{what} has an empty segment", hint="no '.' first, last or doubled")
        if len(segment) > 1 and (ONE in segment or REST in segment):
            raise UsageError(
                f"{what} has a wildcard within {segment!r}", hint="'*' and '>' are whole segments"
            )


def _is_wild(kind: Kind, segments: tuple[str, ...]) -> bool:
    return ONE in segments or (kind is Kind.DOTS and segments[-1] == REST)


def _fit(wanted: tuple[str, ...], given: list[str]) -> bool:
    return all(ours in (ONE, theirs) for ours, theirs in zip(wanted, given, strict=False))
