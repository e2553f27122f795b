"""A folder for PYTHONPATH, in which `transfer as-zmq` starts programs.

sitecustomize  the interpreter imports it when it starts: it names this package `zmq`
"""
