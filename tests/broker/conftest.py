"""Certificates that many tests of the broker share."""

from __future__ import annotations

import pytest

from tests.broker.secure_peers import Identities


@pytest.fixture(scope="session")
def identities(tmp_path_factory):
    return Identities(tmp_path_factory.mktemp("identities"))
