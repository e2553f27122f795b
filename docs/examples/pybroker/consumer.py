"""PyBroker's consumer: prints what comes on a topic, from an offset on, and remembers how far it came.

    python consumer.py logs offset.txt

Started again with the same file it goes on where it was.
"""

import sys
from pathlib import Path

from transfer.clients.pybroker import PyBrokerClient


def main(
    topic: str = "logs", remembered: str = "offset.txt", host: str = "127.0.0.1", port: str = "9099"
) -> None:
    place = Path(remembered)
    offset = int(place.read_text()) if place.exists() else 0
    with PyBrokerClient(host, int(port)) as broker:
        for data in broker.follow(topic, offset, timeout=float("inf")):
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            offset += len(data)
            place.write_text(str(offset))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
