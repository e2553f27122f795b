"""Metrics for Prometheus: `transfer.metrics.register(context)`.

It imports prometheus_client at the first use.

counters     reads the counters of sockets and peers, and keeps the totals of closed ones
families     the metrics of a context: their names, types, help texts and labels
http_server  the HTTP server of metrics
prometheus   metrics for Prometheus
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transfer.transports.lazy import exports

if TYPE_CHECKING:
    from transfer.metrics.prometheus import register, serve, unregister

__all__ = ["register", "serve", "unregister"]

exports(
    __name__,
    {
        "prometheus": "register serve unregister",
    },
    extra="metrics",
)
