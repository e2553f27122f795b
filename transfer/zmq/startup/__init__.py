"""A folder for PYTHONPATH, with which `transfer as-zmq` starts programs: the interpreter imports its
`sitecustomize` first, which names `transfer.zmq` `zmq`."""
