"""Strangers at the doors of a broker with certificates and a token: before TLS, inside it, and in the proof.

As test_doors.py.
"""

from __future__ import annotations

import random

import pytest

from tests.broker.secure_peers import Identities
from tests.fuzz.attack import attacked
from tests.fuzz.doors import SECURED
from tests.fuzz.test_doors import SECONDS, report

FEW = 10


@pytest.fixture(scope="module")
def attack(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    with attacked(folder / "data", Identities(folder)) as made:
        yield made


@pytest.mark.parametrize("door", SECURED)
def test_a_few_strangers(attack, door):
    attack.at(door, range(FEW))


@pytest.mark.parametrize("door", ["requests proved", "spool proved", "ttp tls"])
def test_the_ways_lead_in(attack, door):
    """What strangers say behind a handshake is heard: the handshake ends well."""
    attack.way(door)(random.Random(1)).close()


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 120)
@pytest.mark.parametrize("door", SECURED)
def test_strangers_for_minutes(attack, door):
    attack.for_a_while(door, SECONDS)
    report(attack, door)
