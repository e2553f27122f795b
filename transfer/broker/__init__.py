"""The broker: one process and one folder of data for all protocols; see `docs/broker.md`.

bench            implements `transfer bench broker`: starts processes that load a broker, and measures it
clients          small clients for the protocols that the broker speaks; they need the standard library only
config           a broker's configuration: options, their values, and the settings that result from them
core             the broker's decisions, without I/O: topics, routes, subscriptions, deliveries, admission
delivery         delivery of messages on the broker's loop
fronts           the protocols that the broker speaks, one module each
http             the broker over HTTP: health, metrics, operators' calls
net              the broker's TCP connections: listeners, TLS, input and output
offload_pool     a thread pool for work on large payloads: most of it runs without the interpreter's lock
protocols        wire formats of the broker's protocols: pure codecs, shared by its fronts and the clients
server           the broker: one process's loop, log, database and fronts, on one folder
service_threads  the broker's long-lived threads: health checks report those that have ended before the broker
status           a broker's state: numbers for Prometheus, and tables for the console
storage          broker state outside the message log: SQLite tables, off the fast path, and the audit file
turns            work on many items, in turns of the loop, without blocking other work
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transfer.transports.lazy import exports

if TYPE_CHECKING:
    from transfer.broker.config.settings import AbtpEndpoints, Settings
    from transfer.broker.server import Broker

__all__ = ["AbtpEndpoints", "Broker", "Settings"]

exports(
    __name__,
    {
        "config.settings": "AbtpEndpoints Settings",
        "server": "Broker",
    },
)
