"""Measures the way from a DataFrame into a trainer beside the ways that people use today: `python -m
bench.spark`."""
