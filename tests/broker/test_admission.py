"""Each limit refuses under its own name, and what goes makes room again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from transfer.broker.engine.admission import Admission, Limit, Limits, Outcome
from transports.errors import OptionError


def test_defaults():
    limits = Limits()
    assert limits.max_inflight_per_consumer == 1024
    assert limits.max_per_topic_queue == 256
    assert limits.max_queued_direct == 4096
    assert limits.max_global_ingress == 8192


@pytest.mark.parametrize(
    ("limits", "limit", "outcome"),
    [
        ({"max_global_ingress": 2}, Limit.GLOBAL_INGRESS, Outcome.THROTTLED),
        ({"tenant_quota": 2}, Limit.TENANT, Outcome.THROTTLED),
        ({"tenant_quotas": {"a": 2}}, Limit.TENANT, Outcome.THROTTLED),
        ({"max_queued_direct": 2}, Limit.QUEUED_DIRECT, Outcome.DROPPED),
        ({"max_per_topic_queue": 2}, Limit.TOPIC_QUEUE, Outcome.DROPPED),
    ],
)
def test_each_limit_has_its_name(limits, limit, outcome):
    admission = Admission(Limits(**limits))
    for _ in range(2):
        assert admission.refuses("a", "c", "t") is None
        admission.began("a")
        admission.waits("a", "c", "t")
    assert admission.refuses("a", "c", "t") is limit
    assert admission.counts == {outcome: 1}
    assert admission.reached == {limit: 1}
    admission.waited("a", "c", "t")
    admission.finished("a")
    assert admission.refuses("a", "c", "t") is None


def test_others_are_not_refused():
    admission = Admission(Limits(max_per_topic_queue=1, tenant_quota=2))
    admission.began("a")
    admission.waits("a", "c", "t")
    assert admission.refuses("a", "c", "t") is Limit.TOPIC_QUEUE
    assert admission.refuses("a", "c", "other") is None
    assert admission.refuses("a", "other", "t") is None
    assert admission.refuses("b", "c", "t") is None
    admission.began("a")
    assert admission.refuses("a", "c", "other") is Limit.TENANT
    assert admission.refuses("b", "c", "other") is None


def test_a_quota_of_nothing():
    admission = Admission(Limits(tenant_quotas={"blocked": 0}))
    assert admission.refuses("blocked", "c", "t") is Limit.TENANT


def test_deferred_is_counted():
    admission = Admission()
    admission.defer()
    admission.count(Limit.INFLIGHT)
    assert admission.counts == {Outcome.DEFERRED: 2}
    assert admission.reached == {Limit.INFLIGHT: 1}


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("cd"), st.sampled_from("tu")), max_size=60))
@settings(max_examples=100)
def test_limits_hold_whatever_comes(wishes):
    limits = Limits(max_per_topic_queue=3, max_queued_direct=9, max_global_ingress=12, tenant_quota=7)
    admission, taken = Admission(limits), []
    for wish in wishes:
        if admission.refuses(*wish) is None:
            admission.began(wish[0])
            admission.waits(*wish)
            taken.append(wish)
    assert len(taken) <= 9 and admission.unfinished == admission.waiting == len(taken)
    for tenant in "ab":
        assert admission.of_tenant(tenant) == sum(wish[0] == tenant for wish in taken) <= 7
    for wish in taken:
        assert admission.of_topic(*wish) == taken.count(wish) <= 3
    for wish in taken:
        admission.waited(*wish)
        admission.finished(wish[0])
    assert admission.unfinished == admission.waiting == 0
    assert not admission._topics and not admission._tenants


@pytest.mark.parametrize(
    "wrong", [{"max_queued_direct": 0}, {"tenant_quota": -1}, {"tenant_quotas": {"a": -1}}]
)
def test_limits_that_make_no_sense(wrong):
    with pytest.raises(OptionError):
        Limits(**wrong)
