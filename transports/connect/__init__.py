"""Connects endpoints: handshakes, listeners, and reconnection after a loss."""
