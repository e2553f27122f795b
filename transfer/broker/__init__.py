"""The broker: one process and one folder of data for all protocols; see `docs/broker.md`."""
