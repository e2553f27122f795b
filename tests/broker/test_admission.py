"""Each limit refuses under its own name, and what goes makes room again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings, strategies as st

from transfer.broker.core.admission import (
    MOST_TENANTS,
    OTHER,
    Admission,
    AdmissionLimits,
    AdmissionOutcome,
    Limit,
)
from transfer.transports.errors import OptionError


def test_defaults():
    limits = AdmissionLimits()
    assert limits.max_inflight_per_consumer == 1024
    assert limits.max_per_topic_queue == 256
    assert limits.max_queued_direct == 4096
    assert limits.max_global_ingress == 8192


@pytest.mark.parametrize(
    ("limits", "limit", "outcome"),
    [
        ({"max_global_ingress": 2}, Limit.GLOBAL_INGRESS, AdmissionOutcome.THROTTLED),
        ({"tenant_quota": 2}, Limit.TENANT, AdmissionOutcome.THROTTLED),
        ({"tenant_quotas": {"a": 2}}, Limit.TENANT, AdmissionOutcome.THROTTLED),
        ({"max_queued_direct": 2}, Limit.QUEUED_DIRECT, AdmissionOutcome.DROPPED),
        ({"max_per_topic_queue": 2}, Limit.TOPIC_QUEUE, AdmissionOutcome.DROPPED),
    ],
)
def test_each_limit_has_its_name(limits, limit, outcome):
    admission = Admission(AdmissionLimits(**limits))
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
    admission = Admission(AdmissionLimits(max_per_topic_queue=1, tenant_quota=2))
    admission.began("a")
    admission.waits("a", "c", "t")
    assert admission.refuses("a", "c", "t") is Limit.TOPIC_QUEUE
    assert admission.refuses("a", "c", "other") is None
    assert admission.refuses("a", "other", "t") is None
    assert admission.refuses("b", "c", "t") is None
    admission.began("a")
    assert admission.refuses("a", "c", "other") is Limit.TENANT
    assert admission.refuses("b", "c", "other") is None


def test_what_is_for_another_day_leaves_room_for_today():
    admission = Admission(AdmissionLimits(max_queued_direct=5, max_delay=10.0))
    for _ in range(3):
        assert admission.refuses("a", "c", "t", 10.0) is None
        admission.waits("a", "c", "t", later=True)
    assert admission.refuses("b", "d", "u", 0.1) is Limit.LATER_QUEUE
    assert admission.counts == {AdmissionOutcome.DROPPED: 1}
    assert admission.refuses("b", "d", "u") is None
    admission.waited("a", "c", "t", later=True)
    admission.waits("a", "c", "t")  # its time has come
    assert admission.refuses("b", "d", "u", 0.1) is None
    assert admission.refuses("b", "d", "u", 10.1) is Limit.DELAY


def test_a_quota_of_nothing():
    admission = Admission(AdmissionLimits(tenant_quotas={"blocked": 0}))
    assert admission.refuses("blocked", "c", "t") is Limit.TENANT


def test_deferred_is_counted():
    admission = Admission()
    admission.defer()
    admission.count(Limit.INFLIGHT)
    assert admission.counts == {AdmissionOutcome.DEFERRED: 2}
    assert admission.reached == {Limit.INFLIGHT: 1}


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("cd"), st.sampled_from("tu")), max_size=60))
@settings(max_examples=100)
def test_limits_hold_whatever_comes(wishes):
    limits = AdmissionLimits(
        max_per_topic_queue=3, max_queued_direct=9, max_global_ingress=12, tenant_quota=7
    )
    admission, taken = Admission(limits), []
    for wish in wishes:
        if admission.refuses(*wish) is None:
            admission.began(wish[0])
            admission.waits(*wish)
            taken.append(wish)
    assert len(taken) <= 9 and admission.unfinished == admission.waiting == len(taken)
    for tenant in "ab":
        assert (
            dict(admission.unfinished_by_tenant()).get(tenant, 0)
            == sum(wish[0] == tenant for wish in taken)
            <= 7
        )
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
        AdmissionLimits(**wrong)


def test_messages_are_counted_by_tenant():
    admission = Admission(AdmissionLimits(tenant_quota=2))
    for tenant in ("a", "a", "b"):
        assert admission.refuses(tenant, "d", "t") is None
        admission.began(tenant)
    assert admission.refuses("a", "d", "t") is Limit.TENANT
    admission.finished("b")
    assert (admission.accepted, admission.refused) == ({"a": 2, "b": 1}, {"a": 1})
    assert dict(admission.unfinished_by_tenant()) == {"a": 2}


def test_what_was_there_before_a_restart_was_accepted_before():
    admission = Admission()
    admission.began("a", again=True)
    assert admission.accepted["a"] == 0 and dict(admission.unfinished_by_tenant()) == {"a": 1}


def test_tenants_without_end_take_no_memory_without_end():
    admission = Admission()
    for number in range(5000):
        admission.began(f"tenant {number}")
        admission.finished(f"tenant {number}")
    assert len(admission.accepted) <= MOST_TENANTS + 1
    assert sum(admission.accepted.values()) == 5000 and admission.accepted[OTHER] > 0


@pytest.mark.parametrize(
    ("limits", "tenants", "share"),
    [
        (AdmissionLimits(), [], 0.0),
        (AdmissionLimits(max_global_ingress=10, tenant_quota=10), ["a", "b"], 0.2),
        (AdmissionLimits(max_global_ingress=10, tenant_quota=4), ["a", "a", "b"], 0.5),
        (AdmissionLimits(max_global_ingress=10, tenant_quotas={"a": 0}), ["a"], 1.0),
    ],
)
def test_the_share_of_what_may_be_unfinished(limits, tenants, share):
    admission = Admission(limits)
    for tenant in tenants:
        admission.began(tenant)
    assert admission.share == share
    for tenant in tenants:
        admission.finished(tenant)
    assert admission.share == 0.0
