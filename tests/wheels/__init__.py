"""Wheels: deploy/wheels. Its parts are tested in `make test`, the wheels themselves in `make test-slow`."""
