"""docs/reference/socket-options.md has every option of the code."""

from __future__ import annotations

from pathlib import Path

import transfer
from tests.docs.reference import texts_in
from transfer.sockets import options

TEXT = (Path(__file__).parents[2] / "docs/patterns.md").read_text()


def test_every_option_has_a_text() -> None:
    assert {name for name, _ in texts_in(options, "Attributes")} == set(options.OPTIONS) | set(options.CORE)
    assert {name for name in options.READ_ONLY if f"`{name}`" not in TEXT} == set()


def test_a_reply_is_not_awaited_for_ever() -> None:
    with transfer.Context() as context, context.socket(transfer.REQ) as req:
        assert req.rcvtimeo == 30_000
