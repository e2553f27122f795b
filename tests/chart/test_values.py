"""values.yaml is the manual, values.schema.json refuses all else, and Helm has nothing to complain of."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import helm_python
import jsonschema
import pytest
import yaml

from tests.chart.names import OPTIONS
from tests.chart.rendering import CASES, CHART, Values, case, render, schema

DEFAULTS: Values = yaml.safe_load((CHART / "values.yaml").read_text())
#: maps whose keys are the user's
FREE = (
    "annotations",
    "labels",
    "Labels",
    "Annotations",
    "nodeSelector",
    "affinity",
    "requests",
    "limits",
    "config",
)


def test_helm_lints_it_without_a_finding() -> None:
    for values in CASES.values():
        report = helm_python.lint(CHART, values, strict=True, namespace="research")
        assert report["errors"] == []
        assert [one for one in report["messages"] if one["severity"] >= 2] == []


def test_it_is_an_application() -> None:
    with helm_python.Chart.load(CHART) as chart:
        metadata = chart.metadata
    assert "apiVersion" in metadata and metadata["type"] == "application"


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft7Validator.check_schema(schema())
    for text in ("privileged", "hostPID"):
        assert text not in (CHART / "values.yaml").read_text().replace("never privileged", "")


def objects(tree: Values, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all maps with keys of the chart's."""
    if not (path and path[-1].endswith(FREE)):
        yield path
        for key, value in tree.items():
            if isinstance(value, dict):
                yield from objects(value, (*path, key))


def within(path: tuple[str, ...], leaf: Values) -> Values:
    for key in reversed(path):
        leaf = {key: leaf}
    return leaf


@pytest.mark.parametrize("path", list(objects(DEFAULTS)), ids=".".join)
def test_a_key_that_is_not_known_is_refused(path: tuple[str, ...]) -> None:
    with helm_python.Chart.load(CHART) as chart:
        with pytest.raises(
            helm_python.HelmValuesError, match="additional properties 'unheard_of' not allowed"
        ):
            chart.validate_schema(within(path, {"unheard_of": True}))


def same_keys(values: Any, described: Any, path: str = "") -> Iterator[str]:
    """Where the manual and the schema do not name the same values."""
    if "properties" not in described or path.endswith("config"):
        return
    for key in values.keys() ^ described["properties"].keys() - {"global"}:
        yield f"{path}.{key}"
    for key in values.keys() & described["properties"].keys():
        inner = described["properties"][key]
        inner = schema()["definitions"][inner["$ref"].rsplit("/", 1)[1]] if "$ref" in inner else inner
        if isinstance(values[key], dict):
            yield from same_keys(values[key], inner, f"{path}.{key}")


def test_the_manual_and_the_schema_name_the_same_values() -> None:
    wrong = [path for path in same_keys(DEFAULTS, schema()) if not path.endswith((".requests", ".limits"))]
    assert wrong == []


def test_every_value_is_read_by_a_template() -> None:
    """By its name: a value that no template names does nothing."""
    text = "".join(path.read_text() for path in (CHART / "templates").rglob("*") if path.is_file())
    named = {key for path in objects(DEFAULTS) for key in _at(path)}
    unread = {key for key in named if not re.search(rf"\.{key}\b|\"{key}\"", text)}
    # What is handed on as it is: toYaml of the map around it.
    assert unread == {"periodSeconds", "failureThreshold", "kind"}


def _at(path: tuple[str, ...]) -> list[str]:
    found: Any = DEFAULTS
    for key in path:
        found = found[key]
    return list(found)


def test_options_of_the_broker_are_those_that_it_has() -> None:
    """All but what the chart says itself: where things listen and lie, and security."""
    described = {
        f"{section}.{key}"
        for section, keys in schema()["properties"]["broker"]["properties"]["config"]["properties"].items()
        for key in keys["properties"]
    }
    own = {"native.requests", "native.pushes", "native.subscriptions", "native.queues"}
    own |= {"ttp.port", "pybroker.port", "rqueue.port", "abtp.router", "abtp.pub"}
    sections = ("broker.", "http.", "spool.", "security.")
    wanted = {one.name for one in OPTIONS if not one.name.startswith(sections)} - own
    assert described == wanted, "values.schema.json: broker.config has one property for each option"


