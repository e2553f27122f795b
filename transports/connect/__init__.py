"""From an endpoint to a connection that both sides agreed on, and back again when it is lost."""
