"""Asks a broker's admin API over HTTP."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import IO, Any, Protocol
from urllib.parse import urlencode, urlsplit

from transfer.cli.health import WITHOUT_TLS, Asked, ended_without_answer, trust
from transports.errors import AddressError, Again, Broken, Fatal, InternalError, UsageError
from transports.security.settings import Security

_TOKEN = "X-Admin-Token"
_WHERE = "--url or TRANSFER_ADMIN_URL names its HTTP address"


class _Direct(urllib.request.HTTPRedirectHandler):
    """Follows nobody elsewhere: the token is for one broker."""

    def redirect_request(self, *_: object) -> None:
        return None


class _Named(http.client.HTTPSConnection):
    """Expects the certificate of this name, whatever the host is called."""

    def __init__(self, host: str, *, name: str, context: ssl.SSLContext, timeout: float) -> None:
        super().__init__(host, timeout=timeout, context=context)
        self._name, self._trust = name, context

    def connect(self) -> None:
        """By TLS. Raises OSError."""
        http.client.HTTPConnection.connect(self)
        self.sock = self._trust.wrap_socket(self.sock, server_hostname=self._name)


class _Secured(urllib.request.HTTPSHandler):
    def __init__(self, context: ssl.SSLContext, name: str) -> None:
        super().__init__(context=context)
        self._made = partial(_Named, name=name, context=context)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._made, request)


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


class _Answer(Protocol):
    def read(self) -> bytes: ...

    def __iter__(self) -> Iterator[bytes]: ...


class Admin:
    """One broker. url: `http://HOST:PORT`, or `https`. timeout: seconds without a byte from it. security: the
    certificates that are shown, and trusted. Raises AddressError, OptionError.

    Its calls raise UsageError for what the broker refuses, Fatal for what is not there, InternalError when
    the broker failed, Again after the time-out, Broken when nobody or somebody else answers.
    """

    def __init__(self, url: str, token: str | None, timeout: float, security: Security | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc or parts.query or parts.fragment:
            hint = "write it, or TRANSFER_ADMIN_URL, as http://127.0.0.1:9180"
            raise AddressError(f"{url!r} is no address of a broker", hint=hint)
        self._url = url.rstrip("/")
        self._headers = {_TOKEN: token} if token else {}
        self._timeout = timeout
        # Without proxies: what the environment says of the web is not meant for a broker.
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({}), _Direct()]
        if parts.scheme == "https":
            asked = Asked(parts.hostname or "", parts.port or 443, "/", secure=True)
            handlers.append(_Secured(*trust(asked, security or Security(), secret=True)))
        self._opener = urllib.request.build_opener(*handlers)

    def get(self, path: str, **query: str | int | None) -> Members:
        """What is there; parameters that are None are left out."""
        with self._open(f"{path}?{_query(query)}", None) as answer:
            return self._decoded(answer.read())

    def look(self, path: str, **query: str | int | None) -> Members:
        """What everybody who may look is shown, under `/api/`."""
        with self._open(f"{path}?{_query(query)}", None, under="") as answer:
            return self._decoded(answer.read())

    def post(self, path: str, members: Mapping[str, Any]) -> Members:
        """What came of it; members that are None are left out."""
        body = json.dumps({name: value for name, value in members.items() if value is not None})
        with self._open(path, body.encode()) as answer:
            return self._decoded(answer.read())

    def lines(self, path: str, **query: str | int | None) -> Iterator[bytes]:
        """The lines of a long answer, one by one."""
        with self._open(f"{path}?{_query(query)}", None) as answer:
            yield from answer

    @contextmanager
    def _open(self, path: str, body: bytes | None, under: str = "admin/") -> Iterator[_Answer]:
        headers = self._headers | ({"Content-Type": "application/json"} if body is not None else {})
        try:
            request = urllib.request.Request(f"{self._url}/api/{under}{path}", body, headers)
            with self._opener.open(request, timeout=self._timeout) as answer:
                yield answer
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(error.code, error) from error
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise self._silent() from error
            if isinstance(error.reason, ssl.SSLError):
                raise Broken(
                    f"no TLS with {self._url}: {_words(error.reason)}",
                    hint="TRANSFER_TLS_CA says whom to trust, TRANSFER_TLS_SERVER_NAME which name its "
                    "certificate has, TRANSFER_TLS_CERT what is shown",
                ) from error
            if ended_without_answer(error.reason):
                raise self._ended(error.reason) from error
            raise Broken(
                f"nobody answers at {self._url}: {error.reason}",
                hint="is the broker running? --url names its HTTP address",
            ) from error
        except TimeoutError as error:
            raise self._silent() from error
        except (http.client.HTTPException, ConnectionError) as error:
            raise self._ended(error) from error
        except ValueError as error:  # a token that no header can have
            raise UsageError(f"it cannot be asked for: {error}") from error

    def _ended(self, error: object) -> Broken:
        plain = self._url.startswith("http:") and ended_without_answer(error)
        hint = WITHOUT_TLS if plain else ""
        return Broken(f"{self._url} ended the connection: {error!r}", hint=hint)

    def _silent(self) -> Again:
        return Again(f"{self._url} did not answer within {self._timeout} s")

    def _refusal(self, status: int, answer: IO[bytes]) -> UsageError | Fatal | InternalError | Broken:
        try:
            body = json.loads(answer.read())
            code, message = str(body["error"]), str(body["message"])
        except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
            return self._stranger(f"it answers with status {status}")
        if status in (401, 403):
            return UsageError(f"{self._url} refuses: {message}", hint="--token, or ADMIN_TOKEN")
        if code == "not_found":
            return Fatal(message)
        if status >= 500:
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
