"""Clients of a spool's runs: rows as batches of arrays, in an exact order."""
