"""Queries DNS for all addresses of a name, with their time to live. The only module that uses dnspython.

The system's own lookup returns no TTL, and reads files and caches. So this module queries the name servers of
/etc/resolv.conf directly, with its search domains, and by TCP where an answer is truncated. It does not read
/etc/hosts.
"""

from __future__ import annotations

import ipaddress
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from transfer.transports.address import Address
from transfer.transports.config import dns_family, name_servers
from transfer.transports.discovery.directory import Directory, Listing
from transfer.transports.errors import AddressError, Again, Broken, Closed, TransferError, comes_with
from transfer.transports.forking import undivided

if TYPE_CHECKING:
    import dns.message
    import dns.name
    import dns.resolver

#: seconds for all queries of one lookup, and for each before it is repeated
LIFETIME, _TRY = 2.5, 1.0
#: the longest time in seconds that the answer "no such name" is valid: a client waits for the first address
_LONGEST_NOTHING = 30.0
#: address records by family, in the order of the queries
_RECORDS = {"ipv4": ("A",), "ipv6": ("AAAA",), "both": ("A", "AAAA"), "auto": ("A", "AAAA")}


class DnsDirectory(Directory):
    """The addresses of a `dns://` endpoint. See Directory.

    A pod of a cluster with both families has one address of each under the same name, and would get twice the
    work by two connections. So IPv6 is queried only where there is no IPv4 address, unless
    TRANSFER_DNS_FAMILY overrides it. Raises NotSupported without dnspython, OptionError.
    """

    def __init__(self, address: Address) -> None:
        with undivided(), comes_with("discovery", str(address)):
            import dns.resolver  # noqa: F401 - if it is missing, the connect fails, and not a thread
        self._address = address
        self._servers = name_servers()
        self._family = dns_family()
        self._closed = False

    def close(self) -> None:
        self._closed = True  # a pending query ends by itself, within LIFETIME

    def look_up(self) -> Listing:
        if self._closed:
            raise Closed(f"{self._address} is closed")
        resolver = self._resolver()
        deadline = time.monotonic() + LIFETIME
        numbers: set[str] = set()
        ttls: list[float] = []
        nothing: list[float] = []
        for record in _RECORDS[self._family]:
            found, ttl = self._ask(resolver, record, deadline)
            numbers |= found or set()
            (ttls if found else nothing).append(ttl)
            if found is None or (found and self._family == "auto"):
                break
        if not numbers:
            # A headless service without a ready pod has no name at all. Whether all pods have gone, or the
            # answer is wrong, is unknown; so it changes nothing for the members.
            return Listing(frozenset(), min(*nothing, _LONGEST_NOTHING), complete=False)
        return Listing(frozenset(map(self._member, numbers)), min(ttls))

    def _member(self, number: str) -> Address:
        address = self._address
        return replace(address, scheme="tcp", host=number, server_name=address.host.rstrip("."))

    def _resolver(self) -> dns.resolver.Resolver:
        """A new one for each lookup, since /etc/resolv.conf changes. Raises Broken."""
        import dns.nameserver
        import dns.resolver

        try:
            resolver = dns.resolver.Resolver()
        except (dns.resolver.NoResolverConfiguration, OSError) as error:
            if not self._servers:
                raise Broken(f"no name server for {self._address}: {error}") from error
            resolver = dns.resolver.Resolver(configure=False)
        if self._servers:
            resolver.nameservers = [dns.nameserver.Do53Nameserver(host, port) for host, port in self._servers]
        resolver.timeout = _TRY
        return resolver

    def _ask(
        self, resolver: dns.resolver.Resolver, record: str, deadline: float
    ) -> tuple[set[str] | None, float]:
        """(addresses, seconds for which they are valid) of one kind; an empty answer is valid for a time too.
        None: there is no such name at all. Raises Again, Broken, AddressError."""
        import dns.exception
        import dns.resolver

        left = deadline - time.monotonic()
        if left <= 0:
            raise Again(f"{self._address}: no answer within {LIFETIME:g} s")
        try:
            answer = resolver.resolve(
                self._address.host, record, search=True, lifetime=left, raise_on_no_answer=False
            )
        except dns.resolver.NXDOMAIN as error:
            responses = error.responses()  # type: ignore[no-untyped-call]
            return None, min(map(_holds, responses.values()), default=0.0)
        except (dns.exception.DNSException, OSError) as error:
            raise self._error(error) from error
        found = {data.to_text() for data in answer.rrset or ()}
        return {number for number in found if _is_a_host(number)}, _holds(answer.response)

    def _error(self, error: Exception) -> TransferError:
        import dns.exception
        import dns.name

        text = f"{self._address} cannot be looked up: {error}"
        if isinstance(error, dns.exception.Timeout):
            return Again(text, hint="are the name servers of /etc/resolv.conf reachable?")
        if isinstance(error, (dns.name.LabelTooLong, dns.name.EmptyLabel, dns.name.NameTooLong)):
            return AddressError(text)
        return Broken(text, hint="do the name servers' logs have the reason?")


def _holds(response: dns.message.QueryMessage | dns.message.Message) -> float:
    """Seconds: the lowest TTL of the records from the name to its addresses, or of the negative answer."""
    return float(response.resolve_chaining().minimum_ttl)  # type: ignore[union-attr]


def _is_a_host(number: str) -> bool:
    """False for 0.0.0.0: some networks answer it for a blocked name, and it would be this machine."""
    address = ipaddress.ip_address(number)
    return not (address.is_unspecified or address.is_multicast)
