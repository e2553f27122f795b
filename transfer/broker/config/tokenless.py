"""Disables the fronts whose protocols have no token, if clients have to show one. Pure."""

from __future__ import annotations

from typing import Any

from transfer.broker.config.settings import AbtpEndpoints, Settings
from transfer.transports.errors import SecurityError
from transfer.transports.security.guard import is_private, skips_token
from transfer.transports.security.settings import Security

#: the fronts without tokens, by their names in Settings
FRONTS = ("ttp", "pybroker", "rqueue", "abtp")
#: how to enable them
HINT = (
    "require certificates (security.ca), disable the front, or allow it without a token: "
    "security.tokenless=allow"
)


def places(settings: Settings, security: Security) -> tuple[dict[str, Any], list[str]]:
    """Returns (the port or endpoints of each front, or None; the disabled fronts).

    Raises SecurityError if a disabled front was configured, or does not listen at its default.
    """
    found = {name: getattr(settings, name) for name in FRONTS}
    if not skips_token(security):
        return found, []
    defaults = Settings()
    disabled = [name for name, place in found.items() if place is not None and not _is_private(place)]
    named = [name for name in disabled if name in settings.named or found[name] != getattr(defaults, name)]
    if named:
        raise SecurityError(
            f"{', '.join(named)} would accept clients without a token: the protocol has no token", hint=HINT
        )
    return found | dict.fromkeys(disabled), disabled


def _is_private(place: object) -> bool:
    endpoints = (place.router, place.pub) if isinstance(place, AbtpEndpoints) else ("",)
    return all(map(is_private, endpoints))
