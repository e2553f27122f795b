"""The spool in a separate process."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

_PATIENCE = 60


class Service:
    """A spool on a folder, on free ports or the given ones. `url` is its address; `pid` is its process."""

    def __init__(self, folder: Path, endpoint: str = "tcp://127.0.0.1:0", rows: str | None = None) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._link, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_work, args=(str(folder), endpoint, rows, theirs), daemon=True)
        self._process.start()
        theirs.close()  # so that the end of the process closes the pipe
        if not self._link.poll(_PATIENCE):
            raise AssertionError("the spool did not start")
        self.url, self.endpoint, self.rows_endpoint = self._link.recv()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def close(self) -> None:
        self._link.send(None)
        self._process.join(_PATIENCE)


def _work(folder: str, endpoint: str, rows: str | None, link: Any) -> None:
    from transfer.spool import Spool

    with Spool(folder, endpoint, rows) as spool:
        link.send((spool.url(), spool.endpoint, spool.rows_endpoint))
        try:
            link.recv()
        except EOFError:
            return
