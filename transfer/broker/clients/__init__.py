"""Small clients for the protocols that the broker speaks; they need the standard library only."""
