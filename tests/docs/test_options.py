"""The table of options in docs/patterns.md is that of the code, with its defaults."""

from __future__ import annotations

import re
from pathlib import Path

import transfer
import transfer.sockets.socket
from transfer import zmq
from transfer.sockets.options import CORE, OPTIONS, READ_ONLY

TEXT = (Path(__file__).parents[2] / "docs/patterns.md").read_text()
SECTION = TEXT.split("\n## Options\n", 1)[1].split("\n## ", 1)[0]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in SECTION.splitlines()
    if line.startswith("| `")
]
UNITS = {"MiB": 1 << 20, "GiB": 1 << 30}


def value_of(text: str) -> object:
    """`64 MiB`, `30,000`, `True`, `empty` as Python has them."""
    words = {"True": True, "False": False, "None": None, "empty": b""}
    if text in words:
        return words[text]
    number, _, unit = text.replace(",", "").partition(" ")
    return int(number) * UNITS.get(unit, 1)


def defaults() -> dict[str, object]:
    found: dict[str, object] = {}
    for row in ROWS:
        names = re.findall(r"`(\w+)`", row[0])
        texts = re.split(r", |; REQ .*", row[1]) if len(names) > 1 else [row[1].partition(";")[0]]
        values = [value_of(text) for text in texts if text]
        found.update(zip(names, values * len(names) if len(values) == 1 else values, strict=False))
    return found


def other_defaults() -> dict[str, object]:
    """Those of transfer.zmq, of which the text names the ones that differ."""
    text = SECTION.split("Defaults that differ in `transfer.zmq`: ", 1)[1].split(".\n", 1)[0]
    named = {name: value_of(value) for name, value in re.findall(r"`(\w+)` (-?\w+)", text)}
    assert len(named) == text.count("`") / 2
    return defaults() | named


def test_every_option_is_in_the_table() -> None:
    assert set(defaults()) == set(OPTIONS) | set(CORE)
    assert {name for name in READ_ONLY if f"`{name}`" not in SECTION} == set()


def test_defaults_are_those_of_the_table() -> None:
    with transfer.Context() as context, context.socket(transfer.PUSH) as push:
        assert {name: push.get(name) for name in defaults()} == defaults()


def test_defaults_of_the_other_surface_are_those_of_the_table() -> None:
    with zmq.Context() as context, context.socket(zmq.PUSH) as push:
        assert {name: getattr(push, name) for name in other_defaults()} == other_defaults()


def test_a_reply_is_not_awaited_for_ever() -> None:
    with transfer.Context() as context, context.socket(transfer.REQ) as req:
        assert req.rcvtimeo == 30_000
