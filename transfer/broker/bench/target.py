"""The measured broker: it runs already, or is started in a process."""

from __future__ import annotations

import http.client
import ssl
import time
from abc import ABC, abstractmethod
from pathlib import Path
from urllib.parse import urlsplit

from transfer.broker.bench import usage
from transfer.broker.bench.plan import TRANSIENT
from transfer.broker.bench.processes import BenchMember, Processes, Stage
from transfer.broker.bench.usage import Usage
from transfer.broker.config.settings import TTP_PORT, Settings
from transfer.broker.core.topic_patterns import Kind, TopicPattern, pattern
from transfer.broker.fronts.native import NativeSettings
from transfer.broker.server import Broker
from transfer.http.client import Bounds, Trust, request
from transfer.transports.errors import AddressError, UsageError

#: default endpoints of a broker's fronts
REQUESTS, TTP = NativeSettings().requests, f"127.0.0.1:{TTP_PORT}"
_FREE = "tcp://127.0.0.1:0"
#: seconds that a request for a broker's metrics may take
_PATIENCE = 10.0


class BenchTarget(ABC):
    """A broker. requests: the endpoint of its native front. ttp: host and port."""

    requests: str
    ttp: tuple[str, int]

    @abstractmethod
    def usage(self) -> Usage:
        """Returns the resources that it has used so far."""

    def begin(self) -> None:
        """Called when a measurement begins."""

    def check(self) -> None:
        """Raises InternalError when it has ended unexpectedly."""


class Running(BenchTarget):
    """A broker that runs already.

    pid: of its process, on this machine. url: of its HTTP. Both only serve to read its usage; None: unknown.
    Raises AddressError, UsageError.
    """

    def __init__(
        self,
        requests: str = REQUESTS,
        ttp: str = TTP,
        *,
        pid: int | None = None,
        url: str | None = None,
    ) -> None:
        host, _, port = ttp.removeprefix("tcp://").rpartition(":")
        if not host or not port.isdecimal():
            raise AddressError(f"{ttp!r} is no HOST:PORT", hint=f"for instance {TTP}")
        if url is not None and not _is_url(url):
            raise AddressError(f"{url!r} is no URL", hint="for instance http://127.0.0.1:9180")
        self.requests = requests
        self.ttp = (host.strip("[]"), int(port))
        self._pid = pid
        self._url = url
        self.usage()

    def usage(self) -> Usage:
        """See Target."""
        if self._pid is not None:
            return usage.of_process(self._pid)
        return Usage() if self._url is None else usage.of_metrics(self._metrics(self._url))

    def _metrics(self, url: str) -> str:
        parts = urlsplit(url)
        host, secure = parts.hostname or "", parts.scheme == "https"
        trust = Trust(ssl.create_default_context(), host) if secure else None
        port, path = parts.port or (443 if secure else 80), parts.path.rstrip("/") + "/metrics"
        try:
            with request(host, port, path, bounds=Bounds(_PATIENCE), trust=trust) as answer:
                if answer.status != 200:
                    raise UsageError(f"no metrics at {url}: it answers with status {answer.status}")
                return answer.whole().decode()
        except (OSError, http.client.HTTPException, UnicodeDecodeError) as error:
            raise UsageError(f"no metrics at {url}: {error}") from error


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # its port is invalid
        return False


class Started(BenchTarget):
    """A broker that was started in a process. pid: of the process. opened: seconds of its start."""

    def __init__(self, member: BenchMember) -> None:
        self._member = member
        self.pid = member.pid
        ports, endpoints, self.opened = member.receive()
        self.requests = endpoints["requests"]
        self.endpoints: dict[str, str] = endpoints
        self.ttp = ("127.0.0.1", ports["ttp"])

    def begin(self) -> None:
        """Resets its peak of memory."""
        self._request("peak")

    def usage(self) -> Usage:
        """See Target."""
        found = self._request("usage")
        assert isinstance(found, Usage)
        return found

    def check(self) -> None:
        """See Target."""
        if self._member.line.poll():
            self._member.receive(0)

    def end(self) -> None:
        """Ends it cleanly. Raises InternalError if that failed."""
        self._request("end")

    def kill(self) -> None:
        """Kills its process."""
        self._member.end(kill=True)

    def _request(self, word: str) -> object:
        self._member.send(word)
        return self._member.receive()


def started(crew: Processes, folder: Path, transient: tuple[TopicPattern, ...] | None = None) -> Started:
    """Starts a broker on this folder, with the measured fronts on free ports.

    transient: topics that it does not keep; None: those of `TRANSIENT`.
    """
    if transient is None:
        transient = tuple(pattern(Kind.PATHS, text) for text in TRANSIENT)
    settings = Settings(
        native=NativeSettings(_FREE, _FREE, _FREE),
        ttp=0,
        pybroker=None,
        rqueue=None,
        abtp=None,
        http=None,
        spool=None,
        transient=transient,
    )
    return Started(crew.add(_serve, folder, settings))


def _serve(stage: Stage, folder: Path, settings: Settings) -> None:
    """The role of a broker: it sends where it listens, and answers requests for its usage."""
    usage.count_allocations()
    begun = time.monotonic()
    with Broker(folder, settings) as broker:
        stage.send((broker.ports, broker.endpoints, time.monotonic() - begun))
        while (word := stage.receive()) != "end":
            if word == "peak":
                usage.forget_peak()
            stage.send(usage.of_this_process())
