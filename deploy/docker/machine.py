"""How this machine reaches Debian's packages and Python's, from the settings of apt and pip.

A build step gets them by mounts and variables while it runs; they never become part of an image.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

RELEASE = "bookworm"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
#: pip's settings for the location of packages, and the access to it
_PIP = frozenset(
    {"index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "cert", "client-cert", "proxy"}
    | {"timeout", "default-timeout", "retries", "constraint"}
)
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
_AUTHORITIES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT")
#: the path of the machine's certificates in a step
_BUNDLE = "/run/machine/authorities.pem"
_LIMIT = 60


class Unable(Exception):
    """A required program or setting is missing here."""


#: takes a line about the progress
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Given:
    """What a step gets. proxies: variables; binds: what it sees of this machine read-only, by the path in its
    root; files: texts that are there meanwhile."""

    proxies: Mapping[str, str]
    binds: Mapping[str, Path]
    files: Mapping[str, str]


def sources() -> tuple[str, list[str]]:
    """Returns (the mirror of the release, lines of sources.list), from apt's settings. Raises Unable."""
    fields = ("ORIGIN", "REPO_URI", "CODENAME", "COMPONENT")
    form = "|".join(f"$({name})" for name in fields)
    listed = _asked(["apt-get", "indextargets", "--format", form, "Created-By: Packages"])
    mirror, lines = "", []
    for line in listed.splitlines():
        origin, address, codename, component = line.split("|")
        if origin == "Debian" and component == "main" and codename.startswith(RELEASE):
            lines.append(f"deb [signed-by={KEYRING}] {address} {codename} {component}")
            mirror = address if codename == RELEASE else mirror
    if not mirror:
        raise Unable(f"apt has no source of Debian's {RELEASE} here (after `apt-get update`)")
    return mirror, list(dict.fromkeys(lines))


def given() -> Given:
    """Returns all of it. Raises Unable."""
    proxies = {name: os.environ[name] for name in _PROXIES if os.environ.get(name)}
    binds = {"/etc/resolv.conf": Path("/etc/resolv.conf"), "/etc/hosts": Path("/etc/hosts")}
    binds = {inside: path for inside, path in binds.items() if path.exists()}
    apt = list(_apt_options())
    pip = _pip()
    bundle = next((path for path in map(os.environ.get, _AUTHORITIES) if path and Path(path).is_file()), None)
    if bundle:
        binds[_BUNDLE] = Path(bundle)
        apt.append(f'Acquire::https::CaInfo "{_BUNDLE}";')
        pip["cert"] = _BUNDLE
    for value in pip.values():
        binds |= {str(path): path for path in _local(value) if str(path) != _BUNDLE}
    files = {
        "/etc/apt/sources.list": "\n".join(sources()[1]) + "\n",
        "/etc/apt/apt.conf.d/99machine": "\n".join(apt) + "\n",
        "/etc/pip.conf": "[global]\n" + "".join(f"{name} = {value}\n" for name, value in pip.items()),
    }
    return Given(proxies, binds, files)


def _apt_options() -> Iterator[str]:
    """Returns apt's options for the access to a mirror."""
    wanted = re.compile(r'Acquire::https?::(?:Proxy|Verify|CaInfo|[\w.]+::Proxy)\S* ".+";', re.IGNORECASE)
    for line in _asked(["apt-config", "dump"]).splitlines():
        if wanted.fullmatch(line) and "CaInfo" not in line:
            yield line


def _pip() -> dict[str, str]:
    """Returns pip's settings, from its files and variables; later ones win."""
    try:
        listed = _asked([sys.executable, "-m", "pip", "config", "list"])
    except Unable:
        listed = ""  # a machine without pip has no such settings
    found: dict[str, str] = {}
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if name in _PIP and (name not in found or section == ":env:"):
            found[name] = " ".join(str(ast.literal_eval(value)).split())
    return found


def _local(value: str) -> Iterator[Path]:
    """Returns the folders and files of this machine that a setting names."""
    for word in value.split():
        # An index refers to files in its folder.
        path = Path(urlsplit(word).path).parent if word.startswith("file:") else Path(word)
        if path.is_absolute() and path.exists():
            yield path


def _asked(command: list[str]) -> str:
    if shutil.which(command[0]) is None:
        raise Unable(f"{command[0]} is not installed here")
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_LIMIT)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise Unable(f"{' '.join(command)} failed") from error
    return done.stdout
