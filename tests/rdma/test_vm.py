"""The tests on real verbs, in a virtual machine (`make test-rdma` runs them alone)."""

from __future__ import annotations

import pytest

from tests.rdma import two_hosts, vm, vm_plugin


def tools_or_skip() -> vm.Tools:
    try:
        return vm.find_tools()
    except vm.Missing as missing:
        pytest.skip(str(missing))


@pytest.mark.timeout(vm.TIMEOUT + 60)
def test_on_real_verbs(pytestconfig, record_property) -> None:
    """Begun by `vm_plugin.py` before all other tests."""
    note = vm_plugin.note(pytestconfig)
    if "missing" in note:
        pytest.skip(note["missing"])
    ran = vm.Begun(**note).wait(vm.TIMEOUT)
    assert ran.status is not None, ran.output[-8000:] + ran.console[-3000:]
    assert ran.status == 0, ran.output[-8000:]
    done, skipped = ran.counts["tests"] - ran.counts["skipped"], ran.counts["skipped"]
    assert done > 150, f"only {done} tests ran: {ran.output[-3000:]}"
    took = f"in {ran.seconds:.0f} s of a virtual machine"
    record_property(vm_plugin.RAN, f"{done} tests passed, {skipped} skipped, {took}")


def test_the_newest_kernel_with_soft_roce_is_taken(tmp_path) -> None:
    boot, modules = tmp_path / "boot", tmp_path / "modules"
    boot.mkdir()
    for version, has in (("6.1.0-9-amd64", True), ("6.1.0-56-amd64", True), ("6.12.0-1-cloud", False)):
        (boot / f"vmlinuz-{version}").touch()
        if has:
            driver = modules / version / "kernel/drivers/infiniband/sw/rxe"
            driver.mkdir(parents=True)
            (driver / "rdma_rxe.ko").touch()
    assert vm.find_kernel(boot, modules).name == "vmlinuz-6.1.0-56-amd64"
    with pytest.raises(vm.Missing, match="linux-image"):
        vm.find_kernel(tmp_path, modules)


def test_what_is_missing_is_said_in_one_line(monkeypatch) -> None:
    monkeypatch.setattr(vm.shutil, "which", lambda *_, **__: None)
    with pytest.raises(vm.Missing) as missing:
        vm.find_tools()
    assert "\n" not in str(missing.value) and "apt-get install" in str(missing.value)


@pytest.mark.slow
@pytest.mark.timeout(1900)
def test_more_suites_on_real_verbs() -> None:
    ran = vm.run(vm.pytest_command(vm.MORE), tools=tools_or_skip(), timeout=1800)
    assert ran.status == 0, ran.output[-8000:] + ran.console[-3000:]


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_hundred_kills_in_each_phase() -> None:
    """Takes most of an hour where the machine is emulated."""
    command = "TRANSFER_TEST_KILLS=100 " + vm.pytest_command(("tests/rdma/in_vm/test_killed.py", "-s"))
    ran = vm.run(command, tools=tools_or_skip(), timeout=7000)
    assert ran.status == 0 and "500 kills" in ran.output, ran.output[-8000:] + ran.console[-3000:]


@pytest.mark.slow
@pytest.mark.timeout(two_hosts.TIMEOUT + 60)
def test_two_hosts() -> None:
    tools = tools_or_skip()
    for role, ran in two_hosts.run(tools=tools).items():
        assert ran.status == 0, f"{role}: {ran.output}{ran.console[-3000:]}"
        assert ran.output.count("tensors over rdma") == 2
