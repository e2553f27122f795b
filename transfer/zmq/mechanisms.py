"""The options of ZeroMQ's mechanisms, NULL, PLAIN and CURVE, and the keys of CURVE."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

from transfer.transports import core
from transfer.transports.errors import ArgumentError, NotSupported, OptionError, SecurityError
from transfer.transports.handshake.curve import BASE_POINT
from transfer.transports.inproc import SCHEME
from transfer.transports.security.mechanism import CURVE, KEY, NO_MECHANISM, NULL, PLAIN, Mechanism
from transfer.zmq import zap
from transfer.zmq.constants import SecurityMechanism
from transfer.zmq.utils import z85

if TYPE_CHECKING:
    from transfer.transports.address import Address
    from transfer.zmq.socket import Socket

__all__ = ["curve_keypair", "curve_public"]

#: characters of a key in Z85
_Z85_KEY = 40
_LONGEST = 255


def curve_keypair() -> tuple[bytes, bytes]:
    """Makes a key pair of CURVE: (public, secret), each 40 characters of Z85. Raises NotSupported without the
    compiled core."""
    secret = os.urandom(KEY)
    return z85.encode(core.x25519(secret, BASE_POINT)), z85.encode(secret)


def curve_public(secret_key: str | bytes) -> bytes:
    """Returns the public key of a secret one, both in Z85. Raises ValueError as in pyzmq."""
    if not isinstance(secret_key, str | bytes):
        raise ArgumentError(f"a key is bytes or text, not {type(secret_key).__name__}")
    text = secret_key.encode() if isinstance(secret_key, str) else secret_key
    if len(text) != _Z85_KEY:
        raise ValueError("a key of CURVE has 40 characters of Z85")
    return z85.encode(core.x25519(z85.decode(text), BASE_POINT))


def has_curve() -> bool:
    """Whether this process can use CURVE: by the compiled core, with an OpenSSL that has PSK."""
    try:
        core.TlsContext(server=True, keyed=True)
    except NotSupported:
        return False
    return True


class MechanismOption:
    """An option of a mechanism, as an attribute of a socket."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, sock: Any, owner: type | None = None) -> Any:
        return self if sock is None else getattr(sock.__dict__.get("_mechanisms", _NONE), self._name)

    def __set__(self, sock: Any, value: Any) -> None:
        sock._check_open()
        options = sock.__dict__.setdefault("_mechanisms", MechanismOptions())
        getattr(options, f"set_{self._name}")(value)


