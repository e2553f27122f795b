"""Broker state outside the message log: SQLite tables, off the fast path, and the audit file."""
