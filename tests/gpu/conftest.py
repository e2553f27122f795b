"""A device for the tests, or their reason to be skipped; a pair of sockets over each transport."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import transfer
from transfer.transports import probe

torch = pytest.importorskip("torch")
_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = not torch.cuda.is_available()
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            # The driver keeps descriptors and threads of its own from the first call on.
            item.add_marker(pytest.mark.keeps("the CUDA driver"))
            if missing:
                item.add_marker(pytest.mark.skip(reason="no CUDA device: never run here"))


class Sockets:
    """`push` and `pull`, connected."""

    def __init__(self, context: transfer.Context, endpoint: str) -> None:
        self.push, self.pull = context.socket(transfer.PUSH), context.socket(transfer.PULL)
        for socket in (self.push, self.pull):
            socket.sndtimeo = socket.rcvtimeo = 30_000
        self.pull.bind(endpoint)
        self.push.connect(self.pull.last_endpoint)
        self.push.wait_for_peers(1)

    def there(self, tensor, **options):
        """The tensor as it arrives."""
        self.push.send_tensor(tensor)
        return self.pull.recv_tensor(**options)


@contextlib.contextmanager
def sockets_over(transport: str) -> Iterator[Sockets]:
    endpoint = "inproc://gpu" if transport == "inproc" else "tcp://127.0.0.1:0"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRANSFER_LOCAL", "on" if transport == "local" else "off")
        probe.forget()
        with transfer.Context() as context:
            made = Sockets(context, endpoint)
            with made.push, made.pull:
                assert made.push.peers()[0].transport == transport
                yield made
    probe.forget()


@pytest.fixture(params=["tcp", "local", "inproc"])
def sockets(request: pytest.FixtureRequest) -> Iterator[Sockets]:
    with sockets_over(request.param) as made:
        yield made


@pytest.fixture
def tcp() -> Iterator[Sockets]:
    with sockets_over("tcp") as made:
        yield made
