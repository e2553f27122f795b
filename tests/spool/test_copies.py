"""Between the kernel's read and the model's input nothing is copied."""

from __future__ import annotations

import pytest

from tests.cli.run_writer import send_run
from transfer.spool import RowStream, Spool
from transfer.transports.core import Lease


@pytest.mark.parametrize("options", [{}, {"shuffle": 3}, {"world_size": 2, "rank": 1}], ids=str)
def test_batches_lie_in_the_buffers_that_were_received(tmp_path, options):
    """Of frames that no batch fits, too: the spool sends a chunk of whole batches."""
    with Spool(tmp_path) as spool:
        send_run(spool.url("run"), [range(20_000)], frame=700)
        with RowStream(spool.url("run"), 64, **options) as stream:
            for batch in stream:
                for array in batch.values():
                    assert not array.flags.owndata and array.flags.writeable
                    base = array
                    while getattr(base, "base", None) is not None:
                        base = base.base
                    memory = base.obj if isinstance(base, memoryview) else base
                    assert isinstance(memory, Lease | bytearray), type(memory)
