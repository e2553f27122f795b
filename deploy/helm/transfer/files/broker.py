"""One message through the broker: published, stored, consumed, acknowledged. ENDPOINT SECONDS-TO-WAIT"""

import os
import sys

from transfer.broker.clients.native import BrokerClient

endpoint, seconds = sys.argv[1], float(sys.argv[2])
payload = os.urandom(16)
with BrokerClient(endpoint, timeout=seconds) as client:
    consumer = client.consume("transfer/helm-test", "helm-test")
    client.publish("transfer/helm-test", payload)
    while True:
        message = consumer.recv(timeout=seconds)
        consumer.ack(message, wait=True)
        if bytes(message.data) == payload:
            break
print("one message went through the broker, and was kept meanwhile")
