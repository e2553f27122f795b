"""One durable append-only log for messages of many topics and for state; see `docs/log.md`.

record       what a record's bytes are (pure)
segment      a file of records, and the file of large payloads beside it
recovery     what a folder holds after a crash: torn tails are cut, damage is told
journal      records written and synced together for all who wait
index        where the messages of a topic lie
retention    which segments may go (pure)
log          the log: append, commit, read, groups
"""

from transfer.log.log import Log, Message
from transfer.log.retention import Retention

__all__ = ["Log", "Message", "Retention"]
