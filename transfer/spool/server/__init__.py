"""The spool's server: stores the rows of runs, and sends them to readers.

answer_queue      makes answers that take long in slices, in turns
answers           makes the answer to a fetch: rows of visible frames, cut or copied in the order of the epoch
attempt_ends      records how attempts ended
expiry            removes unused data by its age: staged rows, groups, runs, rows of streams
group             a group of readers: what each of its shards was sent, and what the group has acknowledged
ledger            the accounting of one run: which attempt sent what, what is staged, what is visible
max_ages          the ages at which the spool removes unused data
message_receiver  receives the spool's messages
reader            the server's state of a reader: the shard that it leases, its requests, its unread answers
reader_requests   readers' requests: which reader leases which shard of a group, and what the group has read
recovery          recovers the state of a store from its log: all runs, with their rows and their groups
replay            recovers a run's state from the messages of its topic
request_handler   dispatches the spool's requests, answers those about runs, and runs periodic work
responder         sends short answers to requests: at once, or when the log has committed what they report
row_copy          copies rows of many frames into the memory of one answer, with little further memory
row_requests      requests for rows: which client waits for which rows, and whose answer is made next
run_log           a run's records in the log: its events, with rows as blobs; its state
run_record        a run in the store: its state, what is visible of it, its groups; and its keys in the log
salvage           finds the undamaged runs of a spool's folder, and copies them; the folder is not changed
server            the spool: receives rows from Spark's tasks, stores them, and sends them to trainers
store             the spool's runs on its log
summaries         summaries of runs for clients, and the parser of a commit
writer_requests   writers' requests: declaring, committing and aborting a job
"""
