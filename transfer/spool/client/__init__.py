"""Clients of a spool's runs: rows as batches of arrays, in an exact order.

admin         administrative requests to a spool: its runs, its groups, and the rows of a training step
connection    a connection to a spool for requests and answers, and a client that reconnects
lineage       which training step consumed which rows, in compact records
open          decisions at the start of a stream of rows
plan          which rows of a run each rank and worker gets in each step: arithmetic only
prefetcher    fetches batches ahead of the training loop, in a separate thread
row_stream    `RowStream`: the rows of a run as batches of numpy arrays, in an exact order that can be resumed
run_client    `RunClient`: fetches a run's rows for a trainer, and continues after a restart of the spool
stream_state  the saved position of a stream of rows, and the merge of several workers' positions
"""
