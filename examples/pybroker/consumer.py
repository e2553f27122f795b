"""PyBroker's consumer: prints what comes on a topic, from an offset on, and remembers how far it came.

    python consumer.py logs offset.txt

Started again with the same file it goes on where it was, and so it does when the broker is started again.
"""

import os
import sys
import time
from pathlib import Path

from transfer import Broken
from transfer.broker.clients.pybroker import PyBrokerClient


def main(
    topic: str = "logs", remembered: str = "offset.txt", host: str = "127.0.0.1", port: str = "9099"
) -> None:
    place = Path(remembered)
    offset = came_to(place)
    while True:
        try:
            with PyBrokerClient(host, int(port)) as broker:
                for data in broker.follow(topic, offset, timeout=float("inf")):
                    sys.stdout.buffer.write(data)
                    sys.stdout.buffer.flush()
                    offset += len(data)
                    remember(place, offset)
        except Broken as error:
            print(f"{error}; it is tried again", file=sys.stderr)
            time.sleep(1)


def came_to(place: Path) -> int:
    try:
        return int(place.read_text())
    except FileNotFoundError:
        return 0
    except ValueError:
        sys.exit(f"{place} holds no offset: write one into it, or remove it to begin at the beginning")


def remember(place: Path, offset: int) -> None:
    """In one step: if the program is killed meanwhile, the file has the old offset or the new one."""
    written = place.with_suffix(".new")
    written.write_text(str(offset))
    written.replace(place)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
