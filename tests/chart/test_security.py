"""The secrets that the chart makes: certificates that Python's own TLS takes, for all names in use."""

from __future__ import annotations

import base64
import ssl
from pathlib import Path

import pytest

from tests.chart.rendering import CASES, Values, case, render


def files(secret: Values, folder: Path) -> dict[str, Path]:
    """The secret as a pod sees it."""
    folder.mkdir()
    for key, value in secret["data"].items():
        (folder / key).write_bytes(base64.b64decode(value))
    return {key: folder / key for key in secret["data"]}


def contexts(server: dict[str, Path], client: dict[str, Path]) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Mutual TLS 1.3, as strict as Python can be."""
    listening, connecting = (
        ssl.SSLContext(one) for one in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)
    )
    for context, pem in ((listening, server), (connecting, client)):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(pem["tls.crt"], pem["tls.key"])
        context.load_verify_locations(pem["ca.crt"])
    return listening, connecting


def meet(listening: ssl.SSLContext, connecting: ssl.SSLContext, name: str) -> None:
    """A handshake in memory. Raises SSLError."""
    ways = [ssl.MemoryBIO(), ssl.MemoryBIO()]
    client = connecting.wrap_bio(ways[0], ways[1], server_hostname=name)
    server = listening.wrap_bio(ways[1], ways[0], server_side=True)
    done: set[ssl.SSLObject] = set()
    for _ in range(8):
        for side in (client, server):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                continue
    assert len(done) == 2 and client.version() == "TLSv1.3"


@pytest.fixture
def made(tmp_path: Path) -> dict[str, Path]:
    return files(case("fronts and a load balancer").named("Secret", "demo-transfer-tls"), tmp_path / "made")


@pytest.mark.parametrize(
    "name",
    [
        "demo-transfer.internal",
        "localhost",
        "demo-transfer",
        "demo-transfer.research.svc.cluster.local",
        "demo-transfer-broker-0.demo-transfer-headless.research.svc",
        "demo-transfer-trainers.research",
        "demo-transfer-trainers-1.demo-transfer-trainers.research.svc.cluster.local",
        "demo-transfer-peer",
        "broker.example.com",
        "192.0.2.7",
        "127.0.0.1",
    ],
)
def test_the_generated_certificate_is_good_for_both_ends_and_all_names(
    made: dict[str, Path], name: str
) -> None:
    meet(*contexts(made, made), name)


def test_it_is_good_for_no_other_name(made: dict[str, Path]) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        meet(*contexts(made, made), "demo-transfer.elsewhere.svc")


def test_another_release_is_not_trusted(made: dict[str, Path], tmp_path: Path) -> None:
    other = files(render({}, name="other").named("Secret", "other-transfer-tls"), tmp_path / "other")
    with pytest.raises(ssl.SSLError):
        meet(*contexts(made, other), "demo-transfer.internal")


def test_each_render_without_a_cluster_makes_new_secrets() -> None:
    """As values.yaml and docs/deploy.md say: Helm cannot look up what is there."""
    first, second = (render({}).of("Secret") for _ in range(2))
    assert len(first) == 2
    for one, other in zip(first, second, strict=True):
        assert set(one["data"].values()).isdisjoint(other["data"].values())
    token = next(base64.b64decode(one["data"]["token"]) for one in first if "token" in one["data"])
    assert len(token) == 48 and token.isalnum()


@pytest.mark.parametrize("name", CASES)
def test_secrets_are_made_only_where_nobody_brings_them(name: str) -> None:
    rendered = case(name)
    security = rendered.values["security"]
    made = {key for one in rendered.of("Secret") for key in one["data"]}
    tls, token = security["tls"]["mode"] == "generated", security["token"]["mode"] == "generated"
    assert made == ({"tls.crt", "tls.key", "ca.crt"} if tls else set()) | ({"token"} if token else set())
    assert bool(rendered.of("Certificate")) == (security["tls"]["mode"] == "cert-manager")


def test_cert_manager_is_asked_for_the_names_that_helm_would_write() -> None:
    (certificate,) = case("cert-manager").of("Certificate")
    assert certificate["spec"]["commonName"] == "demo-transfer.internal"
    assert {"demo-transfer.internal", "*.demo-transfer-headless.research.svc"} <= set(
        certificate["spec"]["dnsNames"]
    )
    assert certificate["spec"]["ipAddresses"] == ["127.0.0.1", "192.0.2.7"]
    assert {"server auth", "client auth"} <= set(certificate["spec"]["usages"])


def test_clients_may_show_another_certificate_than_the_broker() -> None:
    mounted = {}
    for name, _, spec in case("secrets of one's own").pods():
        volumes = {one["name"]: one["secret"]["secretName"] for one in spec["volumes"] if "secret" in one}
        mounted[name.rpartition("-")[2]] = (volumes["tls"], volumes["token"])
    assert mounted["broker"] == ("theirs", "shared")  # the pod of `helm test`, last
    assert mounted["trainers"] == mounted["peer"] == mounted["doctor"] == ("theirs", "shared")
    (broker,) = (
        spec for name, _, spec in case("secrets of one's own").pods() if name.endswith("transfer-broker")
    )
    assert [one["secret"]["secretName"] for one in broker["volumes"] if one["name"] == "tls"] == ["mine"]


def test_each_way_of_clients_to_show_who_they_are_reaches_the_pods() -> None:
    for name, clients in (("default", "certificate"), ("clients with a token", "token")):
        for whose, container in case(name).containers():
            told = {one["name"]: one.get("value") for one in container["env"]}
            assert told["TRANSFER_TLS_CLIENTS"] == clients, whose
            assert told["TRANSFER_TLS_SERVER_NAME"] == "demo-transfer.internal"
