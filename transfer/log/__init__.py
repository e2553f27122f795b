"""One durable append-only log for messages of many topics and for state; see `docs/log.md`.

record           the bytes of a record
segment          a file of records, and a file of large payloads (blobs)
segment_files    the names of a segment's files, and their removal
segment_limits   the size of segments
contents         the content of a sealed segment, and its index file
state            the log's internal state: topics, groups, discarded blobs
damage           detection of damaged records
segment_walk     the records of a segment and the damage in it; repairs single bits
tail             the records of the last segment that may be torn
recovery         opens a folder after a crash: cuts torn tails, reports damage
lost_blobs       messages whose blobs are missing
quarantine       a folder for files without a known segment
format           the version of the folder's format
journal          writes and syncs records for all waiting callers together
group_committer  a thread that commits the log
index            the places of a topic's messages
topics           topics and state in memory, and the records that change them
ranges           sets of offsets
message          messages as read from the log
appender         appends messages: one, many, with a blob
blob             reads a blob in ranges
blob_writer      a blob that arrives in pieces
holes            gives the disk space of discarded blobs back
retention        chooses the segments to remove
room             the limits of retention and of the disk
compaction       copies needed messages of old segments into the newest one
upkeep           a thread that applies retention and compaction
verify           verifies all records, blobs and index files
read_only        verifies a folder without changing it
checks           checks of arguments: folder, names, buffers
disk             room and folders on the disk, and the errors of a full one
private          files and folders that other users cannot access
log              the log: append, commit, read, groups, discard, drop
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transfer.transports.lazy import exports

if TYPE_CHECKING:
    from transfer.log.blob_writer import BlobWriter
    from transfer.log.damage import Damage
    from transfer.log.log import Log
    from transfer.log.message import LogMessage
    from transfer.log.recovery import gc_paused
    from transfer.log.retention import Retention
    from transfer.log.topics import HOLDS
    from transfer.log.verify import VerifyResult

__all__ = ["HOLDS", "BlobWriter", "Damage", "Log", "LogMessage", "Retention", "VerifyResult", "gc_paused"]

exports(
    __name__,
    {
        "blob_writer": "BlobWriter",
        "damage": "Damage",
        "log": "Log",
        "message": "LogMessage",
        "recovery": "gc_paused",
        "retention": "Retention",
        "topics": "HOLDS",
        "verify": "VerifyResult",
    },
)
