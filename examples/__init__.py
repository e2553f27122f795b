"""Complete programs: each is run by a test."""
