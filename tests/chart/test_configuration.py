"""What the chart tells the broker is what the broker understands: its real configuration code reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chart.rendering import CASES, case
from transfer.broker.config.configuration import Configuration, configured
from transfer.broker.config.settings import AbtpEndpoints

WITH_BROKER = [name for name in CASES if CASES[name].get("broker", {}).get("enabled", True)]


def read(name: str, folder: Path) -> Configuration:
    rendered = case(name)
    (text,) = (one["data"]["broker.toml"] for one in rendered.of("ConfigMap") if "broker.toml" in one["data"])
    file = folder / "broker.toml"
    file.write_text(text)
    return configured([], [], file)


@pytest.mark.parametrize("name", WITH_BROKER)
def test_the_broker_understands_its_file(name: str, tmp_path: Path) -> None:
    found, values = read(name, tmp_path), case(name).values["broker"]
    settings = found.settings
    host, endpoint = ("::", "tcp://[::]") if name == "IPv6" else ("0.0.0.0", "tcp://0.0.0.0")
    assert (found.folder, settings.host, settings.http) == (Path("/data"), host, 9180)
    assert settings.drain_timeout == values["drainSeconds"]
    assert settings.native is not None
    listening = (settings.native.requests, settings.native.pushes, settings.native.subscriptions)
    assert listening == (f"{endpoint}:5580", f"{endpoint}:5581", f"{endpoint}:5582")


@pytest.mark.parametrize("name", WITH_BROKER)
def test_what_listens_has_a_port_of_its_container_and_nothing_else_does(name: str, tmp_path: Path) -> None:
    rendered, settings = case(name), read(name, tmp_path).settings
    (container,) = (one for _, one in rendered.containers() if one["name"] == "broker")
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    expected = {"requests": 5580, "pushes": 5581, "subscriptions": 5582, "http": settings.http}
    for front in ("ttp", "pybroker", "rqueue"):
        if (port := getattr(settings, front)) is not None:
            expected[front] = port
    if settings.spool is not None:
        expected |= {"spool": int(settings.spool.rpartition(":")[2]), "rows": 5571}
    if settings.abtp is not None:
        assert isinstance(settings.abtp, AbtpEndpoints)
        expected |= {"abtp": 5555, "abtp-pub": int(settings.abtp.pub.rpartition(":")[2])}
    assert ports == expected


def test_the_fronts_of_other_systems_are_off_until_they_are_wanted(tmp_path: Path) -> None:
    for name, there in (("default", False), ("fronts and a load balancer", True)):
        settings = read(name, tmp_path).settings
        fronts = (settings.ttp, settings.pybroker, settings.rqueue, settings.abtp)
        assert [front is not None for front in fronts] == [there] * 4


def test_options_arrive_as_they_were_written(tmp_path: Path) -> None:
    settings = read("options of the broker", tmp_path).settings
    assert (settings.retention_bytes, settings.retention_age) == (80_000_000_000, 7 * 86400)
    assert [(one.kind.value, one.text) for one in settings.transient] == [
        ("prefix", "live/"),
        ("dots", "metrics.>"),
        ("exact", 'a"b\\c'),
    ]
    assert (settings.keep, settings.max_topics, settings.max_attempts) == (False, 1_000_000, 5)
    assert settings.first_delay == 0.25
    assert settings.direct.tenant_quotas == {"acme": 100, "other.name": 7}
    assert settings.ttp_limits.max_data == 1 << 40
