"""TLS for ZeroMQ sockets: forwards the bytes of a private Unix socket to a broker over TLS.

ZeroMQ's wire format has no TLS. Its sockets connect to the tunnel as they would to the broker, and reconnect
when the broker was away.
"""

from __future__ import annotations

import asyncio
import shutil
import ssl
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, cast

from transfer.transports.address import parse
from transfer.transports.core import python_tls
from transfer.transports.errors import AddressError, InternalError, TransferError
from transfer.transports.security.credentials import Credentials

if TYPE_CHECKING:
    from transfer.transports.security.settings import Security

#: seconds to connect to the broker, and to flush sent bytes at the end
_PATIENCE, _LINGER = 10.0, 1.0
#: bytes that it reads at once, and queues for the other side at most
_PIECE = 256 << 10


class Tunnel:
    """A tunnel, which runs in a thread. endpoint: of the broker, `tcp://host:port`.

    The attribute `endpoint` is where ZeroMQ connects. failure: why the last connection to the broker failed;
    "" if it did not. Raises AddressError, SecurityError.
    """

    def __init__(self, endpoint: str, security: Security) -> None:
        self.failure = ""
        address = parse(endpoint)
        if address.scheme != "tcp" or address.is_wildcard:
            raise AddressError(f"{endpoint!r} is no endpoint of a broker", hint="tcp://host:port")
        self._host, self._port = address.host, address.port
        self._name = security.server_name or self._host
        self._credentials = Credentials(security, python_tls)
        self._folder = Path(tempfile.mkdtemp(prefix="transfer-"))
        self._path = str(self._folder / "tunnel")
        self.endpoint = f"ipc://{self._path}"
        self._loop = asyncio.new_event_loop()
        self._ending = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="transfer-tunnel", daemon=True)
        self._thread.start()
        self._started.wait()
        if not self._thread.is_alive():
            self.close()
            raise InternalError(f"nothing can listen in {self._folder}: {self.failure}")

    def close(self) -> None:
        """Closes the tunnel, and waits a moment until sent bytes are flushed. Idempotent."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ending.set)
            self._thread.join()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except OSError as error:
            self.failure = str(error)
        finally:
            self._loop.close()
            self._started.set()

    async def _serve(self) -> None:
        server = await asyncio.start_unix_server(self._begin, self._path)
        self._started.set()
        await self._ending.wait()
        # It accepts no more. close() would break accepted connections for which `_begin` was not called yet.
        for listener in server.sockets:
            self._loop.remove_reader(listener.fileno())
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_LINGER)
        for task in self._tasks:
            task.cancel()
        while rest := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(rest)
        server.close()
        await asyncio.sleep(0)  # aborted connections leave the loop

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._ending.is_set():
            writer.transport.abort()
            return
        task = self._loop.create_task(self._forward(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forwards one connection of ZeroMQ."""
        try:
            made = self._credentials.context(server=False)
            far_reader, far_writer = await asyncio.wait_for(
                asyncio.open_connection(
                    self._host,
                    self._port,
                    ssl=cast("python_tls.TlsContext", made).context,
                    server_hostname=self._name,
                    ssl_shutdown_timeout=_LINGER,
                ),
                _PATIENCE,
            )
        except (OSError, TransferError, TimeoutError) as error:
            self.failure = f"no TLS with {self._host}:{self._port}: {_words(error)}"
            writer.transport.abort()
            return
        except BaseException:
            writer.transport.abort()
            raise
        both = [asyncio.ensure_future(self._pump(reader, far_writer))]
        both += [asyncio.ensure_future(self._pump(far_reader, writer))]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            await _closed(far_writer)
            await _closed(writer)
        finally:
            for pump in both:
                pump.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            far_writer.transport.abort()
            writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(high=_PIECE)
        try:
            while data := await reader.read(_PIECE):
                self.failure = ""
                writer.write(data)
                await writer.drain()
        except OSError as error:
            self.failure = f"the connection to {self._host}:{self._port} broke: {_words(error)}"


async def _closed(writer: asyncio.StreamWriter) -> None:
    """Closes a writer, and waits until its bytes are flushed or lost."""
    writer.close()
    try:
        await asyncio.wait_for(writer.wait_closed(), 2 * _LINGER)
    except (OSError, TimeoutError):
        return


def _words(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the broker's certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return str(error) or type(error).__name__