class MechanismOptions:
    """The values of one socket, with libzmq's rules: the option that was set last chooses the mechanism.
    Unlike there, options of two mechanisms together are an error of `bind` and `connect`."""

    def __init__(self) -> None:
        self._name = NULL
        self._set: dict[str, bool] = {}  # the mechanisms of which options are set; True: as a server
        self._secret = self._public = self._server_key = b""
        self.plain_username = self.plain_password = self.zap_domain = b""
        self.zap_enforce_domain = 0

    @property
    def _server(self) -> bool:
        return self._set.get(self._name, False)

    # -- what `get` returns

    @property
    def mechanism(self) -> int:
        return SecurityMechanism[self._name]

    @property
    def plain_server(self) -> int:
        return int(self._name == PLAIN and self._server)

    @property
    def curve_server(self) -> int:
        return int(self._name == CURVE and self._server)

    # -- what `set` does

    def set_plain_server(self, value: int) -> None:
        self._serve(PLAIN, value)

    def set_curve_server(self, value: int) -> None:
        self._serve(CURVE, value)

    def set_plain_username(self, value: bytes) -> None:
        self.plain_username = _text(value, "PLAIN_USERNAME")
        self._choose(PLAIN, server=False)

    def set_plain_password(self, value: bytes) -> None:
        self.plain_password = _text(value, "PLAIN_PASSWORD")
        self._choose(PLAIN, server=False)

    def set_curve_secretkey(self, value: bytes) -> None:
        self._secret = _raw(value, "CURVE_SECRETKEY")
        self._choose(CURVE)

    def set_curve_publickey(self, value: bytes) -> None:
        self._public = _raw(value, "CURVE_PUBLICKEY")
        self._choose(CURVE)

    def set_curve_serverkey(self, value: bytes) -> None:
        self._server_key = _raw(value, "CURVE_SERVERKEY")
        self._choose(CURVE, server=False)

    def set_zap_domain(self, value: bytes) -> None:
        if len(value) > _LONGEST:
            raise OptionError(f"ZAP_DOMAIN has at most {_LONGEST} bytes")
        self.zap_domain = value

    def set_zap_enforce_domain(self, value: int) -> None:
        self.zap_enforce_domain = int(bool(value))

    def _serve(self, name: str, value: int) -> None:
        if value not in (0, 1):
            raise OptionError(f"{name}_SERVER cannot be {value}: it is 0 or 1")
        if value:
            self._choose(name, server=True)
        else:
            self._set.pop(name, None)
            if self._name == name:
                self._name = next(iter(self._set), NULL)

    def _choose(self, name: str, server: bool | None = None) -> None:
        self._set[name] = self._set.get(name, False) if server is None else server
        self._name = name

    # -- for an endpoint

    def chosen(self, sock: Socket[Any]) -> Mechanism:
        """The mechanism of the next endpoint, with the values as they are now. Raises SecurityError,
        NotSupported."""
        if len(self._set) > 1:
            raise SecurityError(
                "options of PLAIN and of CURVE are set, and an endpoint has one mechanism",
                hint="PLAIN_SERVER = 0 or CURVE_SERVER = 0 takes those of one back",
            )
        if self._name == NULL and (self._secret or self._public or self._server_key):
            raise SecurityError(
                "keys of CURVE are set, but curve_server = False has turned CURVE off: nothing is encrypted",
                hint="set curve_server before the keys, or use a new socket without keys",
            )
        asks = None
        if self._server or (self._name == NULL and self.zap_domain):
            asks = partial(zap.ask, sock.context.reactor, self.zap_domain, sock.routing_id)
        if self._name == NULL and asks is None:
            return NO_MECHANISM
        if self._name == CURVE:
            self._check_keys(sock)
        return Mechanism(
            self._name,
            self._server,
            username=self.plain_username,
            password=self.plain_password,
            secret=self._secret,
            server_key=self._server_key,
            asks=asks,
            required=self._name == PLAIN or bool(self.zap_enforce_domain and self.zap_domain),
            core=sock.context.core,
        )

    def _check_keys(self, sock: Socket[Any]) -> None:
        if sock.context.credentials.security.tls:
            raise SecurityError(
                "CURVE and certificates are set, and a connection has one kind of TLS",
                hint="unset TRANSFER_TLS_CERT, TRANSFER_TLS_KEY and TRANSFER_TLS_CA, or the options of CURVE",
            )
        if self._server and self._server_key:
            raise SecurityError(
                "CURVE_SERVER and CURVE_SERVERKEY are set: this side is either server or client"
            )
        if not self._secret:
            raise SecurityError("CURVE has no secret key here", hint="set curve_secretkey")
        if not self._server and not self._server_key:
            hint = "set curve_serverkey, or curve_server = True at a server"
            raise SecurityError("a client of CURVE needs the server's public key", hint=hint)
        public = sock.context.core.x25519(self._secret, BASE_POINT)
        if self._public and public != self._public:
            raise SecurityError("curve_publickey is not that of curve_secretkey")


#: stands for the options of a socket that has none
_NONE = MechanismOptions()


def mechanism_of(sock: Socket[Any], address: Address) -> Mechanism:
    """The mechanism of the socket's next endpoint. Raises SecurityError, NotSupported."""
    if address.scheme == SCHEME:  # within the program there is none
        return NO_MECHANISM
    options: MechanismOptions = sock.__dict__.get("_mechanisms", _NONE)
    chosen = options.chosen(sock)
    # Before the first message, which may arrive while `bind` runs.
    sock._keeps_properties = sock._keeps_properties or chosen.approves
    return chosen


def add_options(cls: type) -> None:
    """Adds the options to a class of sockets."""
    for name in (
        "mechanism", "plain_server", "plain_username", "plain_password", "curve_server", "curve_publickey",
        "curve_secretkey", "curve_serverkey", "zap_domain", "zap_enforce_domain",
    ):  # fmt: skip
        setattr(cls, name, MechanismOption(name))


def _text(value: bytes, name: str) -> bytes:
    if not 0 < len(value) <= _LONGEST:
        raise OptionError(f"{name} has 1 to {_LONGEST} bytes")
    return value


def _raw(value: bytes, name: str) -> bytes:
    """A key's 32 bytes, from Z85 or as they are. No error has the key in its text."""
    if len(value) == KEY:
        return value
    try:
        if len(value) == _Z85_KEY:
            return z85.decode(value)
    except ValueError:
        pass
    raise OptionError(f"{name}: a key of CURVE is 32 bytes, or 40 characters of Z85")
