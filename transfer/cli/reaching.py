"""Options that say which broker is asked over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from transfer.cli.admin import Admin
    from transports.security.settings import Security

_PLACE = "127.0.0.1:9180"


@dataclass(frozen=True)
class Reached:
    """The broker that is asked."""

    url: Annotated[
        str,
        typer.Option(
            "--url",
            envvar="TRANSFER_ADMIN_URL",
            metavar="URL",
            help=f"The broker's HTTP address. [http://{_PLACE}, https with TRANSFER_TLS_CA]",
        ),
    ] = ""
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
        """What asks it: by HTTPS if there are certificates, and then with the token that all share, if no
        other is given. Raises AddressError, OptionError, SecurityError."""
        from transfer.cli.admin import Admin
        from transports.config import security

        shown = security()
        scheme = "https" if shown.tls else "http"
        url = self.url or f"{scheme}://{_PLACE}"
        token = self.token or (_shared_token(shown) if url.startswith("https:") else None)
        return Admin(url, token, self.timeout, shown)


def _shared_token(shown: Security) -> str | None:
    """Raises SecurityError."""
    from transports import twin
    from transports.security.credentials import Credentials

    tokens = Credentials(shown, twin).tokens()
    return tokens[0].decode() if tokens else None
