"""Bytes between two processes: frames, memory, errors, transports. Importing it loads nothing else."""
