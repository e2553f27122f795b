"""The handshake: what two sides exchange before the first message."""
