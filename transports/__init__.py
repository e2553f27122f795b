"""Moves bytes between two processes: frames, memory, errors, transports. Importing it loads nothing else."""

if __name__ != "transfer.transports":
    raise ImportError("the package is transfer.transports: `from transfer.transports import ...`")
