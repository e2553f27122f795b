"""A client of a broker's admin API over HTTP."""

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
from transfer.http.client import Bounds, HttpResponse, TooLarge, request
from transfer.transports.errors import AddressError, Again, Broken, Fatal, InternalError, UsageError
from transfer.transports.security.settings import Security

_TOKEN = "X-Admin-Token"
_WHERE = "--url or TRANSFER_ADMIN_URL names its HTTP address"


class Members(dict[str, Any]):
    """A JSON object of an answer. A missing member raises Broken: the peer is no broker."""

    def __init__(self, url: str, members: dict[str, Any]) -> None:
        super().__init__(members)
        self._url = url

    def __missing__(self, name: str) -> Any:
        raise _no_broker(self._url, f"its answer has no {name!r}")

    def objects(self, name: str) -> list[Members]:
        """Returns the objects of a list. Raises Broken."""
        found = self[name]
        if not isinstance(found, list) or not all(isinstance(one, Members) for one in found):
            raise _no_broker(self._url, f"{name!r} is no list of objects")
        return found


class Admin:
    """The admin API of one broker.

    url: `http://HOST:PORT`, or `https`. timeout: seconds for a whole answer, or for each line in `lines`.
    security: this side's certificates, and the trusted authority. Raises AddressError, OptionError.

    Its calls raise UsageError for the broker's refusals, Fatal for missing objects, InternalError for the
    broker's failures, Again after the time-out, and Broken if no broker answers.
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
        """Sends a GET below `/api/admin/`. It omits parameters that are None."""
        with self._open(f"{path}?{_query(query)}", None) as answer:
            return self._decoded(answer.whole())

    def view(self, path: str, **query: str | int | None) -> Members:
        """Sends a GET below `/api/`, which needs no operator's token."""
        with self._open(f"{path}?{_query(query)}", None, under="") as answer:
            return self._decoded(answer.whole())

    def post(self, path: str, members: Mapping[str, Any]) -> Members:
        """Sends a POST below `/api/admin/`. It omits members that are None."""
        body = json.dumps({name: value for name, value in members.items() if value is not None})
        with self._open(path, body.encode()) as answer:
            return self._decoded(answer.whole())

    def lines(self, path: str, **query: str | int | None) -> Iterator[bytes]:
        """Yields the lines of a long answer."""
        with self._open(f"{path}?{_query(query)}", None) as answer:
            yield from answer.lines()

    @contextmanager
    def _open(self, path: str, body: bytes | None, under: str = "admin/") -> Iterator[HttpResponse]:
        headers = self._headers | ({"Content-Type": "application/json"} if body is not None else {})
        bounds = Bounds(self._timeout)
        where = f"{self._root}/api/{under}{path}"
        host, port = self._place.host, self._place.port
        try:
            with request(
                host, port, where, bounds=bounds, trust=self._trust, body=body, headers=headers
            ) as answer:
                if not 200 <= answer.status < 300:
                    raise self._refusal(answer)
                yield answer
        except TimeoutError as error:
            raise Again(f"{self._url} did not answer within {self._timeout:g} s") from error
        except ssl.SSLError as error:
            raise Broken(
                f"no TLS with {self._url}: {_tls_error(error)}",
                hint="check TRANSFER_TLS_CA (the trusted authority), TRANSFER_TLS_SERVER_NAME (the name in "
                "the broker's certificate) and TRANSFER_TLS_CERT (this side's certificate)",
            ) from error
        except TooLarge as error:
            raise self._no_broker(f"its answer has {error}") from error
        except (OSError, http.client.HTTPException) as error:
            raise self._ended(error) from error
        except ValueError as error:  # a header cannot contain the token
            raise UsageError(f"the request is invalid: {error}") from error

    def _ended(self, error: OSError | http.client.HTTPException) -> Broken:
        ended = isinstance(error, http.client.HTTPException | ConnectionError)
        if ended and not isinstance(error, ConnectionRefusedError):
            plain = self._trust is None and ended_without_answer(error)
            return Broken(f"{self._url} ended the connection: {error!r}", hint=WITHOUT_TLS if plain else "")
        hint = "is the broker running? --url names its HTTP address"
        return Broken(f"no answer from {self._url}: {error}", hint=hint)

    def _refusal(self, answer: HttpResponse) -> UsageError | Fatal | InternalError | Broken:
        try:
            body = json.loads(answer.whole())
            code, message = str(body["error"]), str(body["message"])
        except (ValueError, KeyError, TypeError, RecursionError, http.client.IncompleteRead):
            return self._no_broker(f"it answers with status {answer.status}")
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
            raise self._no_broker("its answer is no JSON object")
        return body

    def _no_broker(self, why: str) -> Broken:
        return _no_broker(self._url, why)


def _no_broker(url: str, why: str) -> Broken:
    return Broken(f"{url} is not a broker's admin API: {why}", hint=_WHERE)


def _tls_error(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    return (error.reason or str(error)).lower().replace("_", " ")


def _query(values: Mapping[str, str | int | None]) -> str:
    return urlencode({name: value for name, value in values.items() if value is not None})
