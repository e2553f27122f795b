"""TLS 1.3 over a descriptor by Python's `ssl`: for the twin, HTTP servers and abtp's client.

Contract: `TlsContext`, `TlsChannel` in core/contract.pyi.

As in the compiled core, OpenSSL never touches the descriptor. A read with room for SPILL leaves neither plain
bytes nor a whole record behind, so epoll's events of the descriptor are valid for the channel.
"""

from __future__ import annotations

import errno
import os
import ssl
import threading
from collections.abc import Sequence
from typing import Any

from transfer.transports.core.first_record import record_size
from transfer.transports.errors import InternalError, NotSupported, SecurityError

#: room that a read needs to leave nothing behind: a whole record, and the bytes after it
SPILL = 32 * 1024
_SEAL = 64 * 1024
_PREFIX, _LARGEST = 5, 16 * 1024 + 256
_HANDSHAKE = b"\x16"
_MAX_HANDSHAKE = 64 * 1024
#: the most bytes of an unauthenticated peer, hellos included
_MAX_STRANGE = 256 * 1024
#: bytes of replies to key updates, while there is nothing else to send
_MAX_REPLIES = 64 * 1024
#: bytes of consecutive records without data: endless key updates
_MAX_BARREN = 128 * 1024
#: consecutive reads without data
_MAX_IDLE = 16
_NO_KEYS = "the Python core has no keys of X25519, and no TLS with a key that both sides have"
_NATIVE = "use the compiled core: build it, and unset TRANSFER_CORE"
_VERIFY = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def openssl_version() -> str:
    """The version of OpenSSL: the one of Python."""
    return ssl.OPENSSL_VERSION


def x25519(secret: bytes, public: bytes) -> bytes:
    """Raises NotSupported: Python has no X25519."""
    raise NotSupported(_NO_KEYS, hint=_NATIVE)


class TlsContext:
    """The credentials and requirements of one side. Raises SecurityError for files that cannot be used."""

    def __init__(
        self,
        *,
        server: bool,
        certificate: str = "",
        key: str = "",
        authorities: str = "",
        clients: str = "none",
        protocols: tuple[str, ...] = (),
        keyed: bool = False,
    ) -> None:
        if keyed:
            raise NotSupported(_NO_KEYS, hint=_NATIVE)
        self.server = server
        self.keyed = keyed
        self.certificate = b""
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3
        if server:
            self.context.num_tickets = 0
            self.context.verify_mode = _VERIFY[clients]
        else:
            self.context.hostname_checks_common_name = False
        if certificate:
            self._show(certificate, key)
        if authorities:
            try:
                self.context.load_verify_locations(authorities)
            except (OSError, ssl.SSLError) as error:
                raise SecurityError(
                    f"the authorities {authorities} cannot be used: {error}",
                    hint="a PEM file of certificates",
                ) from error
        elif not server:
            self.context.load_default_certs()
        if protocols:
            self.context.set_alpn_protocols(list(protocols))

    def _show(self, certificate: str, key: str) -> None:
        try:
            self.context.load_cert_chain(certificate, key, password=lambda: b"")
            with open(certificate, encoding="utf-8") as file:
                self.certificate = _first(file.read())
        except (OSError, ssl.SSLError, ValueError) as error:
            raise SecurityError(
                f"the certificate {certificate} or its key {key} cannot be used: {error}",
                hint="PEM files: the server's own certificate first, and its key without a password",
            ) from error


