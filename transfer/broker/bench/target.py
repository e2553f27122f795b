"""The broker that is measured: one in a process of its own for this, or one that runs."""

from __future__ import annotations

import http.client
import ssl
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from transfer.broker.bench import usage
from transfer.broker.bench.plan import TRANSIENT
from transfer.broker.bench.processes import Member, Processes, Stage
from transfer.broker.bench.usage import Usage
from transfer.broker.config.settings import TTP_PORT, Settings
from transfer.broker.core.topic_patterns import Kind, Pattern, pattern
from transfer.broker.fronts.native import NativeSettings
from transfer.broker.server import Broker
from transfer.http.client import Bounds, Trust, asked
from transfer.transports.errors import AddressError, UsageError

#: where a broker's fronts are unless it is told otherwise
REQUESTS, TTP = NativeSettings().requests, f"127.0.0.1:{TTP_PORT}"
_FREE = "tcp://127.0.0.1:0"
#: seconds that a broker's metrics are waited for
_PATIENCE = 10.0


class Target(ABC):
    """A broker. requests: the endpoint of its own front. ttp: host and port."""

    requests: str
    ttp: tuple[str, int]

    @abstractmethod
    def usage(self) -> Usage:
        """What it has used so far."""

    def begin(self) -> None:
        """A measurement begins."""

    def look(self) -> None:
        """Raises InternalError when it has ended by itself."""


class Running(Target):
    """A broker that somebody else has started.

    pid: of its process, on this machine. url: where it serves HTTP. Each is for its usage only; None: not
    known. Raises AddressError, UsageError.
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
            with asked(host, port, path, bounds=Bounds(_PATIENCE), trust=trust) as answer:
                if answer.status != 200:
                    raise UsageError(f"no metrics at {url}: it answers with status {answer.status}")
                return answer.whole().decode()
        except (OSError, http.client.HTTPException, UnicodeDecodeError) as error:
            raise UsageError(f"no metrics at {url}: {error}") from error


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of its port
        return False


class Started(Target):
    """A broker that was started in a process of its own. pid: of that. opened: seconds that its start took,
    without Python's."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self.pid = member.pid
        ports, endpoints, self.opened = member.hear()
        self.requests = endpoints["requests"]
        self.endpoints: dict[str, str] = endpoints
        self.ttp = ("127.0.0.1", ports["ttp"])

    def begin(self) -> None:
        """Its peak of memory is that of what comes."""
        self._asked("peak")

    def usage(self) -> Usage:
        """See Target."""
        found = self._asked("usage")
        assert isinstance(found, Usage)
        return found

    def look(self) -> None:
        """See Target."""
        if self._member.line.poll():
            self._member.hear(0)

    def end(self) -> None:
        """A clean end. Raises InternalError if that failed."""
        self._asked("end")

    def kill(self) -> None:
        """Its process is gone at once."""
        self._member.end(kill=True)

    def _asked(self, word: str) -> object:
        self._member.tell(word)
        return self._member.hear()


def started(crew: Processes, folder: Path, transient: tuple[Pattern, ...] | None = None) -> Started:
    """A broker on this folder, with the fronts that are measured on free ports. transient: topics that keep
    nothing; None: those of `TRANSIENT`."""
    if transient is None:
        transient = tuple(pattern(Kind.PATHS, text) for text in TRANSIENT)
    settings = Settings(
        own=NativeSettings(_FREE, _FREE, _FREE),
        ttp=0,
        pybroker=None,
        rqueue=None,
        abtp=None,
        http=None,
        spool=None,
        transient=transient,
    )
    return Started(crew.add(_serve, folder, settings))


@contextmanager
def temporary(parent: Path | None = None) -> Iterator[Path]:
    """A folder that is removed with all that is in it. parent: where; None: where the system has such."""
    with tempfile.TemporaryDirectory(prefix="transfer-bench-", dir=parent) as path:
        yield Path(path)


def _serve(stage: Stage, folder: Path, settings: Settings) -> None:
    """The part of a broker: it says where it listens, and answers what it has used."""
    usage.count_allocations()
    begun = time.monotonic()
    with Broker(folder, settings) as broker:
        stage.tell((broker.ports, broker.endpoints, time.monotonic() - begun))
        while (word := stage.hear()) != "end":
            if word == "peak":
                usage.forget_peak()
            stage.tell(usage.of_this_process())
