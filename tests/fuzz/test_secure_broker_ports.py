"""Hostile clients at a broker with certificates and a token: before TLS, inside it, and in the proof.

As test_broker_ports.py.
"""

from __future__ import annotations

import random

import pytest

from tests.broker.secure_peers import Identities
from tests.fuzz.attack import under_attack
from tests.fuzz.broker_conversations import SECURED
from tests.fuzz.test_broker_ports import SECONDS, report

FEW = 10


@pytest.fixture(scope="module")
def attack(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    with under_attack(folder / "data", Identities(folder)) as made:
        yield made


@pytest.mark.parametrize("target", SECURED)
def test_a_few_hostile_clients(attack, target):
    attack.at(target, range(FEW))


@pytest.mark.parametrize("target", ["requests proved", "spool proved", "ttp tls"])
def test_the_ways_lead_in(attack, target):
    """What hostile clients send behind a handshake is read: the handshake ends well."""
    attack.dial(target)(random.Random(1)).close()


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 120)
@pytest.mark.parametrize("target", SECURED)
def test_hostile_clients_for_minutes(attack, target):
    attack.for_a_while(target, SECONDS)
    report(attack, target)
