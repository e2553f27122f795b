"""Opens many connections to all ports of a broker and goes no further, in a process of its own.

    python connection_flood.py COUNT PORT...

Prints "ready", reads one line: what the connections send in turn, in hexadecimal. Prints "open" when all were
opened, and ends when its input does.
"""

import contextlib
import os
import resource
import socket
import sys


def main(count: int, ports: list[int]) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.nice(19)  # they stand for other machines, and take no processor of the broker's
    print("ready", flush=True)
    begins = [bytes.fromhex(word) for word in sys.stdin.readline().strip().split(",")]
    kept = []
    for number in range(count):
        port = ports[number % len(ports)]
        with contextlib.suppress(OSError):  # it may be put out already
            kept.append(end := socket.create_connection(("127.0.0.1", port), timeout=60))
            end.sendall(begins[number // len(ports) % len(begins)])
    print("open", flush=True)
    sys.stdin.readline()


main(int(sys.argv[1]), [int(port) for port in sys.argv[2:]])
