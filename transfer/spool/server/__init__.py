"""The spool's server: stores the rows of runs, and sends them to readers."""
