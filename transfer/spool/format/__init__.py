"""A run on the wire and in the log: addresses, requests, rows, the order of an epoch.

address        `run://host:port/NAME`: a run at a spool
order          the order of an epoch: which row of which frame is at which position
protocol       the requests and answers of a spool
row_source     what a reader needs of a spool: a run's description, its rows by position, and acknowledgement
rows           rows as dicts of arrays: the layout of a column, and cutting, joining and picking rows
run_messages   a run: the rows that many producers send to one receiver, each of them accounted for
stored_arrays  the layout of a dict of arrays with metadata in the log
"""
