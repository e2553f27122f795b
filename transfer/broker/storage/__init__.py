"""Broker state outside the message log: SQLite tables, off the fast path, and the audit file.

audit                   the audit: an append-only chain of events on the disk
audit_chain             the lines of the audit chain
audit_verification      verifies an audit's folder: reads all files and reports damage
audit_writer            the broker's own audit events, written on the database thread
blob_writer             writes payloads that arrive in pieces into the log, on the disk thread
catalog_file            the catalog file: static routes as an operator writes them, in TOML or JSON
database                one SQLite file for the broker's state outside the log
database_thread         the thread that writes the broker's database and audit
dead_letter             what a dead letter holds, and filters for them
dead_letter_operations  operators' calls on dead letters: browse, replay, quarantine, purge
dead_letter_payloads    files for payloads of dead letters that are too large for the database
dead_letter_requests    the rules for operators' requests on dead letters, and their results
dead_letter_table       the database's table of dead letters
dead_letter_writer      writes the dead letter of a message, on the database thread
durability              acknowledges durable messages once they are on the disk
folder_check            verifies a broker's folder while no broker runs there
folder_parts            the parts of a broker's folder
group_journal           the state of groups in the log: summaries, and a journal of the changes since them
group_journal_writer    writes groups' changes to the journal at the end of each loop iteration
large_write_queue       writes large complete messages on a thread
log_epochs              the epochs of a log
log_holders             finds what keeps retention from freeing the log
session_writer          writes the sessions of direct delivery asynchronously
sessions                the store of consumers' sessions, which they may resume after a restart
store                   the broker's topics in the log
stored_message          the format of the broker's messages in the log: a head, then the payload
topic                   a topic of the broker: what it keeps, its position, its subscribers
volume                  the free space of the volume that holds a broker's folder
"""
