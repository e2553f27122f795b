"""Everything that the chart renders is what Kubernetes takes, in several versions, and fits together."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
from hypothesis import given, settings, strategies as st
from kubernetes_validate import utils

from tests.chart.checks import ALL, problems
from tests.chart.crds import CRDS
from tests.chart.rendering import CASES, CHART, Object, Rendered, case, render

#: two that have resource.k8s.io/v1, and the oldest that Chart.yaml names
NEW, OLDEST = ("1.34", "1.37"), "1.27"


@pytest.fixture(autouse=True, scope="module")
def _schemas_read_once() -> Any:
    """They are megabytes, and are read for every object."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "schema_contents", functools.cache(utils.schema_contents))
        yield


def validate(one: Object, version: str) -> None:
    if one["kind"] in CRDS:
        jsonschema.Draft202012Validator(CRDS[one["kind"]]).validate(one)
    else:
        kubernetes_validate.validate(one, version, strict=True)


@pytest.mark.parametrize("name", CASES)
def test_kubernetes_takes_it(name: str) -> None:
    rendered = case(name)
    oldest = () if rendered.values["profile"] == "dra" else (OLDEST,)
    for one in rendered.objects:
        for version in (*NEW, *oldest):
            validate(one, version)


@pytest.mark.parametrize("name", CASES)
def test_it_fits_together(name: str) -> None:
    assert problems(case(name)) == []


def test_every_kind_is_looked_at() -> None:
    kinds = {one["kind"] for name in CASES for one in case(name).objects}
    assert kinds == {
        "Certificate", "ConfigMap", "Deployment", "NetworkPolicy", "Pod", "PodDisruptionBudget",
        "PrometheusRule", "ResourceClaimTemplate", "Secret", "Service", "ServiceAccount", "ServiceMonitor",
        "StatefulSet",
    }  # fmt: skip


@st.composite
def mixes(draw: st.DrawFn) -> Object:
    """Values that go together, of all profiles and kinds of security, with and without each part."""
    flag = st.booleans()
    profile = draw(st.sampled_from(["tcp", "rdma-shared", "rdma-sriov", "dra"]))
    rdma: Object = {
        "tcp": {},
        "rdma-shared": {"networks": draw(st.sampled_from([[], ["a/b"]]))},
        "rdma-sriov": {
            "resourceName": "openshift.io/nics",
            "networks": ["a"],
            "count": draw(st.integers(1, 3)),
        },
        "dra": {"deviceClassName": "rdma.example.com"},
    }[profile]
    if profile != "tcp":
        rdma["memlock"] = draw(st.sampled_from(["node", "fileCapability"]))
    mode = draw(st.sampled_from(["generated", "cert-manager", "secret", "off"]))
    token = draw(st.sampled_from(["generated", "off"]))
    clients = draw(st.sampled_from(["certificate", "token"])) if token != "off" else "certificate"
    front = draw(flag) and (clients == "certificate" or mode == "off")
    host = draw(flag) and profile != "tcp" and mode != "off"
    broker = draw(flag)
    return {
        "profile": profile,
        "rdma": rdma,
        "hostNetwork": host,
        "security": {
            "tls": {"mode": mode, "secretName": "mine" if mode == "secret" else "", "clients": clients,
                    "certManager": {"issuer": {"name": "ours"}}},
            "token": {"mode": token},
            "unauthenticated": mode == "off",
        },
        "networkPolicy": {"enabled": not host and draw(flag), "monitoring": [{"podSelector": {}}]},
        "broker": {
            "enabled": broker,
            "rdma": draw(flag),
            "spool": draw(flag),
            "fronts": {draw(st.sampled_from(["ttp", "pybroker", "rqueue", "abtp"])): front},
            "persistence": {"enabled": draw(flag)},
            "topologySpread": {"enabled": draw(flag)},
        },
        "trainers": {"enabled": draw(flag)},
        "tests": {"enabled": draw(flag)},
        "monitoring": {
            "serviceMonitor": {"enabled": broker and draw(flag)},
            "rules": {"enabled": draw(flag)},
            "dashboard": {"enabled": draw(flag)},
        },
        "serviceAccount": {"create": draw(flag), "name": draw(st.sampled_from(["", "theirs"]))},
    }  # fmt: skip


@settings(max_examples=30, deadline=None, derandomize=True)
@given(mixes(), st.sampled_from(["a", "transfer", "a-release-with-the-longest-name-that-helm-allows-it-"]))
def test_any_mix_that_is_allowed_fits_together(values: Object, name: str) -> None:
    rendered = render(values, name=name.rstrip("-"))
    assert problems(rendered) == []
    for one in rendered.objects:
        validate(one, NEW[-1])


