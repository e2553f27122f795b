"""PyBroker's producer: each line of its input is appended to a topic.

transfer broker --data broker &
echo "hello" | python producer.py logs
"""

import sys

from transfer.broker.clients.pybroker import PyBrokerClient


def main(topic: str = "logs", host: str = "127.0.0.1", port: str = "9099") -> None:
    with PyBrokerClient(host, int(port)) as broker:
        for line in sys.stdin.buffer:
            broker.publish(topic, line)
        broker.oldest(topic)  # an answer: so the broker has taken all that came before


if __name__ == "__main__":
    main(*sys.argv[1:])
