"""The spool: keeps rows between Spark and trainers; see `docs/spool.md`."""
