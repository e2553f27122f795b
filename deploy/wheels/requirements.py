"""The pinned tools: requirements.txt for all wheels, requirements-python.txt for each interpreter."""

from __future__ import annotations

import re
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
PYTHON_REQUIREMENTS = Path(__file__).with_name("requirements-python.txt")


def read_pins(file: Path) -> dict[str, str]:
    """Returns the version of each distribution in a file, by its name in lower case."""
    return {
        name.lower(): version
        for name, version in re.findall(r"^([\w.-]+)==(\S+)$", file.read_text(), re.MULTILINE)
    }
