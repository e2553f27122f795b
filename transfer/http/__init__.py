"""HTTP that our commands speak, and TLS for HTTP that this process serves."""
