"""The chart, rendered offline by the real Helm, and the values that its tests render it with."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import helm_python
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/transfer"
Object = dict[str, Any]
Values = dict[str, Any]

_SRIOV: Values = {"resourceName": "nvidia.com/mlnxnics", "networks": ["infiniband/sriov"]}
_HOOKS: Values = {
    "extraEnv": [{"name": "TRANSFER_EXIT_LINGER", "value": "5"}],
    "extraVolumes": [{"name": "more", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
    "extraContainers": [{"name": "beside", "image": "beside:1"}],
    "extraInitContainers": [{"name": "before", "image": "before:1"}],
    "podLabels": {"team": "research"},
    "podAnnotations": {"note": "1"},
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {"podAntiAffinity": {}},
    "priorityClassName": "high",
}
_MONITORING: Values = {
    "monitoring": {
        "serviceMonitor": {"enabled": True},
        "rules": {"enabled": True},
        "dashboard": {"enabled": True},
    },
    "networkPolicy": {"monitoring": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]},
}
#: what is rendered and checked, by name
CASES: dict[str, Values] = {
    "default": {},
    "trainers": {"trainers": {"enabled": True}},
    "IPv6": {"listen": "[::]", "trainers": {"enabled": True}, "broker": {"fronts": {"abtp": True}}},
    "rdma-shared": {"profile": "rdma-shared", "trainers": {"enabled": True}},
    "rdma-shared on RoCE": {
        "profile": "rdma-shared",
        "rdma": {
            "resourceName": "rdma/hca_b", "count": 2, "networks": ["a/b", "c"], "devices": "mlx5_0",
            "port": 1, "gidIndex": 0, "mtu": 4096, "memlock": "fileCapability",
        },
        "trainers": {"enabled": True},
    },
    "rdma-sriov": {"profile": "rdma-sriov", "rdma": _SRIOV, "trainers": {"enabled": True}},
    "rdma-sriov, the broker prefers": {
        "profile": "rdma-sriov",
        "rdma": _SRIOV,
        "transport": {"brokerPolicy": "prefer"},
        "tests": {"acrossNodes": True, "minGbps": 80},
    },
    "dra": {
        "profile": "dra",
        "rdma": {"deviceClassName": "dranet", "deviceSelectors": ['device.attributes["a"].rdma == true']},
        "trainers": {"enabled": True},
    },
    "the node's network": {
        "profile": "rdma-shared",
        "hostNetwork": True,
        "networkPolicy": {"enabled": False},
        "trainers": {"enabled": True},
    },
    "monitored": _MONITORING,
    "fronts and a load balancer": {
        "broker": {
            "fronts": {"ttp": True, "pybroker": True, "rqueue": True, "abtp": True},
            "service": {
                "type": "LoadBalancer", "loadBalancerClass": "internal", "annotations": {"a": "b"},
                "loadBalancerSourceRanges": ["10.0.0.0/8"],
            },
            "spool": False,
        },
        "security": {"tls": {"extraNames": ["broker.example.com"], "extraAddresses": ["192.0.2.7"]}},
    },
    "all hooks": {
        "broker": {**_HOOKS, "extraArgs": ["--set", "ttp.idle_timeout=2m"]},
        "trainers": {**_HOOKS, "enabled": True, "image": "mine:1", "command": ["train"], "args": ["--fast"]},
        "image": {"pullSecrets": ["registry"], "digest": f"sha256:{'0' * 64}"},
        "commonLabels": {"owner": "us"},
        "serviceAccount": {"annotations": {"a": "b"}},
        "podSecurityContext": {"supplementalGroups": [44]},
        "tests": {"nodeSelector": {"disk": "fast"}, "tolerations": [{"operator": "Exists"}]},
    },
    "options of the broker": {
        "broker": {
            "replicas": 3,
            "config": {
                "retention": {"bytes": "80GB", "age": "7d"},
                "topics": {
                    "transient": ["prefix:live/", "dots:metrics.>", 'exact:a"b\\c'], "keep": False,
                    "max_topics": 1000000,
                },
                "delivery": {"max_attempts": 5, "first_delay": 0.25},
                "direct": {"tenant_quotas": {"acme": 100, "other.name": 7}},
                "ttp": {"max_data": 1099511627776},
            },
        }
    },
    "cert-manager": {
        **_MONITORING,
        "security": {
            "tls": {
                "mode": "cert-manager",
                "certManager": {"issuer": {"name": "cluster", "kind": "ClusterIssuer"}},
                "extraAddresses": ["192.0.2.7"],
            }
        },
    },
    "secrets of one's own": {
        **_MONITORING,
        "security": {
            "tls": {
                "mode": "secret", "secretName": "mine", "clientSecretName": "theirs", "serverName": "a.b",
            },
            "token": {"mode": "secret", "secretName": "shared", "key": "word"},
        },
        "trainers": {"enabled": True},
    },
    "clients with a token": {"security": {"tls": {"clients": "token"}}},
    "no token": {**_MONITORING, "security": {"token": {"mode": "off"}}},
    "nobody is authenticated": {
        **_MONITORING,
        "security": {"tls": {"mode": "off"}, "token": {"mode": "off"}, "unauthenticated": True},
        "broker": {"fronts": {"ttp": True}},
        "trainers": {"enabled": True},
    },
    "trainers alone": {"broker": {"enabled": False}, "trainers": {"enabled": True}},
    "nothing kept": {"broker": {"persistence": {"enabled": False}}, "tests": {"enabled": False}},
    "another name": {
        "fullnameOverride": "a-name-that-is-as-long-as-names-may-be-here-at-all",
        "serviceAccount": {"create": False, "name": "theirs"},
        "networkPolicy": {"enabled": False},
    },
}  # fmt: skip


@dataclass(frozen=True)
class Rendered:
    """All objects of one render, hooks too, and the notes."""

    values: Values
    objects: tuple[Object, ...]
    notes: str
    namespace: str

    def of(self, *kinds: str) -> list[Object]:
        return [one for one in self.objects if one["kind"] in kinds]

    def named(self, kind: str, name: str) -> Object:
        (found,) = (one for one in self.of(kind) if one["metadata"]["name"] == name)
        return found

    def pods(self) -> Iterator[tuple[str, Object, Object]]:
        """(whose, metadata, spec) of every pod that comes of it."""
        for one in self.objects:
            name = f"{one['kind']}/{one['metadata']['name']}"
            if one["kind"] == "Pod":
                yield name, one["metadata"], one["spec"]
            elif one["kind"] in ("StatefulSet", "Deployment"):
                yield name, one["spec"]["template"]["metadata"], one["spec"]["template"]["spec"]

    def containers(self, *, ours: bool = True) -> Iterator[tuple[str, Object]]:
        """(whose, container). ours: without those that the user adds."""
        for name, _, spec in self.pods():
            for container in [*spec.get("initContainers", ()), *spec["containers"]]:
                if not ours or container["name"] not in ("beside", "before"):
                    yield f"{name}/{container['name']}", container


class _NoDoubles(yaml.SafeLoader):
    """A key that stands twice is an error, as it is for Kubernetes."""


def _mapping(loader: _NoDoubles, node: yaml.MappingNode) -> Object:
    keys = [loader.construct_object(key) for key, _ in node.value]
    assert len(keys) == len(set(keys)), f"{node.start_mark}: a key stands twice"
    found: Object = loader.construct_mapping(node, deep=True)
    return found


_NoDoubles.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def render(
    values: Mapping[str, Any], *, chart: Path = CHART, name: str = "demo", namespace: str = "research"
) -> Rendered:
    """Raises HelmValuesError for values that the chart refuses."""
    with helm_python.Chart.load(chart) as loaded:
        texts = loaded.render(dict(values), name=name, namespace=namespace)
        merged = loaded.merge_values(dict(values))
    notes = next(text for path, text in texts.items() if path.endswith("NOTES.txt"))
    objects = [
        one
        for path, text in texts.items()
        if path.endswith(".yaml")
        for one in yaml.load_all(text, Loader=_NoDoubles)
        if one
    ]
    return Rendered(merged, tuple(objects), notes, namespace)


@functools.cache
def case(name: str) -> Rendered:
    return render(CASES[name])


@functools.cache
def schema() -> Object:
    found: Object = json.loads((CHART / "values.schema.json").read_text())
    return found
