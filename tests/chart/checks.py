"""What has to hold of everything that the chart renders. Each check gives what it found wrong, in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from tests.chart.names import known_variables
from tests.chart.rendering import Object, Rendered

Check = Callable[[Rendered], Iterator[str]]
ALL: list[Check] = []

#: capabilities that a container may ask for, and the value that makes it so
_MAY_ADD = {"IPC_LOCK": "fileCapability"}


def _check(function: Check) -> Check:
    ALL.append(function)
    return function


def problems(rendered: Rendered) -> list[str]:
    """Everything that any check finds."""
    return [f"{check.__name__}: {text}" for check in ALL for text in check(rendered)]


def _matches(labels: Object, selector: Object) -> bool:
    return bool(selector) and all(labels.get(key) == value for key, value in selector.items())


def _chosen(rendered: Rendered, selector: Object) -> list[tuple[str, Object]]:
    return [
        (name, spec) for name, metadata, spec in rendered.pods() if _matches(metadata["labels"], selector)
    ]


def _ports(spec: Object) -> dict[str, int]:
    return {
        port["name"]: port["containerPort"] for one in spec["containers"] for port in one.get("ports", ())
    }


def _whose(one: Object) -> str:
    return f"{one['kind']}/{one['metadata']['name']}"


# -- what chooses and what is chosen ---------------------------------------------------------------------


@_check
def names_are_fit_and_single(rendered: Rendered) -> Iterator[str]:
    seen: set[str] = set()
    for one in rendered.objects:
        whose = _whose(one)
        if whose in seen:
            yield f"{whose} is there twice"
        seen.add(whose)
        # A StatefulSet's pods get a label with its name and a hash of 11 characters.
        most = 52 if one["kind"] == "StatefulSet" else 63
        if len(one["metadata"]["name"]) > most:
            yield f"{whose} has a name of more than {most} characters"
        if "namespace" in one["metadata"]:
            yield f"{whose} names a namespace: it is the release's"


@_check
def workloads_choose_their_own_pods(rendered: Rendered) -> Iterator[str]:
    for one in rendered.of("StatefulSet", "Deployment"):
        labels, selector = (
            one["spec"]["template"]["metadata"]["labels"],
            one["spec"]["selector"]["matchLabels"],
        )
        if not _matches(labels, selector):
            yield f"{_whose(one)} does not choose its pods"
        others = [name for name, _ in _chosen(rendered, selector) if name != _whose(one)]
        if others:
            yield f"{_whose(one)} chooses those of {others}"
        service = one["spec"].get("serviceName")
        if service is not None:
            found = [two for two in rendered.of("Service") if two["metadata"]["name"] == service]
            if [two["spec"].get("clusterIP") for two in found] != ["None"]:
                yield f"{_whose(one)} has no headless service {service}"
            elif not _matches(labels, found[0]["spec"]["selector"]):
                yield f"{_whose(one)}: its service {service} does not choose its pods"


@_check
def services_reach_ports(rendered: Rendered) -> Iterator[str]:
    for one in rendered.of("Service"):
        pods = _chosen(rendered, one["spec"]["selector"])
        if len(pods) != 1:
            yield f"{_whose(one)} chooses {[name for name, _ in pods]}, not the pods of one workload"
        for port in one["spec"]["ports"]:
            for name, spec in pods:
                if _ports(spec).get(port["targetPort"]) != port["port"]:
                    yield f"{_whose(one)}: {port['name']} does not reach the same port of {name}"


@_check
def policies_let_through_what_services_offer(rendered: Rendered) -> Iterator[str]:
    for one in rendered.of("NetworkPolicy"):
        pods = _chosen(rendered, one["spec"]["podSelector"]["matchLabels"])
        if len(pods) != 1:
            yield f"{_whose(one)} chooses {[name for name, _ in pods]}"
            continue
        let_through = {port["port"] for port in one["spec"]["ingress"][0]["ports"]}
        if let_through != set(_ports(pods[0][1]).values()):
            yield f"{_whose(one)} lets {sorted(let_through)} through, which are not the ports of {pods[0][0]}"
        if any(not rule.get("from") for rule in one["spec"]["ingress"]):
            yield f"{_whose(one)} lets everybody in"
    if rendered.values["networkPolicy"]["enabled"]:
        guarded = {
            name
            for one in rendered.of("NetworkPolicy")
            for name, _ in _chosen(rendered, one["spec"]["podSelector"]["matchLabels"])
        }
        for name, _, spec in rendered.pods():
            if _ports(spec) and name not in guarded:
                yield f"{name} listens, and no policy guards it"


@_check
def budgets_and_spreads_choose_their_pods(rendered: Rendered) -> Iterator[str]:
    for one in rendered.of("PodDisruptionBudget"):
        if len(_chosen(rendered, one["spec"]["selector"]["matchLabels"])) != 1:
            yield f"{_whose(one)} chooses nothing"
    for name, metadata, spec in rendered.pods():
        for spread in spec.get("topologySpreadConstraints", ()):
            if not _matches(metadata["labels"], spread["labelSelector"]["matchLabels"]):
                yield f"{name} is spread among pods that it is none of"
        for term in (spec.get("affinity") or {}).get("podAntiAffinity", {}).values():
            for one in term:
                selector = one.get("podAffinityTerm", one)["labelSelector"]["matchLabels"]
                if not _chosen(rendered, selector):
                    yield f"{name} keeps away from pods that are not there"


@_check
def monitors_choose_one_service_with_that_port(rendered: Rendered) -> Iterator[str]:
    for one in rendered.of("ServiceMonitor"):
        chosen = [
            two
            for two in rendered.of("Service")
            if _matches(two["metadata"]["labels"], one["spec"]["selector"]["matchLabels"])
        ]
        if len(chosen) != 1:
            yield f"{_whose(one)} chooses {[_whose(two) for two in chosen]}: each broker would count so often"
        for two in chosen:
            offered = {port["name"] for port in two["spec"]["ports"]}
            if not {end["port"] for end in one["spec"]["endpoints"]} <= offered:
                yield f"{_whose(one)} reads a port that {_whose(two)} has not"


# -- within a pod ----------------------------------------------------------------------------------------


@_check
def probes_ask_ports_that_are_there(rendered: Rendered) -> Iterator[str]:
    scheme = "HTTP" if rendered.values["security"]["tls"]["mode"] == "off" else "HTTPS"
    for whose, container in rendered.containers(ours=False):
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
        if len(set(ports.values())) != len(ports):
            yield f"{whose} has a port twice"
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            probe = container.get(kind)
            if probe is None:
                if container["name"] == "broker":
                    yield f"{whose} has no {kind}"
                continue
            asked = probe["httpGet"]
            if asked["port"] not in ports:
                yield f"{whose}: {kind} asks {asked['port']}, which is no port of it"
            if asked["path"] not in ("/livez", "/readyz"):
                yield f"{whose}: {kind} asks {asked['path']}"
            if asked["scheme"] != scheme:
                yield f"{whose}: {kind} speaks {asked['scheme']}"


@_check
def mounts_and_volumes_fit(rendered: Rendered) -> Iterator[str]:
    claims = {
        _whose(one): {claim["metadata"]["name"] for claim in one["spec"].get("volumeClaimTemplates", ())}
        for one in rendered.of("StatefulSet")
    }
    for name, _, spec in rendered.pods():
        listed = [volume["name"] for volume in spec.get("volumes", ())]
        there = {*listed, *claims.get(name, ())}
        if len(there) != len(listed) + len(claims.get(name, ())):
            yield f"{name} has a volume twice"
        mounted = set()
        for container in [*spec.get("initContainers", ()), *spec["containers"]]:
            paths = [mount["mountPath"] for mount in container.get("volumeMounts", ())]
            if len(set(paths)) != len(paths):
                yield f"{name}/{container['name']} mounts two volumes at one place"
            mounted |= {mount["name"] for mount in container.get("volumeMounts", ())}
        if mounted != there:
            yield f"{name}: {sorted(mounted ^ there)} is not both a volume and mounted"


@_check
def what_is_referred_to_is_there(rendered: Rendered) -> Iterator[str]:
    security = rendered.values["security"]
    given = {
        security["tls"]["secretName"] if security["tls"]["mode"] == "secret" else "",
        security["tls"]["clientSecretName"],
        security["token"]["secretName"] if security["token"]["mode"] == "secret" else "",
    }
    secrets = {one["metadata"]["name"]: set(one["data"]) for one in rendered.of("Secret")}
    keys = {"tls.crt", "tls.key", "ca.crt"}
    secrets |= {one["spec"]["secretName"]: keys for one in rendered.of("Certificate")}
    secrets |= {name: keys | {security["token"]["key"]} for name in given if name}
    maps = {one["metadata"]["name"] for one in rendered.of("ConfigMap")}
    templates = {one["metadata"]["name"] for one in rendered.of("ResourceClaimTemplate")}
    accounts = {one["metadata"]["name"] for one in rendered.of("ServiceAccount")}
    for name, _, spec in rendered.pods():
        for volume in spec.get("volumes", ()):
            secret = volume.get("secret")
            if secret and secret["secretName"] not in secrets:
                yield f"{name}: nobody makes the secret {secret['secretName']}"
            elif (
                secret
                and not {item["key"] for item in secret.get("items", ())} <= secrets[secret["secretName"]]
            ):
                yield f"{name}: the secret {secret['secretName']} has no such key"
            if secret and secret.get("defaultMode") != 0o440:
                yield f"{name}: the secret {secret['secretName']} may be read by all, or not by the pod"
            if "configMap" in volume and volume["configMap"]["name"] not in maps:
                yield f"{name}: there is no ConfigMap {volume['configMap']['name']}"
        if rendered.values["serviceAccount"]["create"] and spec["serviceAccountName"] not in accounts:
            yield f"{name}: there is no account {spec['serviceAccountName']}"
        claims = {
            claim["name"]: claim["resourceClaimTemplateName"] for claim in spec.get("resourceClaims", ())
        }
        if not set(claims.values()) <= templates:
            yield f"{name}: there is no ResourceClaimTemplate for {claims}"
        used = {
            claim["name"]
            for one in spec["containers"]
            for claim in one.get("resources", {}).get("claims", ())
        }
        if used != set(claims):
            yield f"{name}: {sorted(used ^ set(claims))} is not both claimed and used"
    for one in rendered.of("ServiceMonitor"):
        for end in one["spec"]["endpoints"]:
            for found in _secret_keys(end):
                if found["key"] not in secrets.get(found["name"], set()):
                    yield f"{_whose(one)}: nobody makes {found}"


def _secret_keys(tree: Any) -> Iterator[Object]:
    if isinstance(tree, dict):
        if set(tree) == {"name", "key"}:
            yield tree
        for value in tree.values():
            yield from _secret_keys(value)


@_check
def variables_are_read(rendered: Rendered) -> Iterator[str]:
    known = known_variables()
    for whose, container in rendered.containers():
        names = [one["name"] for one in container.get("env", ())]
        if len(set(names)) != len(names):
            yield f"{whose} has a variable twice"
        for name in names:
            if name not in known:
                yield f"{whose}: nobody reads {name}"
        for one in container.get("env", ()):
            path = str(one.get("value", ""))
            places = [mount["mountPath"] for mount in container["volumeMounts"]]
            if path.startswith("/") and not any(path.startswith(f"{place}/") for place in places):
                yield f"{whose}: {one['name']} names {path}, where nothing is mounted"


# -- what nobody may be ----------------------------------------------------------------------------------


@_check
def no_container_is_privileged(rendered: Rendered) -> Iterator[str]:
    for name, _, spec in rendered.pods():
        security = spec["securityContext"]
        if not security.get("runAsNonRoot") or not security.get("runAsUser") or not security.get("fsGroup"):
            yield f"{name} may be root"
        if security.get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{name} has no seccomp profile"
        if (
            spec.get("automountServiceAccountToken") is not False
            or spec.get("enableServiceLinks") is not False
        ):
            yield f"{name} is given what it does not need of the cluster"
        if spec.get("hostNetwork", False) != rendered.values["hostNetwork"]:
            yield f"{name} uses the node's network, or not, against what was said"
        for word in ("hostPID", "hostIPC"):
            if spec.get(word):
                yield f"{name} has {word}"
        for volume in spec.get("volumes", ()):
            if "hostPath" in volume:
                yield f"{name} mounts a folder of the node"
    memlock = rendered.values["rdma"]["memlock"]
    for whose, container in rendered.containers():
        security = container.get("securityContext", {})
        added = security.get("capabilities", {}).get("add", [])
        if security.get("privileged"):
            yield f"{whose} is privileged"
        if security.get("capabilities", {}).get("drop") != ["ALL"] or not security.get(
            "readOnlyRootFilesystem"
        ):
            yield f"{whose} keeps what it does not need"
        if [one for one in added if _MAY_ADD.get(one) != memlock]:
            yield f"{whose} has {added}, which does nothing here"
        if security.get("allowPrivilegeEscalation") is not bool(added):
            yield f"{whose} may escalate, or has a capability that the kernel ignores"


@_check
def listening_is_said_to_be_allowed(rendered: Rendered) -> Iterator[str]:
    """Either TLS, or the word that it is not wanted; and never both."""
    for whose, container in rendered.containers():
        names = {one["name"] for one in container["env"]}
        tls = {"TRANSFER_TLS_CERT", "TRANSFER_TLS_KEY", "TRANSFER_TLS_CA"} <= names
        if tls == ("TRANSFER_UNAUTHENTICATED" in names):
            yield f"{whose} would not listen, or would without authentication"


@_check
def secrets_stay_in_secrets(rendered: Rendered) -> Iterator[str]:
    hidden = [
        str(value)
        for one in rendered.of("Secret")
        for key, value in one["data"].items()
        if key not in ("tls.crt", "ca.crt")
    ]
    for one in rendered.objects:
        if one["kind"] != "Secret" and any(value in str(one) for value in hidden):
            yield f"{_whose(one)} tells a secret"
    if any(value in rendered.notes for value in hidden):
        yield "the notes tell a secret"


# -- RDMA ------------------------------------------------------------------------------------------------


@_check
def devices_are_where_rdma_is_wished_for(rendered: Rendered) -> Iterator[str]:
    """A pod that wishes for RDMA has a device, and one that has a device wishes for it, and requires it."""
    profile, rdma = rendered.values["profile"], rendered.values["rdma"]
    default = "rdma/hca_shared_devices_a" if profile == "rdma-shared" else ""
    resource = rdma["resourceName"] or default
    policy = rendered.values["transport"]["policy"] or "require"
    for name, metadata, spec in rendered.pods():
        networks = metadata.get("annotations", {}).get("k8s.v1.cni.cncf.io/networks", "")
        for container in spec["containers"]:
            env = {one["name"]: one.get("value") for one in container.get("env", ())}
            has = container.get("resources", {})
            limits, requests = has.get("limits", {}), has.get("requests", {})
            device = (
                limits.get(resource) == rdma["count"] if resource else has.get("claims") == [{"name": "rdma"}]
            )
            if container["name"] in ("beside",):
                continue
            wished = env.get("MC_RPC_PROTOCOL") == "rdma"
            if wished != (device and profile != "tcp"):
                yield f"{name} wishes for RDMA without a device, or has one and does not wish for it"
            if resource and limits.get(resource) != requests.get(resource):
                yield f"{name}: Kubernetes refuses a device whose limit is not its request"
            prefers = rendered.values["transport"]["brokerPolicy"]
            of_broker = container["name"] == "broker" or name.endswith("test-broker")
            if wished and env["MC_RPC_POLICY"] != ((of_broker and prefers) or policy):
                yield f"{name} has the policy {env['MC_RPC_POLICY']}"
            if bool(networks) != bool(wished and rdma["networks"]):
                yield f"{name}: its networks are {networks!r}"
            image = str(container["image"])
            if profile != "tcp" and image.startswith("transfer:") and not image.endswith("-rdma"):
                yield f"{name} runs {image}, which has no RDMA"


# -- the broker ------------------------------------------------------------------------------------------


@_check
def stopping_gives_time_to_drain(rendered: Rendered) -> Iterator[str]:
    for one in rendered.of("StatefulSet"):
        if not one["metadata"]["name"].endswith("-broker"):
            continue
        spec = one["spec"]["template"]["spec"]
        (container,) = (each for each in spec["containers"] if each["name"] == "broker")
        pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
        drain = re.search(
            r'drain_timeout = "(\d+)s"',
            rendered.named("ConfigMap", one["metadata"]["name"])["data"]["broker.toml"],
        )
        if drain is None or spec["terminationGracePeriodSeconds"] < pause + int(drain[1]) + 10:
            yield f"{_whose(one)} is killed before it has drained"
