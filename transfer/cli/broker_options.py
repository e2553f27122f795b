"""Options that say which broker is asked over HTTP."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from transfer.transports.security.guard import is_loopback

if TYPE_CHECKING:
    from transfer.cli.admin import Admin
    from transfer.transports.security.settings import Security


@dataclass(frozen=True)
class Reached:
    """The broker that is asked."""

    url: Annotated[
        str,
        typer.Option(
            "--url",
            envvar="TRANSFER_ADMIN_URL",
            metavar="URL",
            help="The broker's HTTP address. [what a broker here is told]",
        ),
    ] = ""
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            envvar="ADMIN_TOKEN",
            metavar="TOKEN",
            help="The operators' token, if it has one. All users of this host see command lines: "
            "rather set ADMIN_TOKEN.",
        ),
    ] = None
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", "-t", min=0.1, metavar="SECONDS", help="Give up if there is no whole answer by then."
        ),
    ] = 30.0

    def admin(self) -> Admin:
        """What asks it: the broker that --url names, or the one that the environment and its file configure,
        as `transfer health` finds it. By HTTPS if there are certificates, and then with the token that all
        share, if no other is given. Raises AddressError, OptionError, SecurityError, UsageError."""
        from transfer.cli.admin import Admin
        from transfer.cli.health import configured, security_of, target

        options = configured()
        shown = security_of(options)
        asked = target(self.url or None, options, shown, live=False)
        secure = asked.secure if self.url else asked.secure or shown.tls
        url = self.url or str(replace(asked, secure=secure, path=""))
        token = self.token
        if not token and (secure or is_loopback(asked.host)):  # it is told to nobody who listens on the way
            token = options.get("http.token")
        return Admin(url, token or (_shared_token(shown) if secure else None), self.timeout, shown)


def _shared_token(shown: Security) -> str | None:
    """Raises SecurityError."""
    from transfer.transports.core import pure as twin
    from transfer.transports.security.credentials import Credentials

    tokens = Credentials(shown, twin).tokens()
    return tokens[0].decode() if tokens else None
