"""Options of commands that send HTTP requests to a broker."""

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
    """The broker that receives the requests."""

    url: Annotated[
        str,
        typer.Option(
            "--url",
            envvar="TRANSFER_ADMIN_URL",
            metavar="URL",
            help="The broker's HTTP address. [the address in this machine's configuration]",
        ),
    ] = ""
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            envvar="ADMIN_TOKEN",
            metavar="TOKEN",
            help="The operators' token, if the broker has one. All users of this host see command lines: "
            "prefer ADMIN_TOKEN.",
        ),
    ] = None
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout",
            "-t",
            min=0.1,
            metavar="SECONDS",
            help="Give up without a complete answer after this long.",
        ),
    ] = 30.0

    def admin(self) -> Admin:
        """Returns a client of the broker at --url, or of the one in the environment and its file.

        It uses HTTPS if there are certificates, and then the clients' token if there is no operators' token.
        Raises AddressError, OptionError, SecurityError, UsageError.
        """
        from transfer.cli.admin import Admin
        from transfer.cli.health import configured, security_of, target

        options = configured()
        security = security_of(options)
        place = target(self.url or None, options, security, live=False)
        secure = place.secure if self.url else place.secure or security.tls
        url = self.url or str(replace(place, secure=secure, path=""))
        token = self.token
        if not token and (
            secure or is_loopback(place.host)
        ):  # the network must not see the token in plain text
            token = options.get("http.token")
        return Admin(url, token or (_shared_token(security) if secure else None), self.timeout, security)


def _shared_token(security: Security) -> str | None:
    """Returns the token that all clients share, if there is one. Raises SecurityError."""
    from transfer.transports.core import python_tls
    from transfer.transports.security.credentials import Credentials

    tokens = Credentials(security, python_tls).tokens()
    return tokens[0].decode() if tokens else None
