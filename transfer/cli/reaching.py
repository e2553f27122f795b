"""Options that say which broker is asked over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from transfer.cli.admin import Admin


@dataclass(frozen=True)
class Reached:
    """The broker that is asked."""

    url: Annotated[
        str,
        typer.Option("--url", envvar="TRANSFER_ADMIN_URL", metavar="URL", help="The broker's HTTP address."),
    ] = "http://127.0.0.1:9180"
    token: Annotated[
        str | None,
        typer.Option(
            "--token", envvar="ADMIN_TOKEN", metavar="TOKEN", help="The operators' token, if it has one."
        ),
    ] = None
    timeout: Annotated[
        float,
        typer.Option("--timeout", "-t", min=0.1, metavar="SECONDS", help="Give up when nobody answers."),
    ] = 30.0

    def admin(self) -> Admin:
        """What asks it. Raises AddressError."""
        from transfer.cli.admin import Admin

        return Admin(self.url, self.token, self.timeout)
