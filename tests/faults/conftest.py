"""Both cores, and a context for each test."""

from __future__ import annotations

from tests.sockets.conftest import context, core

__all__ = ["context", "core"]
