"""The test vectors of the protocols: docs/protocols/vectors.json."""

from __future__ import annotations

import json
from pathlib import Path

_ALL = json.loads((Path(__file__).parents[2] / "docs/protocols/vectors.json").read_text())


def vectors(protocol: str) -> dict[str, bytes]:
    """The bytes of each vector, by what it says."""
    return {name: bytes.fromhex(digits) for name, digits in _ALL[protocol].items()}


def frames(protocol: str) -> dict[str, list[bytes]]:
    """The same where a vector has several frames."""
    return {name: [bytes.fromhex(digits) for digits in several] for name, several in _ALL[protocol].items()}
