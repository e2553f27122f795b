"""`transfer certificates`: an authority, certificates and a token for a small set-up."""

from __future__ import annotations

import os
import secrets
import shlex
from pathlib import Path

from transfer.log.private import check_private
from transfer.transports.errors import SecurityError, UsageError

AUTHORITY, TOKEN = "authority", "token"


def make(folder: Path, names: list[str], hosts: list[str], days: int) -> list[str]:
    """Makes a missing authority and token, and new certificates for these names. Returns lines for people.

    Raises UsageError, SecurityError.
    """
    from transfer.certificates import Authority

    for name in names:
        if not name.replace("-", "").replace(".", "").isalnum() or name == AUTHORITY:
            raise UsageError(f"{name!r} is no name for files", hint="letters, digits, '-' and '.'")
    folder = folder.resolve()  # programs in other folders use the variables
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        files = [f"{name}.{kind}" for name in (AUTHORITY, *names) for kind in ("pem", "crt", "key")]
        check_private(folder, [*files, TOKEN])
        known = (folder / f"{AUTHORITY}.pem").exists()
        authority = Authority.opened(folder, AUTHORITY) if known else Authority(folder, AUTHORITY)
        issued = [authority.issue(name, hosts=tuple(hosts), ends=days) for name in names]
        token = folder / TOKEN
        if not token.exists():
            with os.fdopen(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(32) + "\n")
    except (OSError, ValueError) as error:
        raise SecurityError(f"certificates cannot be made in {folder}: {error}") from error
    return [
        f"# certificates for {', '.join(hosts)}, for {days} days",
        *(
            "export " + " ".join(f"TRANSFER_{key}={shlex.quote(value)}" for key, value in named.items())
            for named in (
                {
                    "TLS_CERT": one.certificate,
                    "TLS_KEY": one.key,
                    "TLS_CA": authority.path,
                    "TOKEN_FILE": str(token),
                }
                for one in issued
            )
        ),
    ]
