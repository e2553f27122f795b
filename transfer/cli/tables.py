"""Prints tables for people, and JSON for programs, to standard output; asks for confirmation."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

One = TypeVar("One", bound=Mapping[str, Any])


def show_table(
    head: Sequence[str], lines: Sequence[Sequence[str]], *, right: Collection[str] = (), indent: str = ""
) -> None:
    """Prints a table, or nothing without lines. right: columns that are aligned to the right.

    It does not break long lines: a terminal does that.
    """
    if not lines:
        return
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    for line in (head, *lines):
        cells = [
            text.rjust(width) if name in right else text.ljust(width)
            for name, text, width in zip(head, line, widths, strict=True)
        ]
        print((indent + "  ".join(cells)).rstrip())


def show_list(
    items: Sequence[One],
    head: Sequence[str],
    line: Callable[[One], Sequence[str]],
    *,
    as_json: bool,
    right: Collection[str] = (),
    nothing: str,
) -> None:
    """Prints a table with a line for each item, or `nothing` without items. as_json: prints the items."""
    if as_json:
        for one in items:
            print_json(one)
        return
    show_table(head, [line(one) for one in items], right=right)
    if not items:
        print(nothing)


def print_json(value: Any) -> None:
    """Prints JSON as one line.

    NaN and infinity, which peers may send, become null: JSON does not have them.
    """
    try:
        text = json.dumps(value, allow_nan=False)
    except ValueError:
        text = json.dumps(json.loads(json.dumps(value), parse_constant=lambda _: None))
    print(text, flush=True)


def printable(text: object, keep: str = "") -> str:
    """Returns a foreign text with its control characters escaped for a terminal, except those of `keep`."""
    return "".join(sign if sign.isprintable() or sign in keep else repr(sign)[1:-1] for sign in str(text))


def confirmed(question: str) -> bool:
    """Asks, and returns whether the answer on standard input is yes. Anything else, or its end, is a no."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
