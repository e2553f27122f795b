"""Opens many connections to all doors of a broker and goes no further, in a process of its own.

    python strangers.py COUNT PORT...    said on its input: what they send in turn, in hexadecimal, one line

Prints "ready" at its start, and "open" when all were opened. Ends when its input does.
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
