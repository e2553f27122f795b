"""What the conftest and the tests tell each other. Here, since a conftest may be imported twice."""

from __future__ import annotations

import pytest

from tests.rdma import vm

#: the machine, or why there is none
MACHINE = pytest.StashKey[vm.Machine | str]()
#: (tests that ran in the virtual machine, those that were skipped in it, seconds)
RAN = pytest.StashKey[tuple[int, int, float]]()