#: (template, what stands there, a fault in its place, the check that has to see it, values)
FAULTS = [
    ("broker/service.yaml", 'component" "broker"', 'component" "brokers"', "services_reach_ports", "default"),
    ("broker/service.yaml", "targetPort: {{ $name }}", "targetPort: web", "services_reach_ports", "default"),
    ("broker/statefulset.yaml", "httpGet: {path: /livez, port: http", "httpGet: {path: /livez, port: web",
     "probes_ask_ports_that_are_there", "default"),
    ("broker/statefulset.yaml", "{name: temporary, mountPath: /tmp}", "{name: tmp, mountPath: /tmp}",
     "mounts_and_volumes_fit", "default"),
    ("broker/statefulset.yaml", "{name: {{ $full }}-broker}", "{name: {{ $full }}}",
     "what_is_referred_to_is_there", "default"),
    ("broker/statefulset.yaml", "-headless", "-none", "workloads_choose_their_own_pods", "default"),
    ("broker/statefulset.yaml", "(int $broker.preStopSeconds) (int $broker.drainSeconds) 15",
     "(int $broker.drainSeconds)", "stopping_gives_time_to_drain", "default"),
    ("networkpolicy.yaml", "5591 5592 7590", "5591 7590", "policies_let_through_what_services_offer",
     "default"),
    ("_security.tpl", "TRANSFER_TLS_CERT", "TRANSFER_TLS_CRT", "variables_are_read", "default"),
    ("_security.tpl", "/etc/transfer/tls/tls.key", "/etc/tls/tls.key", "variables_are_read",
     "default"),
    ("_security.tpl", "defaultMode: 0440", "defaultMode: 0444", "what_is_referred_to_is_there", "default"),
    ("_security.tpl", "{name: TRANSFER_UNAUTHENTICATED", "{name: TRANSFER_ENCRYPTED",
     "listening_is_said_to_be_allowed", "nobody is authenticated"),
    ("_pod.tpl", "runAsNonRoot: true\n  seccomp", "seccomp", "no_container_is_privileged", "default"),
    ("_pod.tpl", "  drop: [ALL]", "  drop: [ALL]\n  add: [IPC_LOCK]",
     "no_container_is_privileged", "rdma-shared"),
    ("_pod.tpl", "name: MC_RPC_POLICY, value: {{ .policy }}", "name: MC_RPC_POLICY, value: prefer",
     "devices_are_where_rdma_is_wished_for", "rdma-sriov"),
    ("_pod.tpl", '(eq .root.Values.profile "dra")', "false", "what_is_referred_to_is_there", "dra"),
    ("tests/tests.yaml", '"component" "peer"', '"component" "pear"', "budgets_and_spreads_choose_their_pods",
     "default"),
    ("monitoring/servicemonitor.yaml", 'transfer/metrics: "true"', 'managed-by: "true"',
     "monitors_choose_one_service_with_that_port", "monitored"),
    ("monitoring/servicemonitor.yaml", "key: tls.key", "key: tls.pem", "what_is_referred_to_is_there",
     "monitored"),
    ("security/token-secret.yaml", "kind: Secret", "kind: ConfigMap", "what_is_referred_to_is_there",
     "default"),
    ("broker/poddisruptionbudget.yaml", '"component" "broker"', '"component" "bus"',
     "budgets_and_spreads_choose_their_pods", "default"),
]  # fmt: skip


@pytest.mark.parametrize(("file", "there", "fault", "seen_by", "values"), FAULTS)
def test_a_fault_in_a_template_is_seen(
    tmp_path: Path, file: str, there: str, fault: str, seen_by: str, values: str
) -> None:
    chart = tmp_path / "transfer"
    shutil.copytree(CHART, chart)
    template = chart / "templates" / file
    text = template.read_text()
    assert there in text
    template.write_text(text.replace(there, fault))
    found = {line.partition(":")[0] for line in problems(render(CASES[values], chart=chart))}
    assert seen_by in found, found


def test_pods_are_not_begun_anew_for_another_chart_alone(tmp_path: Path) -> None:
    chart = tmp_path / "transfer"
    shutil.copytree(CHART, chart)
    described = (chart / "Chart.yaml").read_text()
    (chart / "Chart.yaml").write_text(described.replace("\nversion: 0.", "\nversion: 7."))
    for values in (CASES["trainers"], {"broker": {"config": {"retention": {"age": "3d"}}}}):
        before, after = render(CASES["trainers"]), render(values, chart=chart)
        assert after.named("Service", "demo-transfer")["metadata"]["labels"]["helm.sh/chart"][-5:-3] == "7."
        pods = [
            one.named("StatefulSet", "demo-transfer-broker")["spec"]["template"] for one in (before, after)
        ]
        assert (pods[0] == pods[1]) == ("broker" not in values)  # but for another configuration


def test_logs_of_tests_stay_and_their_peer_goes() -> None:
    for one in case("default").objects:
        policy = one["metadata"].get("annotations", {}).get("helm.sh/hook-delete-policy", "")
        if one["kind"] in ("Pod", "Deployment") or one["metadata"]["name"].endswith("peer"):
            assert one["kind"] == "NetworkPolicy" or policy.startswith("before-hook-creation")
            assert one["kind"] == "NetworkPolicy" or ("succeeded" in policy) == (one["kind"] != "Pod")
        else:
            assert not policy
    order = {
        one["metadata"]["name"]: int(one["metadata"]["annotations"]["helm.sh/hook-weight"])
        for one in case("default").of("Pod", "Deployment")
    }
    assert min(order, key=order.__getitem__) == "demo-transfer-peer" and len(set(order.values())) == len(
        order
    )


def test_every_check_is_known_to_see_something() -> None:
    unproven = {check.__name__ for check in ALL} - {one[3] for one in FAULTS}
    assert unproven == {"names_are_fit_and_single", "secrets_stay_in_secrets"}  # the next test


def test_the_other_two_checks_see_faults() -> None:
    good = case("default")
    token = good.named("Secret", "demo-transfer-token")["data"]["token"]
    told = Rendered(good.values, good.objects, f"the token is {token}", good.namespace)
    twice = Rendered(good.values, (*good.objects, good.of("ServiceAccount")[0]), "", good.namespace)
    assert problems(told) == ["secrets_stay_in_secrets: the notes tell a secret"]
    assert any("is there twice" in text for text in problems(twice))
