"""Compares ways from a DataFrame into a trainer, also those in use today: `python -m bench.spark`."""
