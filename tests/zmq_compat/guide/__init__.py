"""Runs the programs of the ZeroMQ guide: `scenario` some together, as `programs.toml` says."""
