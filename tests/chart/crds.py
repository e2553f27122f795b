"""What custom resources look like, as far as the chart uses them; each field that is not here is an error."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
_TEXT: Schema = {"type": "string", "minLength": 1}
_TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
_TIME: Schema = {"type": "string", "pattern": r"^([0-9]+(ms|s|m|h))+$"}


def _object(required: tuple[str, ...] = (), **fields: Schema) -> Schema:
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": fields}


def _list(item: Schema, least: int = 1) -> Schema:
    return {"type": "array", "minItems": least, "items": item}


def _resource(api: str, kind: str, spec: Schema) -> Schema:
    metadata = _object(("name", "labels"), name=_TEXT, labels=_TEXTS, annotations=_TEXTS)
    return _object(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": api},
        kind={"const": kind},
        metadata=metadata,
        spec=spec,
    )


_KEY = _object(("name", "key"), name=_TEXT, key=_TEXT)
_SECRET = _object(("secret",), secret=_KEY)

CRDS: dict[str, Schema] = {
    "ServiceMonitor": _resource(
        "monitoring.coreos.com/v1",
        "ServiceMonitor",
        _object(
            ("selector", "endpoints"),
            selector=_object(("matchLabels",), matchLabels=_TEXTS),
            namespaceSelector=_object(("matchNames",), matchNames=_list(_TEXT)),
            endpoints=_list(
                _object(
                    ("port", "path", "scheme"),
                    port=_TEXT,
                    path={"const": "/metrics"},
                    interval=_TIME,
                    scrapeTimeout=_TIME,
                    scheme={"enum": ["http", "https"]},
                    tlsConfig=_object(
                        ("serverName", "ca"), serverName=_TEXT, ca=_SECRET, cert=_SECRET, keySecret=_KEY
                    ),
                    authorization=_object(("credentials",), type={"const": "Bearer"}, credentials=_KEY),
                )
            ),
        ),
    ),
    "PrometheusRule": _resource(
        "monitoring.coreos.com/v1",
        "PrometheusRule",
        _object(
            ("groups",),
            groups=_list(
                _object(
                    ("name", "rules"),
                    name=_TEXT,
                    rules=_list(
                        _object(
                            ("alert", "expr", "labels", "annotations"),
                            alert={"type": "string", "pattern": "^[A-Z][A-Za-z]+$"},
                            expr=_TEXT,
                            labels=_object(("severity",), severity={"enum": ["warning", "critical"]}),
                            annotations=_object(("summary", "description"), summary=_TEXT, description=_TEXT),
                            **{"for": _TIME},
                        )
                    ),
                )
            ),
        ),
    ),
    "Certificate": _resource(
        "cert-manager.io/v1",
        "Certificate",
        _object(
            ("secretName", "issuerRef", "dnsNames"),
            secretName=_TEXT,
            commonName={"type": "string", "maxLength": 64},
            dnsNames=_list(_TEXT),
            ipAddresses=_list(_TEXT),
            duration=_TIME,
            renewBefore=_TIME,
            privateKey=_object(
                algorithm={"enum": ["RSA", "ECDSA", "Ed25519"]},
                size={"type": "integer"},
                rotationPolicy={"enum": ["Always", "Never"]},
            ),
            usages=_list({"enum": ["digital signature", "key encipherment", "server auth", "client auth"]}),
            issuerRef=_object(("name",), name=_TEXT, kind=_TEXT, group=_TEXT),
        ),
    ),
}