TLS_OFF = {"tls": {"mode": "off"}, "unauthenticated": True}
#: what does not go together, and words of the refusal
REFUSED: list[tuple[str, Values, str]] = [
    ("no such profile", {"profile": "infiniband"}, "profile"),
    ("RDMA without its profile", {"rdma": {"resourceName": "rdma/a"}}, "rdma/resourceName"),
    ("networks without RDMA", {"rdma": {"networks": ["a"]}}, "rdma/networks"),
    ("a policy without RDMA", {"transport": {"policy": "require"}}, "transport/policy"),
    ("SR-IOV without a resource", {"profile": "rdma-sriov", "rdma": {"networks": ["a"]}},
     "rdma/resourceName"),
    ("SR-IOV without a network", {"profile": "rdma-sriov", "rdma": {"resourceName": "a/b"}}, "rdma/networks"),
    ("a claim of no class", {"profile": "dra"}, "rdma/deviceClassName"),
    ("a claim and a resource", {"profile": "dra", "rdma": {"deviceClassName": "a", "resourceName": "a/b"}},
     "rdma/resourceName"),
    ("a shared device by claim", {"profile": "rdma-shared", "rdma": {"deviceClassName": "a"}},
     "deviceClassName"),
    ("a policy that is none", {"profile": "rdma-shared", "transport": {"policy": "must"}},
     "transport/policy"),
    ("a strange MTU", {"profile": "rdma-shared", "rdma": {"mtu": 1500}}, "rdma/mtu"),
    ("RDMA switched off by encryption", {"profile": "rdma-shared", "security": {"encrypt": "all"}},
     "profile"),
    ("no TLS by the way", {"security": {"tls": {"mode": "off"}}}, "unauthenticated"),
    ("authenticated and not", {"security": {"unauthenticated": True}}, "security/tls/mode"),
    ("a secret without a name", {"security": {"tls": {"mode": "secret"}}}, "secretName"),
    ("a token without a name", {"security": {"token": {"mode": "secret"}}}, "secretName"),
    ("no issuer", {"security": {"tls": {"mode": "cert-manager"}}}, "issuer/name"),
    ("neither certificate nor token", {"security": {"tls": {"clients": "token"}, "token": {"mode": "off"}}},
     "token/mode"),
    ("a front that knows no token",
     {"security": {"tls": {"clients": "token"}}, "broker": {"fronts": {"ttp": True}}},
     "tls/clients"),
    ("the node's network with a policy", {"profile": "rdma-shared", "hostNetwork": True},
     "networkPolicy/enabled"),
    ("the node's network without RDMA", {"hostNetwork": True, "networkPolicy": {"enabled": False}},
     "profile"),
    ("the node's network for everybody",
     {"profile": "rdma-shared", "hostNetwork": True, "networkPolicy": {"enabled": False},
      "security": TLS_OFF},
     "unauthenticated"),
    ("a monitor that is kept out", {"monitoring": {"serviceMonitor": {"enabled": True}}}, "monitoring"),
    ("a monitor of nothing",
     {"broker": {"enabled": False}, "networkPolicy": {"enabled": False},
      "monitoring": {"serviceMonitor": {"enabled": True}}}, "broker/enabled"),
    ("a class without a load balancer", {"broker": {"service": {"loadBalancerClass": "a"}}}, "service/type"),
    ("root", {"podSecurityContext": {"runAsUser": 0}}, "runAsUser"),
    ("a privileged one beside",
     {"broker": {"extraContainers": [{"name": "a", "image": "b", "securityContext": {"privileged": True}}]}},
     "privileged"),
    ("a privileged one before",
     {"trainers": {"extraInitContainers": [{"name": "a", "image": "b",
      "securityContext": {"privileged": True}}]}},
     "privileged"),
    ("root beside",
     {"broker": {"extraContainers": [{"name": "a", "image": "b", "securityContext": {"runAsUser": 0}}]}},
     "runAsUser"),
    ("an option that the broker has not", {"broker": {"config": {"retention": {"byte": 1}}}}, "byte"),
    ("a section that it has not", {"broker": {"config": {"retain": {}}}}, "retain"),
    ("what the chart itself says", {"broker": {"config": {"http": {"port": 1}}}}, "http"),
    ("a variable without a name", {"broker": {"extraEnv": [{"value": "a"}]}}, "name"),
    ("a digest that is none", {"image": {"digest": "sha256:12"}}, "image/digest"),
    ("a number as a text", {"broker": {"replicas": "two"}}, "replicas"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "words"), [one[1:] for one in REFUSED], ids=[one[0] for one in REFUSED])
def test_what_does_not_go_together_is_refused(values: Values, words: str) -> None:
    with pytest.raises(helm_python.HelmValuesError) as caught:
        render(values)
    assert words in str(caught.value)


def test_every_rule_of_the_schema_refuses_something() -> None:
    """Each rule is left out once: something of the table above is then taken."""
    merged = {name: _merged(values) for name, values, _ in REFUSED}
    whole = jsonschema.Draft7Validator(schema())
    assert not [name for name, values in merged.items() if whole.is_valid(values)]
    for number, rule in enumerate(schema()["allOf"]):
        rest = [one for index, one in enumerate(schema()["allOf"]) if index != number]
        weaker = jsonschema.Draft7Validator({**schema(), "allOf": rest})
        assert any(weaker.is_valid(values) for values in merged.values()), rule["$comment"]


def _merged(values: Values) -> Values:
    with helm_python.Chart.load(CHART) as chart:
        found: Values = json.loads(json.dumps(chart.merge_values(values)))
    return found


def test_kubernetes_without_claims_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    """Helm's linter knows of versions, and writes what a template fails with to its standard error."""
    for version, told in (("1.33.4", True), ("1.34.0", False)):
        helm_python.lint(CHART, CASES["dra"], strict=True, kube_version=version)
        assert ("the profile dra needs Kubernetes 1.34" in capfd.readouterr().err) == told


@pytest.mark.parametrize(
    "name", ["default", "nothing kept", "nobody is authenticated", "options of the broker"]
)
def test_the_notes_say_how_to_see_the_transport(name: str) -> None:
    notes, values = case(name).notes, case(name).values
    for words in (
        "helm test demo --namespace research",
        "transfer doctor",
        "transfer_fallback_total",
        "peers()",
    ):
        assert words in notes
    assert ("without persistence" in notes) == (not values["broker"]["persistence"]["enabled"])
    assert ("no TLS" in notes) == (values["security"]["tls"]["mode"] == "off")
    assert ("each with separate messages" in notes) == (values["broker"]["replicas"] > 1)
    assert "fails where data would go by TCP" in case("rdma-shared").notes


def test_the_notes_name_no_broker_where_there_is_none() -> None:
    notes = render({"broker": {"enabled": False, "persistence": {"enabled": False}}}).notes
    assert "broker-0" not in notes and "without persistence" not in notes
    assert "POD -- transfer doctor" in notes
