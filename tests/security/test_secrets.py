"""Tokens and keys are in nothing that anybody reads: no log, error, text of an object, metric or finding."""

from __future__ import annotations

import dataclasses
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

import transfer
from transfer.metrics import prometheus as metrics
from transfer.transports import core as default_core
from transfer.transports.errors import TransferError
from transfer.transports.security.credentials import Credentials
from transfer.transports.security.settings import Security
from transfer.transports.testing.ends import until

SECRET = "7d0c52e3b19f4a86ce05d1f7328b94aa"


@pytest.mark.parametrize("by", ["text", "file"])
def test_nobody_reads_it(pki, tmp_path, caplog, by):
    caplog.set_level(logging.DEBUG)
    file = tmp_path / "tokens"
    file.write_text(SECRET)
    given = {"token": SECRET} if by == "text" else {"token_file": str(file)}
    security = pki.security(**given)
    texts = [repr(security), str(security), repr(Credentials(security, default_core))]
    with (
        transfer.Context(security=security) as context,
        transfer.Context(security=pki.security(token="c5e4820d8861f9af1764aa144e581ed1")) as other,
        context.socket(transfer.PULL, rcvtimeo=10_000) as pull,
        context.socket(transfer.PUSH) as push,
        other.socket(transfer.PUSH, linger=0) as stranger,
    ):
        pull.bind("tcp://127.0.0.1:0")
        push.connect(pull.last_endpoint)
        push.send(b"x")
        assert pull.recv() == b"x"
        stranger.connect(pull.last_endpoint)
        until(lambda: stranger._links.state.endpoints[0].error, "the refusal")
        texts.append(
            f"{stranger._links.state.endpoints[0].error} {stranger._links.state.endpoints[0].error!r}"
        )
        texts += [repr(each) for each in (context, pull, push, stranger, *pull.peers(), *push.peers())]
        texts += [
            repr(context.__dict__),
            metrics.exposition([context], {}, {}).decode(),
        ]
    texts.append(caplog.text)
    key = Path(pki.issued.key).read_text().splitlines()[1]
    for text in texts:
        assert SECRET not in text and SECRET.encode().hex() not in text and key not in text


@pytest.mark.parametrize("secret", [SECRET[:10], SECRET + "\n" + SECRET, SECRET + "\x07"])
def test_errors_do_not_say_it(secret, tmp_path, core):
    file = tmp_path / "tokens"
    file.write_text(f"{SECRET}\n{secret[:10]}\n")
    for make in (lambda: Security(token=secret), lambda: Credentials(Security(token_file=str(file)), core)):
        with pytest.raises(TransferError) as caught:
            make()
        seen, error = "", caught.value
        while error is not None:
            seen += f"{error} {error!r} {getattr(error, 'hint', '')}"
            error = error.__cause__
        assert SECRET[:10] not in seen


def test_the_doctor_does_not_say_it(pki):
    said = subprocess.run(
        [sys.executable, "-m", "transfer", "doctor", "--json"],
        env=os.environ | {
            "TRANSFER_TOKEN": SECRET, "TRANSFER_TLS_CERT": pki.issued.certificate,
            "TRANSFER_TLS_KEY": pki.issued.key, "TRANSFER_TLS_CA": pki.authority.path,
        },
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert said.stdout and SECRET not in said.stdout + said.stderr


def test_what_is_copied_keeps_it_hidden():
    security = dataclasses.replace(Security(token=SECRET), server_name="there")
    assert SECRET not in repr(security) and SECRET not in f"{[security]}"
