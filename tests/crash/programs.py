"""All recorded programs by name."""

from __future__ import annotations

from tests.crash import log_programs

ALL = {**log_programs.PROGRAMS}
