"""Benchmarks of the broker."""
