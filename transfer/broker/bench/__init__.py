"""What `transfer bench broker` does: processes that load a broker, and what is measured meanwhile."""
