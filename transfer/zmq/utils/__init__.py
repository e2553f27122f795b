"""pyzmq's utilities, as far as they make sense here: jsonapi, monitor, strtypes, z85."""
