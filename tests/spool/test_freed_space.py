"""What is deleted gives its room back, whatever older runs are kept."""

from __future__ import annotations

from transfer.spool import RowStream, Spool
from transfer.spool.client.admin import SpoolAdmin

from .task_sender import write


def test_one_old_run_does_not_keep_the_room_of_all_later_ones(tmp_path):
    """Rows of small frames lie in the log's records, which go by whole segments, the oldest first."""
    limit = 4 << 20
    with Spool(tmp_path, retention_bytes=limit) as spool, SpoolAdmin(spool.url()) as admin:
        write(spool.endpoint, "kept", [[1000]])
        written = 0
        while written < 2 * limit:
            write(spool.endpoint, "passing", [[6000] * 10])
            written += admin.inspect("passing")["bytes"]
            admin.delete("passing")
        with RowStream(spool.url("kept"), 100) as rows:
            assert [one for batch in rows for one in batch["id"].tolist()] == list(range(1000))
    with Spool(tmp_path) as spool, RowStream(spool.url("kept"), 100, group="again") as rows:
        assert [one for batch in rows for one in batch["id"].tolist()] == list(range(1000))
