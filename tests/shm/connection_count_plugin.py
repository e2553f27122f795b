"""A plugin of pytest that tells how many connections went over to shared memory."""

from __future__ import annotations

from transfer.transports.shm import upgrade

made = 0


class _Counted(upgrade.ShmStream):
    def __init__(self, *arguments):
        global made
        made += 1
        super().__init__(*arguments)


def pytest_configure(config):
    upgrade.ShmStream = _Counted


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"connections by shared memory: {made // 2}")