def _first(text: str) -> bytes:
    """The first certificate of a PEM file. Raises ValueError if there is none."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    return ssl.PEM_cert_to_DER_cert(text[text.index(begin) : text.index(end) + len(end)])


class TlsChannel:
    """See the contract. `_lock` guards OpenSSL's object; one thread reads, one writes."""

    def __init__(self, context: TlsContext, fd: int, server_name: str = "") -> None:
        if not context.server and not server_name:
            raise InternalError("TLS needs server_name= at a client")
        self.context = context
        self.done = False
        self._fd = fd
        self._lock = threading.Lock()
        self._came, self._goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        # The zone of a link-local address names an interface of this machine, and is in no certificate.
        name = server_name.partition("%")[0] or None
        try:
            self._object = context.context.wrap_bio(
                self._came, self._goes, server_side=context.server, server_hostname=name
            )
        except (ValueError, TypeError) as error:
            raise SecurityError(f"{server_name!r} is no name that a certificate could have") from error
        self._record = bytearray()  # ciphertext of an incomplete record
        self._staged = b""
        self._unsent = memoryview(b"")
        self._exact = True
        self._drained = self._ended = False
        self._taken = 0
        self._replies = 0
        self._barren = 0  # bytes received since the last data
        self._why = ""

    # -- the handshake

    def handshake(self) -> bool:
        self._check()
        while not self.done:
            try:
                with self._lock:
                    self._object.do_handshake()
            except ssl.SSLWantReadError:
                if not self.flush() or not self._more():
                    return False
                continue
            except (ssl.SSLError, ssl.CertificateError) as error:
                raise self._failed(error) from error
            self.done = True
        return self.flush()

    def _more(self) -> bool:
        """Reads the missing bytes of the current record. False: there are none."""
        try:
            data = self._pull(0)
        except BlockingIOError:
            return False
        if not data:
            self._why = "the peer closed in the TLS handshake"
            raise ConnectionResetError(errno.ECONNRESET, self._why)
        if self._taken > _MAX_HANDSHAKE:
            raise self._refused(f"a TLS handshake of more than {_MAX_HANDSHAKE} bytes")
        return True

    def _refused(self, why: str) -> OSError:
        self._why = why
        return OSError(errno.EPROTO, why)

    def _failed(self, error: Exception) -> OSError:
        """Sends the reason to the peer, as TLS does; returns the error to raise."""
        verified = getattr(error, "verify_message", "")
        reason = (getattr(error, "reason", None) or "the peer broke the TLS protocol").lower()
        self._why = f"the peer's certificate is refused: {verified}" if verified else reason.replace("_", " ")
        try:
            self.flush()
        except OSError:
            pass  # the peer is gone
        return OSError(errno.EPROTO, self._why)

    def _check(self) -> None:
        if self._why:
            raise OSError(errno.EPROTO, self._why)

    def give(self) -> None:
        """A stream takes it over: all received bytes must have been taken."""
        self._check()
        if self.pending or self._record or self._came.pending:
            raise OSError(errno.EPROTO, "the peer sent more than its part of the handshake")
        self._exact = False

    # -- reading

    def ahead(self) -> None:
        self._exact = False

    @property
    def pending(self) -> int:
        return len(self._staged) + self._object.pending()

    def recv(self, size: int) -> bytes:
        memory = bytearray(size)
        return bytes(memory[: self.recv_into(memory)])

    def recv_into(self, memory: Any) -> int:
        view = memoryview(memory).cast("B")
        if not self._staged:
            self._check()
        if not self._staged and (len(view) >= SPILL or self._exact):
            return self._read(view)
        if not self._staged:
            room = memoryview(bytearray(SPILL))
            self._staged = bytes(room[: self._read(room)])
        count = min(len(view), len(self._staged))
        view[:count] = self._staged[:count]
        self._staged = self._staged[count:]
        return count

    def recvmsg_into(self, buffers: Sequence[Any]) -> tuple[int]:
        """As a socket's; the buffers have room for SPILL in total."""
        whole = memoryview(bytearray(sum(len(buffer) for buffer in buffers)))
        count = self._read(whole)
        begin = 0
        for buffer in buffers:
            part = whole[begin : min(begin + len(buffer), count)]
            memoryview(buffer)[: len(part)] = part
            begin += len(part)
        return (count,)

    def _read(self, view: memoryview) -> int:
        self._check()
        self._drained = False
        done = idle = 0
        # Endless key updates do not block this thread: the descriptor stays readable.
        while done < len(view) and not self._ended and (idle < _MAX_IDLE or self._exact):
            got = self._decrypt(view[done:])
            idle = 0 if got else idle + 1
            done += got
            room = len(view) - done
            if self._ended or self._drained or (done and (self._exact or room < _LARGEST)):
                break
            try:
                data = self._pull(max(0, room - len(self._record)))
            except BlockingIOError:
                break
            except OSError:
                if not done:
                    raise
                break  # the next read reports it
            if not data:
                self._ended = True
        if not done and not self._ended:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return done

    def _decrypt(self, view: memoryview) -> int:
        done = 0
        try:
            with self._lock:
                while done < len(view) and (self._came.pending or self._object.pending()):
                    before = self._goes.pending
                    count = int(self._object.read(len(view) - done, view[done:]))
                    self._ended = not count
                    done += count
                    self._barren = 0
        except ssl.SSLWantReadError:
            self._replies += self._goes.pending - before
            if self._replies > _MAX_REPLIES:
                raise self._refused("the peer requests new keys again and again") from None
        except ssl.SSLZeroReturnError:
            self._ended = True
        except ssl.SSLError as error:
            failure = self._failed(error)
            if not done:
                raise failure from error
        return done

    def _pull(self, most: int) -> bytes:
        """Reads once: the missing bytes of the current record, and up to `most` bytes. Whole records go to
        OpenSSL. Raises BlockingIOError."""
        need = self._missing()
        if self.done and self._barren > _MAX_BARREN:
            raise self._refused(f"more than {_MAX_BARREN} bytes of records without data")
        wanted = need if self._exact else max(need, most)
        data = os.read(self._fd, wanted)
        self._drained = len(data) < wanted
        self._taken += len(data)
        self._barren += len(data)
        if self._exact and self._taken > _MAX_STRANGE:
            raise self._refused(f"more than {_MAX_STRANGE} bytes of an unauthenticated peer")
        self._record += data
        hello = not self.done and self.context.server and self._record[:1] == _HANDSHAKE
        if hello and not record_size(self._record):
            raise self._refused("the peer begins with no ClientHello in one record")
        while self._record and self._is_record() and not self._missing():
            size = _PREFIX + int.from_bytes(self._record[3:5], "big")
            self._came.write(self._record[:size])
            del self._record[:size]
        return data

    def _missing(self) -> int:
        """Bytes until the current record is complete."""
        have = len(self._record)
        if have < _PREFIX:
            return _PREFIX - have
        if not self._is_record():
            raise self._refused("the peer does not speak TLS")
        return max(0, int.from_bytes(self._record[3:5], "big") + _PREFIX - have)

    def _is_record(self) -> bool:
        """The received bytes may be the start of a record."""
        if len(self._record) < _PREFIX:
            return True
        size = int.from_bytes(self._record[3:5], "big")
        return 20 <= self._record[0] <= 24 and self._record[1] == 3 and size <= _LARGEST

    # -- writing

    @property
    def unsent(self) -> int:
        return len(self._unsent) + self._goes.pending

    def send(self, data: Any) -> int:
        return self.sendmsg((data,))

    def sendmsg(self, buffers: Any, *_: Any) -> int:
        self._check()
        if not self.flush():
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        taken = self._replies = 0
        try:
            with self._lock:
                for buffer in buffers:
                    view = memoryview(buffer).cast("B")[: _SEAL - taken]
                    taken += len(view)
                    if len(view):
                        self._object.write(view)
                    if taken == _SEAL:
                        break
        except ssl.SSLError as error:
            raise self._failed(error) from error
        try:
            self.flush()
        except OSError:
            pass  # it is encrypted, and cannot be taken back: the next write reports it
        return taken

    def flush(self) -> bool:
        while self.unsent:
            if not self._unsent:
                with self._lock:  # the reading thread's OpenSSL may write there too
                    self._unsent = memoryview(self._goes.read())
            try:
                self._unsent = self._unsent[os.write(self._fd, self._unsent) :]
            except (BlockingIOError, InterruptedError):
                return False
        return True

    def close(self) -> None:
        if self._why or not self.done:
            return
        self._why = "the channel is closed"
        try:
            with self._lock:
                self._object.unwrap()
        except (ssl.SSLError, OSError):
            pass  # it does not wait for the peer's end of TLS
        try:
            self.flush()
        except OSError:
            pass

    # -- the identities

    @property
    def alpn(self) -> str:
        return self._object.selected_alpn_protocol() or ""

    @property
    def peer_certificate(self) -> bytes:
        return self._object.getpeercert(True) or b""

    @property
    def own_certificate(self) -> bytes:
        return self.context.certificate
