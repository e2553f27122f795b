"""A broker in a process of its own, with all fronts and few descriptors.

    python broker_with_few_descriptors.py FOLDER DESCRIPTORS [IDENTITIES]

IDENTITIES: a folder of certificates; then with mutual TLS and a token. Prints its ports as JSON by name, and
serves until its input ends.
"""

from __future__ import annotations

import json
import resource
import sys
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from tests.broker.in_process_broker import ANYWHERE, FREE
from transfer.broker.config.settings import AbtpEndpoints
from transfer.broker.fronts.native import NativeSettings
from transfer.broker.server import Broker
from transfer.transports.security.settings import Security

#: what a good peer needs to know to come in, besides the certificates
TOKEN = "b7c5a9e2d81f4036a5cb92e7d40183f6"


def security(folder: Path, name: str) -> Security:
    """Of one side: mutual TLS and a token."""
    return Security(
        certificate=str(folder / f"{name}.crt"),
        key=str(folder / f"{name}.key"),
        authority=str(folder / "authority.pem"),
        token=TOKEN,
    )


def main(folder: str, descriptors: int, identities: str = "") -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    settings = replace(
        ANYWHERE,
        native=NativeSettings(FREE, FREE, FREE),
        abtp=AbtpEndpoints(FREE, FREE),
        http=0,
        spool=FREE,
        security=security(Path(identities), "broker") if identities else Security(),
    )
    with Broker(folder, settings) as broker:
        ports = {name: urlsplit(endpoint).port for name, endpoint in broker.endpoints.items()}
        print(json.dumps(ports | broker.ports), flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
