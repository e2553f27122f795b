"""Runs the tests of pyzmq on `transfer.zmq`: `plugin` in them; `expected.txt` has those that do not pass."""
