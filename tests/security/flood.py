"""Opens many connections and goes no further, in a process of its own: each end is a descriptor.

    python flood.py HOST PORT COUNT    said on its input: what each of them sends, in hexadecimal, one a line,
                                       in turn; then an empty line and what a good peer says at the end

Prints "open" when all are open, and "in" when the good peer was answered. Ends when its input does.
"""

import contextlib
import resource
import socket
import sys


def main(host: str, port: int, count: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    begins = [bytes.fromhex(line) for line in iter(lambda: sys.stdin.readline().strip(), "-")]
    last = bytes.fromhex(sys.stdin.readline())
    kept = []
    for number in range(count):
        kept.append(end := socket.create_connection((host, port), timeout=30))
        with contextlib.suppress(OSError):  # it may be put out already
            end.sendall(begins[number % len(begins)])
    print("open", flush=True)
    sys.stdin.readline()
    while last:
        with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=30) as good:
            good.sendall(last)
            if good.recv(100):
                print("in", flush=True)
                break
    sys.stdin.readline()


main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
