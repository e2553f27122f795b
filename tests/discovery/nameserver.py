"""A small authoritative name server for one zone, on UDP and TCP, whose answers a test decides.

    with NameServer({"trainers.test": ["127.0.0.2"]}, ttl=5) as server:
        server.put("trainers.test", ["127.0.0.2", "127.0.0.3"])

Run as a program it serves in a namespace: python -m tests.discovery.nameserver HOST PORT TTL; each line
of its input is "NAME ADDRESS..." and is answered by "done".
"""

from __future__ import annotations

import socket
import socketserver
import sys
import threading

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

ZONE = "test."


class _Udp(socketserver.ThreadingUDPServer):
    daemon_threads = True
    allow_reuse_address = True


class _Tcp(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


def _both(host, port, stream, datagram):
    """Servers on one port that is free for both."""
    for _ in range(20):
        tcp = _Tcp((host, port), stream)
        try:
            return tcp, _Udp(tcp.server_address, datagram)
        except OSError:
            tcp.server_close()
            if port:
                raise
    raise AssertionError("no port is free for TCP and UDP")


class NameServer:
    """names: addresses by name, without the last dot; a name that is not there is NXDOMAIN. ttl: of all
    answers; negative: of "no such name". mode: "" answers, "servfail", "silent" (never answers), "refused".
    asked: (name, type, protocol) of every question, in their order."""

    def __init__(self, names=None, ttl=1, negative=1, host="127.0.0.1", port=0):
        self.names = dict(names or {})
        self.ttl, self.negative, self.mode = ttl, negative, ""
        self.cnames = {}
        self.asked = []
        server = self

        class Datagram(socketserver.BaseRequestHandler):
            def handle(self):
                data, connection = self.request
                answer = server.answer(data, "udp")
                if answer is not None:
                    connection.sendto(answer, self.client_address)

        class Stream(socketserver.BaseRequestHandler):
            def handle(self):
                self.request.settimeout(5)
                with self.request.makefile("rb") as file:
                    while len(size := file.read(2)) == 2:
                        answer = server.answer(file.read(int.from_bytes(size, "big")), "tcp")
                        if answer is None:
                            return
                        self.request.sendall(len(answer).to_bytes(2, "big") + answer)

        self._tcp, self._udp = _both(host, port, Stream, Datagram)
        self.port = self._udp.server_address[1]
        self._threads = [
            threading.Thread(target=each.serve_forever, args=(0.02,)) for each in (self._udp, self._tcp)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, name, addresses):
        """From now on the name has these; none: it is no name any more."""
        if addresses:
            self.names[name] = list(addresses)
        else:
            self.names.pop(name, None)

    def answer(self, data, protocol):
        query = dns.message.from_wire(data)
        question = query.question[0]
        name = question.name.to_text(omit_final_dot=True).lower()
        self.asked.append((name, dns.rdatatype.to_text(question.rdtype), protocol))
        if self.mode == "silent":
            return None
        response = dns.message.make_response(query)
        response.flags |= dns.flags.AA
        if self.mode in ("servfail", "refused"):
            response.set_rcode(dns.rcode.SERVFAIL if self.mode == "servfail" else dns.rcode.REFUSED)
            return response.to_wire()
        if name in self.cnames:
            target, ttl = self.cnames[name]
            response.answer.append(dns.rrset.from_text(question.name, ttl, "IN", "CNAME", target + "."))
            name = target
        wanted = ":" if question.rdtype == dns.rdatatype.AAAA else "."
        addresses = self.names.get(name)
        found = [one for one in addresses or () if wanted in one]
        if found and question.rdtype in (dns.rdatatype.A, dns.rdatatype.AAAA):
            kind = dns.rdatatype.to_text(question.rdtype)
            response.answer.append(dns.rrset.from_text(name + ".", self.ttl, "IN", kind, *found))
        else:
            soa = f"ns.{ZONE} root.{ZONE} 1 60 60 60 {self.negative}"
            response.authority.append(dns.rrset.from_text(ZONE, self.negative, "IN", "SOA", soa))
            if addresses is None:
                response.set_rcode(dns.rcode.NXDOMAIN)
        wire = response.to_wire()
        if protocol == "udp" and len(wire) > 512:
            response.answer.clear()
            response.flags |= dns.flags.TC
            wire = response.to_wire()
        return wire

    def close(self):
        for server in (self._udp, self._tcp):
            server.shutdown()
            server.server_close()
        for thread in self._threads:
            thread.join()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


def main() -> None:
    host, port, ttl = sys.argv[1:]
    with NameServer(ttl=int(ttl), host=host, port=int(port)) as server:
        print("ready", flush=True)
        for line in sys.stdin:
            name, *addresses = line.split()
            if name == "asked":
                print(sum(one[0] == addresses[0] for one in server.asked), flush=True)
                continue
            server.put(name, addresses)
            print("done", flush=True)


if __name__ == "__main__":
    socket.setdefaulttimeout(None)
    main()
