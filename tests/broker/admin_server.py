"""The admin application on a real port, in a thread, and what asks it."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from contextlib import contextmanager
from urllib.parse import urlencode

from aiohttp import web

from transfer.broker.http.app import application


@contextmanager
def serving(operator, *, token=None, **options):
    """The port at which the application answers."""
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(application(operator, token=token, **options))

    async def begin():
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()

    async def end():
        await asyncio.sleep(0.02)  # who connected and went at once is accepted by now
        await runner.cleanup()
        await asyncio.sleep(0.02)
        for transport in list(loop._transports.values()):
            transport.abort()
        await asyncio.sleep(0.02)

    loop.run_until_complete(begin())
    thread = threading.Thread(target=loop.run_forever, name="admin-server")
    thread.start()
    try:
        yield runner.addresses[0][1]
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()


class Client:
    """Asks one application, with one token."""

    def __init__(self, port, token=None):
        self.port = port
        self.headers = {} if token is None else {"X-Admin-Token": token}

    def ask(self, method, path, body=None, headers=None):
        """(status, headers, body as bytes)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, body, self.headers | (headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def get(self, path, **query):
        """(status, JSON)."""
        status, _, body = self.ask("GET", f"/api/admin/{path}?{urlencode(query)}")
        return status, json.loads(body)

    def post(self, path, **members):
        """(status, JSON)."""
        headers = {"Content-Type": "application/json"}
        status, _, body = self.ask("POST", f"/api/admin/{path}", json.dumps(members), headers)
        return status, json.loads(body)
