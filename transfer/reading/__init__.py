"""Reads a run from a spool: `RowStream`, batches of numpy arrays in an exact order; no torch in here."""

from __future__ import annotations

from transfer.reading.lineage import Lineage
from transfer.reading.state import merge_states
from transfer.reading.stream import RowStream

__all__ = ["Lineage", "RowStream", "merge_states"]
