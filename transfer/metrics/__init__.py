"""Metrics for Prometheus: `transfer.metrics.register(context)`.

It imports prometheus_client at the first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transfer.transports.errors import comes_with

if TYPE_CHECKING:
    from transfer.metrics.prometheus import register, serve, unregister

__all__ = ["register", "serve", "unregister"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with comes_with("metrics", "transfer.metrics"):
        from transfer.metrics import prometheus

    return getattr(prometheus, name)
