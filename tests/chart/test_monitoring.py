"""Alerts and the dashboard ask for metrics that exist, by labels that they have; every expression parses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import promql_parser
import pytest

from tests.chart.names import TARGET_LABELS, known_metrics
from tests.chart.rendering import Object, case

#: what Grafana puts into the place of its own words
_GRAFANA = {"$__rate_interval": "5m", "$namespace": "research", "$pod": ".*"}


def rules(name: str = "monitored") -> list[Object]:
    (found,) = case(name).of("PrometheusRule")
    return [rule for group in found["spec"]["groups"] for rule in group["rules"]]


def dashboard() -> Object:
    (found,) = (one for one in case("monitored").of("ConfigMap") if "transfer.json" in one["data"])
    board: Object = json.loads(found["data"]["transfer.json"])
    return board


def panels() -> list[Object]:
    return [one for one in dashboard()["panels"] if one["type"] != "row"]


def _without_grafana(expression: str) -> str:
    for word, text in _GRAFANA.items():
        expression = expression.replace(word, text)
    return expression


def asked(expression: str) -> Iterator[tuple[str, set[str]]]:
    """(metric, labels it is chosen by) of each selector; labels of groupings under the name ""."""
    found: list[tuple[str, set[str]]] = []

    def visit(node: Any) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append((node.name or "", {matcher.name for matcher in node.matchers.matchers}))
        if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
            found.append(("", set(node.modifier.labels)))

    promql_parser.walk(promql_parser.parse(expression), visit)
    yield from found


def wrong(expression: str) -> list[str]:
    """Metrics and labels that nobody has."""
    metrics, problems = known_metrics(), []
    selectors = list(asked(expression))
    together = {label for name, _ in selectors for label in metrics.get(name, ())} | TARGET_LABELS
    for name, labels in selectors:
        if name and name not in metrics:
            problems.append(name)
        having = metrics.get(name, frozenset()) | TARGET_LABELS if name else together
        problems += [f"{name}:{label}" for label in sorted(labels - having)]
    return problems


def expressions() -> list[str]:
    shown = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [rule["expr"] for rule in rules()] + [_without_grafana(text) for text in shown]


@pytest.mark.parametrize("expression", expressions())
def test_an_expression_asks_for_what_there_is(expression: str) -> None:
    assert wrong(expression) == []
    assert any(name for name, _ in asked(expression))


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("rate(transfer_fallbacks_total[5m])", "transfer_fallbacks_total"),
        ('transfer_peers{transports="tcp"}', "transfer_peers:transports"),
        ("sum by (grp) (transfer_broker_group_lag_messages)", ":grp"),
        ("transfer_request_seconds > 1", "transfer_request_seconds"),
    ],
)
def test_a_typing_error_is_seen(expression: str, problem: str) -> None:
    assert wrong(expression) == [problem]


def test_words_of_events_and_reasons_exist() -> None:
    from transfer.broker.status import EVENTS

    for expression in expressions():
        for words in re.findall(r'event=~?"([^"]+)"', expression):
            assert set(words.split("|")) <= set(EVENTS), expression


def test_what_has_to_be_told_is_told() -> None:
    metrics = {rule["alert"]: {name for name, _ in asked(rule["expr"]) if name} for rule in rules()}
    everything = set().union(*metrics.values())
    assert len(metrics) == len(rules())  # no name twice
    for name in (
        "transfer_fallback_total", "transfer_drops_total", "transfer_broker_group_lag_messages",
        "transfer_broker_dead_letters", "transfer_broker_log_full", "kubelet_volume_stats_available_bytes",
        "transfer_broker_loop_late_seconds", "up", "transfer_broker_ready",
    ):  # fmt: skip
        assert name in everything


def test_a_counter_that_begins_at_one_is_seen() -> None:
    """increase() of a series that was not there before is nothing."""
    for name in ("TransferFellBack", "TransferDropped", "TransferUnconfirmed"):
        (rule,) = (one for one in rules() if one["alert"] == name)
        assert "unless" in rule["expr"] and "offset" in rule["expr"]


def test_alerts_are_of_this_release_alone() -> None:
    rendered = case("monitored")
    (monitor,) = rendered.of("ServiceMonitor")
    chosen = [
        one["metadata"]["name"]
        for one in rendered.of("Service")
        if monitor["spec"]["selector"]["matchLabels"].items() <= one["metadata"]["labels"].items()
    ]
    claims = [
        f"{claim['metadata']['name']}-{one['metadata']['name']}-0"
        for one in rendered.of("StatefulSet")
        for claim in one["spec"].get("volumeClaimTemplates", ())
    ]
    for rule in rules():
        assert f'namespace="{rendered.namespace}"' in rule["expr"]
        for job in re.findall(r'job="([^"]+)"', rule["expr"]):
            assert [job] == chosen
        for pattern in re.findall(r'persistentvolumeclaim=~"([^"]+)"', rule["expr"]):
            assert all(re.fullmatch(pattern, claim) for claim in claims)


def test_what_alerts_say_of_labels_they_have() -> None:
    """A label in a text that the expression does not leave is an empty place."""
    for rule in rules():
        said = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["description"]))
        labels = set[str]()
        for name, _ in asked(rule["expr"]):
            labels |= known_metrics().get(name, frozenset())
        kept = [set(labels) for name, labels in asked(rule["expr"]) if not name]
        assert said <= (kept[0] if kept else labels | TARGET_LABELS), rule["alert"]


def test_without_a_broker_nobody_misses_it() -> None:
    from tests.chart.rendering import render

    values = {"broker": {"enabled": False}, "monitoring": {"rules": {"enabled": True}}}
    (found,) = render(values).of("PrometheusRule")
    assert "transfer_broker" not in str(found) and "TransferBrokerDown" not in str(found)


# -- the dashboard ---------------------------------------------------------------------------------------


def test_panels_have_numbers_of_their_own_and_the_chosen_source() -> None:
    board = dashboard()
    numbers = [one["id"] for one in board["panels"]]
    assert len(set(numbers)) == len(numbers) > 15
    for panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        for target in panel["targets"]:
            left = set().union(
                *(known_metrics()[name] for name, _ in asked(_without_grafana(target["expr"])) if name)
            )
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= left | TARGET_LABELS


def test_panels_do_not_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells


def test_variables_that_panels_use_are_there_and_ask_for_what_there_is() -> None:
    board = dashboard()
    variables = {one["name"]: one for one in board["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(board)))
    assert used <= set(variables)
    for one in variables.values():
        if one["type"] == "query":
            match = re.fullmatch(r"label_values\((.+), (\w+)\)", one["query"]["query"])
            assert match is not None
            assert wrong(_without_grafana(match[1])) == []
            assert match[2] in TARGET_LABELS
