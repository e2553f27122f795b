"""`transfer certificates`, and what `transfer doctor` says of them."""

from __future__ import annotations

import shlex
import stat
from pathlib import Path

import pytest

from transfer.certificates import Authority
from transfer.cli.certificates import make
from transfer.doctor.security import security
from transports import config
from transports.errors import SecurityError, UsageError


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
