"""Tables on standard output, for people; and JSON, for programs."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any


def show_table(
    head: Sequence[str], lines: Sequence[Sequence[str]], *, right: Collection[str] = (), indent: str = ""
) -> None:
    """Columns as wide as they must be, and those named in `right` aligned there; nothing without lines. A
    terminal may break lines, a program need not."""
    if not lines:
        return
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    for line in (head, *lines):
        cells = [
            text.rjust(width) if name in right else text.ljust(width)
            for name, text, width in zip(head, line, widths, strict=True)
        ]
        print((indent + "  ".join(cells)).rstrip())


def print_json(value: Any) -> None:
    """One line. NaN and infinity, which peers may send and JSON does not have, become null."""
    try:
        text = json.dumps(value, allow_nan=False)
    except ValueError:
        text = json.dumps(json.loads(json.dumps(value), parse_constant=lambda _: None))
    print(text, flush=True)


def printable(text: object) -> str:
    """A text that came from elsewhere, without what a terminal would obey."""
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in str(text))
