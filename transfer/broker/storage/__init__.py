"""What the broker remembers beside its log: tables in SQLite, off the fast path, and the audit file."""
