"""`transfer certificates`, and what `transfer doctor` says of them."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

import pytest

from transfer import PULL, Context
from transfer.certificates import Authority
from transfer.cli.certificates import make
from transfer.doctor.security import security
from transfer.transports import config
from transfer.transports.errors import SecurityError, UsageError


def variables(lines: list[str]) -> dict[str, str]:
    (line,) = [line for line in lines if line.startswith("export ")]
    return dict(part.split("=", 1) for part in shlex.split(line)[1:])


@pytest.fixture
def named(tmp_path) -> dict[str, str]:
    return variables(make(tmp_path / "pki of mine", ["peer"], ["localhost", "10.0.0.7"], 30))


def checks(monkeypatch, named: dict[str, str]) -> dict[str, tuple[str, str]]:
    for name in ("TLS_CERT", "TLS_KEY", "TLS_CA", "TLS_CLIENTS", "TOKEN", "TOKEN_FILE", "UNAUTHENTICATED"):
        monkeypatch.delenv(f"TRANSFER_{name}", raising=False)
    for name, value in named.items():
        monkeypatch.setenv(name, value)
    return {check.name: (check.status, check.detail) for check in security()}


def test_what_it_prints_is_what_a_program_needs(named) -> None:
    found = config.security(named)
    assert found.tls and found.asks_certificates and found.has_token
    assert all(Path(path).is_absolute() for path in named.values())


def test_keys_and_the_token_are_nobody_elses(named) -> None:
    for path in (named["TRANSFER_TLS_KEY"], named["TRANSFER_TOKEN_FILE"]):
        assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600


def test_the_authority_and_the_token_stay(tmp_path) -> None:
    first = variables(make(tmp_path, ["one"], ["a.example"], 30))
    before = {path: Path(path).read_bytes() for path in first.values()}
    second = variables(make(tmp_path, ["two"], ["b.example"], 30))
    assert second["TRANSFER_TLS_CA"] == first["TRANSFER_TLS_CA"]
    assert second["TRANSFER_TOKEN_FILE"] == first["TRANSFER_TOKEN_FILE"]
    assert {path: Path(path).read_bytes() for path in before} == before


@pytest.mark.parametrize("name", ["authority", "../peer", "", "a b"])
def test_names_that_are_none(tmp_path, name) -> None:
    with pytest.raises(UsageError):
        make(tmp_path, [name], ["localhost"], 30)


def test_a_folder_that_is_a_file(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SecurityError):
        make(tmp_path / "file", ["peer"], ["localhost"], 30)


def test_the_doctor_sees_that_all_is_well(monkeypatch, named) -> None:
    found = checks(monkeypatch, named)
    assert found["certificate"] == ("ok", "for localhost, 10.0.0.7, for 30 days more")
    assert found["tls"] == ("ok", "TLS 1.3, mutual")
    assert found["token"][0] == "ok"
    secret = Path(named["TRANSFER_TOKEN_FILE"]).read_text().strip()
    assert not any(secret in detail for _, detail in found.values())


def test_the_doctor_sees_what_is_wrong(monkeypatch, named, tmp_path) -> None:
    other = Authority(tmp_path, "other")
    assert checks(monkeypatch, {**named, "TRANSFER_TLS_CA": other.path})["certificate"][0] == "fail"
    old = other.issue("old", begins=-3, ends=-1)
    wrong = {"TRANSFER_TLS_CERT": old.certificate, "TRANSFER_TLS_KEY": old.key}
    refused = checks(monkeypatch, {**named, **wrong, "TRANSFER_TLS_CA": other.path})["certificate"]
    assert refused[0] == "fail" and "expired" in refused[1]
    soon = other.issue("soon", ends=3)
    brief = {"TRANSFER_TLS_CERT": soon.certificate, "TRANSFER_TLS_KEY": soon.key}
    assert checks(monkeypatch, {**brief, "TRANSFER_TLS_CA": other.path})["certificate"][0] == "warn"
    missing = checks(monkeypatch, {**named, "TRANSFER_TLS_KEY": str(tmp_path / "none")})
    assert any(status == "fail" for status, _ in missing.values())


def test_without_anything_it_says_how(monkeypatch) -> None:
    found = checks(monkeypatch, {})
    assert found["tls"][0] == "off" and found["token"][0] == "off"
    assert checks(monkeypatch, {"TRANSFER_UNAUTHENTICATED": "allow"})["strangers"][0] == "warn"


@pytest.mark.parametrize(
    ("named_file", "mode", "words"),
    [
        ("TOKEN_FILE", 0o644, "can read"),
        ("TOKEN_FILE", 0o666, "can read and change"),
        ("TOKEN_FILE", 0o602, "can change"),
        ("TLS_KEY", 0o604, "can read"),
        ("TLS_CA", 0o666, "can change"),
        ("TLS_CERT", 0o646, "can change"),
    ],
)
def test_the_doctor_sees_files_that_are_open_to_others(monkeypatch, named, named_file, mode, words) -> None:
    path = Path(named[f"TRANSFER_{named_file}"])
    path.chmod(mode)
    name = {"TOKEN_FILE": "token", "TLS_KEY": "key", "TLS_CA": "authority", "TLS_CERT": "certificate"}[
        named_file
    ]
    assert checks(monkeypatch, named)[name] == ("warn", f"every user of this host {words} {path}")


def test_the_doctor_sees_a_folder_that_is_open_to_others(monkeypatch, named) -> None:
    folder = Path(named["TRANSFER_TLS_KEY"]).parent
    folder.chmod(0o777)
    status, detail = checks(monkeypatch, named)["key"]
    assert status == "warn" and "put another file in the place of" in detail
    folder.chmod(0o1777)  # as Kubernetes mounts secrets
    for path in folder.iterdir():
        path.chmod(0o440)
    found = checks(monkeypatch, named)
    assert "key" not in found and found["token"][0] == "ok"


def test_the_doctor_says_what_may_listen(monkeypatch, named) -> None:
    nothing = "sockets may only listen on this machine"
    token = {"TRANSFER_TOKEN_FILE": named["TRANSFER_TOKEN_FILE"]}
    certificate = {f"TRANSFER_TLS_{one}": named[f"TRANSFER_TLS_{one}"] for one in ("CERT", "KEY")}
    for variables, shut in (
        ({}, True),
        (token, False),
        ({"TRANSFER_UNAUTHENTICATED": "allow"}, False),
        (certificate, True),
        (certificate | token, False),
        (named, False),
    ):
        assert (nothing in checks(monkeypatch, variables)["tls"][1]) == shut, variables
        with Context(security=config.security(variables)) as context, context.socket(PULL) as pull:
            if shut:
                with pytest.raises(SecurityError):
                    pull.bind("tcp://*:0")
            else:
                pull.bind("tcp://*:0")


def test_a_program_warns_once_of_secrets_that_are_open_to_others(caplog, named) -> None:
    paths = [Path(named[f"TRANSFER_{name}"]) for name in ("TLS_KEY", "TOKEN_FILE")]
    for path in paths:
        path.chmod(0o644)
    for _ in range(2):
        with Context(security=config.security(named)) as context, context.socket(PULL) as pull:
            pull.bind("tcp://127.0.0.1:0")
    told = [line for line in caplog.messages if "every user of this host" in line]
    assert len(told) == 2
    assert all(
        f"can read {path}\n  hint: chmod o-rwx {path}" in line for path, line in zip(paths, told, strict=True)
    )


def test_nothing_is_said_of_secrets_that_are_closed(caplog, named) -> None:
    with Context(security=config.security(named)) as context, context.socket(PULL) as pull:
        pull.bind("tcp://127.0.0.1:0")
    assert not caplog.messages


@pytest.mark.skipif(os.geteuid() != 0, reason="files of another user are made by root")
@pytest.mark.parametrize("planted", ["", "authority.pem", "authority.key", "peer.crt", "peer.key", "token"])
def test_what_another_user_put_there_is_refused(tmp_path, planted) -> None:
    folder = tmp_path / "pki"
    make(folder, ["peer"], ["localhost"], 30)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    os.chown(folder / planted, 4002, 4002)
    with pytest.raises(SecurityError, match="belongs to user 4002") as refused:
        make(folder, ["peer"], ["localhost"], 30)
    assert "name another folder" in refused.value.hint
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.skipif(os.geteuid() != 0, reason="files of another user are made by root")
def test_a_link_that_another_user_put_there_is_refused(tmp_path) -> None:
    (tmp_path / "token").symlink_to("elsewhere")
    os.lchown(tmp_path / "token", 4002, 4002)
    with pytest.raises(SecurityError, match="belongs to user 4002"):
        make(tmp_path, ["peer"], ["localhost"], 30)


@pytest.mark.parametrize(
    ("name", "mode"), [("", 0o777), ("", 0o1777), ("authority.pem", 0o646), ("token", 0o602)]
)
def test_what_others_can_write_is_refused(tmp_path, name, mode) -> None:
    folder = tmp_path / "pki"
    make(folder, ["peer"], ["localhost"], 30)
    (folder / name).chmod(mode)
    with pytest.raises(SecurityError, match="every user of this host can write") as refused:
        make(folder, ["peer"], ["localhost"], 30)
    assert f"chmod o-w {folder / name}" in refused.value.hint
