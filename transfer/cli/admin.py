"""Asks a broker's admin API over HTTP."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.parse import urlencode, urlsplit

from transfer.cli.health import WITHOUT_TLS, ended_without_answer, target, trust
from transfer.http.client import Answer, Bounds, TooLarge, asked
from transfer.transports.errors import AddressError, Again, Broken, Fatal, InternalError, UsageError
from transfer.transports.security.settings import Security

_TOKEN = "X-Admin-Token"
_WHERE = "--url or TRANSFER_ADMIN_URL names its HTTP address"


class Members(dict[str, Any]):
    """A JSON object of an answer. A member that is not there means that no broker answers."""

    def __init__(self, url: str, members: dict[str, Any]) -> None:
        super().__init__(members)
        self._url = url

    def __missing__(self, name: str) -> Any:
        raise _stranger(self._url, f"its answer has no {name!r}")

    def objects(self, name: str) -> list[Members]:
        """The objects of a list. Raises Broken."""
        found = self[name]
        if not isinstance(found, list) or not all(isinstance(one, Members) for one in found):
            raise _stranger(self._url, f"{name!r} is no list of objects")
        return found


class Admin:
    """One broker. url: `http://HOST:PORT`, or `https`. timeout: seconds for a whole answer, or a whole
    line of it in `lines`. security: the certificates that are shown, and trusted. Raises AddressError,
    OptionError.

    Its calls raise UsageError for what the broker refuses, Fatal for what is not there, InternalError when
    the broker failed, Again after the time-out, Broken when nothing answers, or another program.
    """

    def __init__(self, url: str, token: str | None, timeout: float, security: Security | None = None) -> None:
        parts = urlsplit(url)
        place = target(url, {}, Security(), live=False)
        if parts.query or parts.fragment:
            hint = "write it, or TRANSFER_ADMIN_URL, as http://127.0.0.1:9180"
            raise AddressError(f"{url!r} is no address of a broker", hint=hint)
        self._url = url.rstrip("/")
        self._headers = {_TOKEN: token} if token else {}
        self._timeout = timeout
        self._place, self._root = place, parts.path.rstrip("/")
        self._trust = trust(place, security or Security(), secret=True) if place.secure else None

    def get(self, path: str, **query: str | int | None) -> Members:
        """What is there; parameters that are None are left out."""
        with self._open(f"{path}?{_query(query)}", None) as answer:
            return self._decoded(answer.whole())

    def look(self, path: str, **query: str | int | None) -> Members:
        """What everybody who may look is shown, under `/api/`."""
        with self._open(f"{path}?{_query(query)}", None, under="") as answer:
            return self._decoded(answer.whole())

    def post(self, path: str, members: Mapping[str, Any]) -> Members:
        """What came of it; members that are None are left out."""
        body = json.dumps({name: value for name, value in members.items() if value is not None})
        with self._open(path, body.encode()) as answer:
            return self._decoded(answer.whole())

    def lines(self, path: str, **query: str | int | None) -> Iterator[bytes]:
        """The lines of a long answer, one by one."""
        with self._open(f"{path}?{_query(query)}", None) as answer:
            yield from answer.lines()

    @contextmanager
    def _open(self, path: str, body: bytes | None, under: str = "admin/") -> Iterator[Answer]:
        headers = self._headers | ({"Content-Type": "application/json"} if body is not None else {})
        bounds = Bounds(self._timeout)
        where = f"{self._root}/api/{under}{path}"
        host, port = self._place.host, self._place.port
        try:
            with asked(
                host, port, where, bounds=bounds, trust=self._trust, body=body, headers=headers
            ) as answer:
                if not 200 <= answer.status < 300:
                    raise self._refusal(answer)
                yield answer
        except TimeoutError as error:
            raise Again(f"{self._url} did not answer within {self._timeout:g} s") from error
        except ssl.SSLError as error:
            raise Broken(
                f"no TLS with {self._url}: {_words(error)}",
                hint="TRANSFER_TLS_CA says whom to trust, TRANSFER_TLS_SERVER_NAME which name its "
                "certificate has, TRANSFER_TLS_CERT what is shown",
            ) from error
        except TooLarge as error:
            raise self._stranger(f"its answer has {error}") from error
        except (OSError, http.client.HTTPException) as error:
            raise self._ended(error) from error
        except ValueError as error:  # a token that no header can have
            raise UsageError(f"it cannot be asked for: {error}") from error

    def _ended(self, error: OSError | http.client.HTTPException) -> Broken:
        ended = isinstance(error, http.client.HTTPException | ConnectionError)
        if ended and not isinstance(error, ConnectionRefusedError):
            plain = self._trust is None and ended_without_answer(error)
            return Broken(f"{self._url} ended the connection: {error!r}", hint=WITHOUT_TLS if plain else "")
        hint = "is the broker running? --url names its HTTP address"
        return Broken(f"nobody answers at {self._url}: {error}", hint=hint)

    def _refusal(self, answer: Answer) -> UsageError | Fatal | InternalError | Broken:
        try:
            body = json.loads(answer.whole())
            code, message = str(body["error"]), str(body["message"])
        except (ValueError, KeyError, TypeError, RecursionError, http.client.IncompleteRead):
            return self._stranger(f"it answers with status {answer.status}")
        if answer.status in (401, 403):
            return UsageError(f"{self._url} refuses: {message}", hint="--token, or ADMIN_TOKEN")
        if code == "not_found":
            return Fatal(message)
        if answer.status >= 500:
            return InternalError(f"{self._url}: {message}")
        return UsageError(message)

    def _decoded(self, data: bytes) -> Members:
        try:
            body = json.loads(data, object_hook=partial(Members, self._url))
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, Members):
            raise self._stranger("its answer is no JSON object")
        return body

    def _stranger(self, why: str) -> Broken:
        return _stranger(self._url, why)


def _stranger(url: str, why: str) -> Broken:
    return Broken(f"{url} is not a broker's admin API: {why}", hint=_WHERE)


def _words(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    return (error.reason or str(error)).lower().replace("_", " ")


def _query(values: Mapping[str, str | int | None]) -> str:
    return urlencode({name: value for name, value in values.items() if value is not None})
