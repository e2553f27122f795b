"""A data source whose tasks come to harm. Spark's workers import it by this name."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from transfer.spark.source import TransferDataSource, TransferWriter


class FaultyWriter(TransferWriter):
    """Partition 1's first attempt is killed, or fails, after three frames. `marker` remembers it."""

    def __init__(self, writer, marker, kill):
        super().__init__(writer._options, writer._columns)
        self._marker = marker
        self._kill = kill

    def write(self, iterator):
        return super().write(self._harmed(iterator))

    def _harmed(self, iterator):
        from pyspark import TaskContext

        for number, batch in enumerate(iterator):
            if number == 3 and TaskContext.get().partitionId() == 1 and not self._marker.exists():
                self._marker.touch()
                if self._kill:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise ValueError("this attempt fails on purpose")
            yield batch


class FaultySource(TransferDataSource):
    @classmethod
    def name(cls):
        return "transfer_faulty"

    def writer(self, schema, overwrite):
        marker, kill = Path(self.options.pop("marker")), self.options.pop("kill") == "true"
        return FaultyWriter(super().writer(schema, overwrite), marker, kill)
