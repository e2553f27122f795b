"""The protocols that the broker speaks, one module each."""
