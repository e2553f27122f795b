"""The spool keeps rows between Spark and trainers; see `docs/spool.md`.

Everything is imported on first use; `tensor-transfer[spool]` installs numpy and msgspec.

client  clients of a spool's runs: rows as batches of arrays, in an exact order
format  a run on the wire and in the log: addresses, requests, rows, the order of an epoch
server  the spool's server: stores the rows of runs, and sends them to readers
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transfer.transports.lazy import exports

if TYPE_CHECKING:
    from transfer.spool.client.admin import SpoolAdmin
    from transfer.spool.client.lineage import Lineage
    from transfer.spool.client.row_stream import RowStream
    from transfer.spool.client.stream_state import merge_states
    from transfer.spool.server.server import Spool

__all__ = ["Lineage", "RowStream", "Spool", "SpoolAdmin", "merge_states"]

exports(
    __name__,
    {
        "client.admin": "SpoolAdmin",
        "client.lineage": "Lineage",
        "client.row_stream": "RowStream",
        "client.stream_state": "merge_states",
        "server.server": "Spool",
    },
    extra="spool",
)
