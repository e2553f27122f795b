"""One durable append-only log for messages of many topics and for state; see `docs/log.md`.

record       what a record's bytes are (pure)
segment      a file of records, and the file of large payloads beside it
recovery     what a folder holds after a crash: torn tails are cut, damage is told
journal      records written and synced together for all who wait
index        where the messages of a topic lie
ranges       sets of offsets (pure)
message      a message as it is read
holes        the room of blobs that were discarded, given back to the disk
retention    which segments may go (pure)
checks       what the log is given: a folder, names, buffers
log          the log: append, commit, read, groups, discard, drop
"""

from transfer.log.log import Log
from transfer.log.message import Message
from transfer.log.retention import Retention

__all__ = ["Log", "Message", "Retention"]
