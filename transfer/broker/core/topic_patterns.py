"""Topics and patterns: their syntax, and which topics a pattern matches. Pure.

A topic is text of 1 to 255 bytes in UTF-8, without NUL. All protocols share topics; the meaning of a pattern
depends on its kind:

| kind | matches | wildcards |
|---|---|---|
| EXACT | the same text | none |
| PREFIX | topics that begin with it; the empty one matches all | none |
| DOTS | topics by their segments, split at dots | `*`: one segment; `>`, only last: one or more segments |
| PATHS | topics by their segments, split at slashes | `*`: one segment |

Wildcards are whole segments. A pattern with a wildcard matches no topic with an empty segment (`a..b` for
DOTS, `/a` or `a//b` for PATHS); only its full text and prefixes match such a topic.

DOTS are strict, in patterns and in topics of publishers: no empty segment, no white space, no `*` or `>`
within a longer segment, and not both `>` and `*`. PATHS are lenient: white space is allowed, `*` within a
longer segment is an ordinary letter, and only a pattern with a wildcard must not have empty segments.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple

from transfer.broker.core.topic_names import MAX_TOPIC
from transfer.transports.errors import UsageError

#: limit on the bytes of a topic or pattern
MAX_BYTES = MAX_TOPIC
#: the wildcards, each a whole segment
ONE, REST = "*", ">"


class Kind(Enum):
    """The kind of a pattern, which decides how it is read."""

    EXACT = "exact"
    PREFIX = "prefix"
    DOTS = "dots"
    PATHS = "paths"


#: the separators of segments, for the kinds that have segments
MARKS = {Kind.DOTS: ".", Kind.PATHS: "/"}


class Rank(IntEnum):
    """How closely a pattern describes its topics; the lower, the closer. Routes are chosen by it."""

    EXACT = 0  # no wildcard
    ONE = 1  # `*`
    REST = 2  # `>`, and every prefix


class Shape(NamedTuple):
    """The places of a pattern's wildcards: patterns of one shape differ only in their other segments.

    size: number of segments, without `>`. ones: the places of `*`, from 0. rest: it ends with `>`.
    """

    kind: Kind
    size: int
    ones: tuple[int, ...]
    rest: bool


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """A pattern of topics, equal by kind and text. Make it with `pattern`, which checks the text."""

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
        """The places of its wildcards; None for one without, and for a prefix."""
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
        """Returns whether it matches this topic. Simple and slow: `pattern_index` does the same for many
        patterns."""
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


def pattern(kind: Kind, text: str) -> TopicPattern:
    """Makes a pattern of this kind. Raises UsageError if the text is invalid."""
    what = f"the pattern {text!r:.80}"
    if text or kind is not Kind.PREFIX:
        check_text(text, what)
    if kind is Kind.DOTS:
        _check_dots(text, what)
        segments = text.split(".")
        if REST in segments[:-1]:
            raise UsageError(f"{what} continues after '>'", hint="'>' is the last segment")
        if segments[-1] == REST and ONE in segments:
            raise UsageError(f"{what} has both '*' and '>'", hint="use one of them")
    elif kind is Kind.PATHS:
        segments = text.split("/")
        if ONE in segments and "" in segments:
            raise UsageError(f"{what} has an empty segment", hint="with '*', no '/' first, last or doubled")
    return TopicPattern(kind, text)


def check_topic(text: str, kind: Kind = Kind.EXACT) -> None:
    """Raises UsageError unless a publisher may use this topic where patterns are of this kind.

    DOTS: segments as above, none of them a wildcard. Other kinds: any text of 1 to 255 bytes without NUL.
    """
    what = f"the topic {text!r:.80}"
    check_text(text, what)
    if kind is Kind.DOTS:
        _check_dots(text, what)
        if ONE in text or REST in text:
            raise UsageError(f"{what} has a wildcard", hint="only subscriptions may use '*' and '>'")


def check_text(text: str, what: str) -> None:
    """Raises UsageError unless a text may be a topic, a pattern or another name: 1 to 255 bytes of UTF-8, no
    NUL.

    what: names it in the error.
    """
    if not text:
        raise UsageError(f"{what} is empty")
    if "\0" in text:
        raise UsageError(f"{what} has a NUL")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} is not UTF-8") from error
    if size > MAX_BYTES:
        raise UsageError(f"{what} has {size} bytes", hint=f"at most {MAX_BYTES}")


def _check_dots(text: str, what: str) -> None:
    """Checks the rules of DOTS that patterns and topics share."""
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
