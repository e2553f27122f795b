"""One durable append-only log for messages of many topics and for state; see `docs/log.md`.

record       what a record's bytes are (pure)
segment      a file of records, and the file of large payloads beside it
contents     what a sealed segment holds, and the index file that says so
state        state of the log's own: topics, groups, what was discarded (pure)
damage       records that were synced and are not what was written (pure)
recovery     what a folder holds after a crash: torn tails are cut, damage is told
quarantine   files that belong to no known segment
format       the number of the folder's format
journal      records written and synced together for all who wait
index        where the messages of a topic lie
topics       topics and state in memory, and the records that change them
ranges       sets of offsets (pure)
message      a message as it is read
appending    messages on their way into the journal: one, many, with a blob
pieces       a blob that arrives in pieces
holes        the room of blobs that were discarded, given back to the disk
retention    which segments may go (pure)
room         what messages may take of retention and of the disk
compaction   what is needed of old segments, carried into the newest one
upkeep       a thread that has both done
verify       whether all is what was written
looking      the same of a folder in which nothing is changed
checks       what the log is given: a folder, names, buffers
log          the log: append, commit, read, groups, discard, drop
"""

from transfer.log.blob_writer import BlobWriter
from transfer.log.damage import Damage
from transfer.log.log import Log
from transfer.log.message import Message
from transfer.log.recovery import undisturbed
from transfer.log.retention import Retention
from transfer.log.topics import HOLDS
from transfer.log.verify import Verified

__all__ = ["HOLDS", "BlobWriter", "Damage", "Log", "Message", "Retention", "Verified", "undisturbed"]
