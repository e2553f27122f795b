"""A program's way to the runs of a spool: rows as batches of arrays, in an exact order."""
