"""Where a spool may listen."""

from __future__ import annotations

import pytest

from tests.broker.in_process_broker import running
from transfer import cli
from transfer.spool.format.address import default_rows_endpoint
from transfer.transports.errors import AddressError

NONE = {"native": None, "ttp": None, "pybroker": None, "rqueue": None}


def test_rows_come_in_at_the_next_port():
    assert default_rows_endpoint("tcp://127.0.0.1:5570") == "tcp://127.0.0.1:5571"
    assert default_rows_endpoint("tcp://[::1]:0") == "tcp://[::1]:0"


@pytest.mark.parametrize("endpoint", ["ipc://@x", "ipc:///tmp/spool", "inproc://x", "dns://spool:5570"])
def test_an_endpoint_that_no_run_can_be_at_is_named(tmp_path, capsys, endpoint):
    with (
        pytest.raises(AddressError, match=f"'{endpoint}'") as caught,
        running(tmp_path / "broker", spool=endpoint, **NONE),
    ):
        pass
    assert "tcp://HOST:PORT" in caught.value.hint
    assert cli.run(["serve", "--spool", str(tmp_path / "spool"), "--bind", endpoint]) == 2
    said = capsys.readouterr().err
    assert endpoint in said and "ipc:0" not in said
