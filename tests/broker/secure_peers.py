"""A broker with TLS at every port, and peers with good and bad certificates."""

from __future__ import annotations

import errno
import http.client
import json
import socket
import ssl
import time
from contextlib import contextmanager

from tests.broker.in_process_broker import FREE, running
from transfer.broker.config.settings import AbtpEndpoints
from transfer.certificates import Authority
from transfer.transports.security.settings import Security

HERE = "127.0.0.1"
TOKEN = "a4fc542c74e437a9de36a1413212954a"
OWN_TOKEN = "c19f3e7a5b604d28a7f19c02d3e8b654"
#: ports whose clients connect by plain TCP and TLS
TCP_PORTS = ("ttp", "pybroker", "rqueue", "abtp router", "abtp pub", "http")


class Identities:
    """Certificates of an authority that is trusted, of another one, and such as are over."""

    def __init__(self, folder):
        (folder / "other").mkdir()
        self.authority = Authority(folder)
        self.server = self.authority.issue("broker")
        self.client = self.authority.issue("client")
        self.token_file = folder / "token"
        self.token_file.write_text(TOKEN + "\n")
        stranger = Authority(folder / "other", "stranger").issue("stranger")
        self.bad = {
            "no certificate": None,
            "wrong authority": stranger,
            "expired": self.authority.issue("expired", begins=-2, ends=-1),
            "not yet": self.authority.issue("early", begins=1, ends=2),
            "self-signed": self.authority.issue("alone", self_signed=True),
        }
        #: what the broker counts of each
        self.words = {"no certificate": "unnamed", "expired": "expired", "not yet": "expired"}

    def of_broker(self, **changes):
        return self.shown_by(self.server, **changes)

    def shown_by(self, issued, **changes):
        shown = {"certificate": issued.certificate, "key": issued.key} if issued is not None else {}
        return Security(**{**shown, "authority": self.authority.path, **changes})


def secure(folder, identities, *, core=None, **changes):
    """A broker with all fronts and HTTP, all of it with mutual TLS."""
    changes = {"security": identities.of_broker(), "http": 0} | changes
    return running(folder, abtp=AbtpEndpoints(FREE, FREE), **changes)


def place(broker, port):
    if port in broker.ports:
        return HERE, broker.ports[port]
    return HERE, int(broker.endpoints[port].rpartition(":")[2])


def context_of(identities, issued):
    context = ssl.create_default_context(cafile=identities.authority.path)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if issued is not None:
        context.load_cert_chain(issued.certificate, issued.key)
    return context


@contextmanager
def dial(broker, port, identities, issued, *protocols):
    """A TLS connection that a program makes by itself."""
    context = context_of(identities, issued)
    if protocols:
        context.set_alpn_protocols(list(protocols))
    with socket.create_connection(place(broker, port), 20) as plain:
        with context.wrap_socket(plain, server_hostname=HERE) as connection:
            yield connection


def is_disconnected(connection):
    """Waits until the other side ends the connection; False: it says something."""
    try:
        return connection.recv(1) == b""
    except (ConnectionError, ssl.SSLError):
        return True
    except OSError as error:
        return error.errno in (errno.EPROTO, errno.ECONNRESET)


def ask(broker, path, context, *, method="GET", body=None, **headers):
    """(status, text) by HTTPS."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if body is not None:
        named["Content-Type"] = "application/json"
    connection = http.client.HTTPSConnection(*place(broker, "http"), timeout=20, context=context)
    try:
        connection.request(method, path, json.dumps(body) if body is not None else None, named)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def refused(broker, front):
    """Words and numbers of those who were not let in."""
    return {word: count for word, count in broker.listeners.refused[front].items() if count}


def until(what):
    deadline = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.01)
