"""Where the fronts listen whose protocols know no token: nowhere, where there is one to ask for. Pure."""

from __future__ import annotations

from typing import Any

from transfer.broker.config.settings import AbtpEndpoints, Settings
from transfer.transports.errors import SecurityError
from transfer.transports.security.guard import is_private, skips_token
from transfer.transports.security.settings import Security

#: the fronts, by the names of their places in the settings
FRONTS = ("ttp", "pybroker", "rqueue", "abtp")
#: what to do about them
HINT = "ask for certificates (security.ca), turn it off, or let it listen without: security.tokenless=allow"


def places(settings: Settings, security: Security) -> tuple[dict[str, Any], list[str]]:
    """(where each of them listens, or None; who does not, since it cannot ask for the token).

    Raises SecurityError for those of the latter that were named, or have another place than by default.
    """
    found = {name: getattr(settings, name) for name in FRONTS}
    if not skips_token(security):
        return found, []
    usual = Settings()
    shut = [name for name, place in found.items() if place is not None and not _is_private(place)]
    named = [name for name in shut if name in settings.named or found[name] != getattr(usual, name)]
    if named:
        raise SecurityError(
            f"{', '.join(named)} would let in who has no token: the protocol knows no token", hint=HINT
        )
    return found | dict.fromkeys(shut), shut


def _is_private(place: object) -> bool:
    ends = (place.router, place.pub) if isinstance(place, AbtpEndpoints) else ("",)
    return all(map(is_private, ends))
