"""Whose certificates are taken, and whose are not: on both sides, with the reason on both."""

from __future__ import annotations

import importlib
import os
import secrets
import shutil
import socket
import ssl
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID as OID

from tests.descriptors import no_descriptor_left
from tests.security.conftest import TOKEN
from transfer.certificates import Authority
from transfer.transports.errors import HandshakeError, SecurityError
from transfer.transports.security import credentials as module
from transfer.transports.security.credentials import Credentials
from transfer.transports.security.settings import Security
from transfer.transports.testing.ends import Side, until


@pytest.mark.parametrize("other", ["pure", "native"])
def test_both_have_a_good_one(pair, pki, other):
    server, address = pair.serve(pki.security())
    client = pair.reach(
        address, pki.security(), core=importlib.import_module(f"transfer.transports.core.{other}")
    )
    pair.meets(server, client)
    for side in (server, client):
        assert side.connected[0].agreement.encrypted and side.connected[0].agreement.authenticated


BAD = {
    "expired": ({"begins": -2, "ends": -1}, "expired"),
    "not yet valid": ({"begins": 1, "ends": 2}, "not yet valid"),
    "self-signed": ({"self_signed": True}, "self-signed certificate"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_server_with_a_bad_certificate(pair, pki, bad):
    how, why = BAD[bad]
    issued = pki.authority.issue("bad server", **how)
    server, address = pair.serve(pki.security(issued))
    client = pair.reach(address, pki.security())
    found, refusal = pair.refused(server, client)
    assert (
        isinstance(refusal, HandshakeError)
        and refusal.reason == "tls"
        and why in str(refusal).replace("self ", "self-")
    )
    assert refusal.hint
    assert isinstance(found, HandshakeError) and found.reason == "tls" and "alert" in str(found)


@pytest.mark.parametrize("bad", BAD)
def test_a_client_with_a_bad_certificate(pair, pki, bad):
    how, why = BAD[bad]
    server, address = pair.serve(pki.security())
    client = pair.reach(address, pki.security(pki.authority.issue("bad client", **how)))
    found, refusal = pair.refused(server, client)
    assert (
        isinstance(found, HandshakeError)
        and found.reason == "tls"
        and why in str(found).replace("self ", "self-")
    )
    assert isinstance(refusal, HandshakeError) and refusal.reason == "tls" and "alert" in str(refusal)


@pytest.mark.parametrize("whose", ["server", "client"])
def test_another_authority(pair, pki, tmp_path, whose):
    """It has the same name, and signs for the same hosts."""
    stranger = Authority(tmp_path).issue()
    server, address = pair.serve(pki.security(stranger if whose == "server" else None))
    client = pair.reach(address, pki.security(stranger if whose == "client" else None))
    for error in pair.refused(server, client):
        assert isinstance(error, HandshakeError) and error.reason == "tls"


def test_a_certificate_for_other_names(pair, pki):
    server, address = pair.serve(pki.security(pki.authority.issue("elsewhere", hosts=("elsewhere",))))
    found, refusal = pair.refused(server, pair.reach(address, pki.security()))
    assert (
        refusal.reason == "tls" and "mismatch" in str(refusal) and "TRANSFER_TLS_SERVER_NAME" in refusal.hint
    )
    assert found.reason == "tls"
    friend = pair.reach(address, pki.security(server_name="elsewhere"))
    pair.meets(server, friend)


def test_a_name_that_only_the_subject_has(pair, pki):
    """A certificate names hosts in its subjectAltName. A CN is free text, which authorities do not check."""
    server, address = pair.serve(pki.security(pki.authority.issue("named.example", hosts=())))
    _, found = pair.refused(server, pair.reach(address, pki.security(server_name="named.example")))
    assert found.reason == "tls" and "mismatch" in str(found)


def test_a_certificate_for_servers_alone_lets_no_client_in(pair, pki, monkeypatch):
    """`serverAuth` is what a public authority gives to whoever has a web site."""
    usages = SimpleNamespace(SERVER_AUTH=OID.SERVER_AUTH, CLIENT_AUTH=OID.CODE_SIGNING)
    monkeypatch.setattr("transfer.certificates.ExtendedKeyUsageOID", usages)
    issued = pki.authority.issue("web")
    server, address = pair.serve(pki.security())
    found, _ = pair.refused(server, pair.reach(address, pki.security(issued)))
    assert found.reason == "tls" and "purpose" in str(found)


def test_a_client_without_certificate(pair, pki):
    server, address = pair.serve(pki.security())
    client = pair.reach(address, pki.security(certificate="", key=""))
    found, refusal = pair.refused(server, client)
    assert found.reason == refusal.reason == "tls"
    assert "did not return a certificate" in str(found)
    assert "TRANSFER_TLS_CERT" in refusal.hint


def test_a_client_that_has_a_token_instead(pair, pki):
    server, address = pair.serve(pki.security(clients="token", token=TOKEN))
    client = pair.reach(address, pki.security(certificate="", key="", token=TOKEN))
    pair.meets(server, client)
    assert server.connected[0].agreement.authenticated
    found, refusal = pair.refused(
        *_again(
            server,
            pair.reach(
                address, pki.security(certificate="", key="", token="8810ad581e59f2bc3928b261707a7130")
            ),
        )
    )
    assert found.reason == refusal.reason == "token"


def _again(server, client):
    """The server's side, with what happened before forgotten."""
    return Side([], server.failed), client


def test_certificate_and_wrong_token(pair, pki):
    """Both are asked for where both are given."""
    server, address = pair.serve(pki.security(token=TOKEN))
    for token in ("4562ddd1c277bf3c39f024c0574f4c6d", ""):
        server.failed.clear()
        found, refusal = pair.refused(server, pair.reach(address, pki.security(token=token)))
        assert found.reason == refusal.reason == "token"
        assert found.hint == refusal.hint == "give both sides the same token"


# --- files ---------------------------------------------------------------------------------------


def files(pki, tmp_path):
    """Own copies: (certificate, key, authority)."""
    return [
        shutil.copy(path, tmp_path / f"{name}.pem")
        for name, path in (
            ("certificate", pki.issued.certificate),
            ("key", pki.issued.key),
            ("authority", pki.authority.path),
        )
    ]


@pytest.mark.parametrize("which", ["certificate", "key", "authority"])
@pytest.mark.parametrize("how", ["missing", "empty", "garbage", "a folder", "half", "of another", "binary"])
def test_files_that_cannot_be_used(core, pki, tmp_path, which, how):
    paths = files(pki, tmp_path)
    path = Path(paths[["certificate", "key", "authority"].index(which)])
    text = path.read_bytes()
    path.unlink()
    if how == "a folder":
        path.mkdir()
    elif how == "of another":
        other = pki.authority.issue("another")
        path.write_bytes(Path(other.certificate if which == "certificate" else other.key).read_bytes())
    elif how != "missing":
        new = {
            "empty": b"",
            "garbage": b"no PEM\n" * 9,
            "half": text[: len(text) // 2],
            "binary": bytes(range(256)),
        }
        path.write_bytes(new[how])
    with pytest.raises(SecurityError) as caught:
        Credentials(Security(*paths), core)
    assert str(path) in str(caught.value) or (how == "of another" and "mismatch" in str(caught.value))


def test_a_key_with_a_password_asks_nobody(core, pki, tmp_path):
    certificate, key, authority = files(pki, tmp_path)
    made = serialization.load_pem_private_key(Path(key).read_bytes(), None)
    Path(key).write_bytes(
        made.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"pass"),
        )
    )
    with pytest.raises(SecurityError) as caught:
        Credentials(Security(certificate, key, authority), core)
    assert "without a password" in caught.value.hint


@pytest.mark.parametrize(
    "wrong",
    [
        {"certificate": "a.crt"},
        {"key": "a.key"},
        {"clients": "anybody", "authority": "a.pem"},
        {"encrypt": "none"},
        {"token": "short"},
        {"token": "x" * 15},
        {"token": "a token with a line\nbreak"},
        {"token": TOKEN, "token_file": "tokens"},
        {"server_name": ".example"},
        {"server_name": "broker.example\0.org"},
    ],
    ids=str,
)
def test_settings_that_make_no_sense(wrong):
    with pytest.raises(SecurityError) as caught:
        Security(**wrong)
    assert caught.value.hint and wrong.get("token", "\0") not in str(caught.value)


def test_who_listens_needs_a_certificate(pair, pki):
    with pytest.raises(SecurityError, match="no certificate, which a server needs") as caught:
        pair.serve(pki.security(certificate="", key=""))
    assert "TRANSFER_TLS_CERT" in caught.value.hint


# --- new ones while it runs ----------------------------------------------------------------------


def test_new_certificates_are_used_without_a_restart(pair, pki, tmp_path, monkeypatch):
    """As Kubernetes changes secrets: a link that leads elsewhere. A broken one changes nothing."""
    monkeypatch.setattr(module, "_LOOK", 0.0)
    mount = tmp_path / "now"
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        issued = pki.authority.issue(f"rotated {number}")
        shutil.copy(issued.certificate, folder / "tls.crt")
        shutil.copy(issued.key, folder / "tls.key")
    (tmp_path / "1" / "tls.key").write_text("half of a k")

    def turn(number):
        link = tmp_path / "new"
        link.symlink_to(tmp_path / str(number))
        os.replace(link, mount)

    def shown():
        count = len(server.connected)
        client = pair.reach(address, pki.security())
        until(lambda: len(server.connected) > count and client.connected, "the connection")
        return _certificate(pki, address)

    turn(0)
    known = Credentials(
        Security(str(mount / "tls.crt"), str(mount / "tls.key"), pki.authority.path), pair.core
    )
    server, address = pair.serve(known.security, credentials=known)
    first = shown()
    turn(1)
    assert shown() == first and (known.reloads, known.failures) == (0, 1)
    turn(2)
    assert shown() != first and (known.reloads, known.failures) == (1, 1)
    mount.unlink()
    shown()
    assert known.failures == 2, "they are gone, and the old ones stay"


def _certificate(pki, address):
    context = ssl.create_default_context(cafile=pki.authority.path)
    context.load_cert_chain(pki.issued.certificate, pki.issued.key)
    with (
        socket.create_connection((address.host, address.port)) as plain,
        context.wrap_socket(plain, server_hostname=address.host) as end,
    ):
        return end.getpeercert(True)


def test_new_tokens_are_read_when_there_are_descriptors_again(core, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_LOOK", 0.0)
    path, one, other = tmp_path / "token", secrets.token_hex(32), secrets.token_hex(32)
    path.write_text(one)
    known = Credentials(Security(token_file=str(path)), core)
    path.write_text(other)
    with no_descriptor_left():
        assert known.tokens() == (one.encode(),)
    assert known.tokens() == (other.encode(),) and (known.reloads, known.failures) == (1, 0)
