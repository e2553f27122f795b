"""Runs the programs of one scenario together, in namespaces that hold nothing else, and writes what they did.

`python scenario.py FILE` reads {"command": words before each program, "run": programs, "limit": seconds}. It
replaces that by a list with a row for each program: its exit code (None: it was still running), its output,
and whether it printed what is due, and ended if that is due. All is over once each has, or one has failed.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

#: more addresses of the loopback interface, which programs of the guide name; and a way for broadcasts
NETWORK = (
    "link set lo up",
    "address add 192.168.55.210/24 brd 192.168.55.255 dev lo",
    "address add 10.1.1.0/32 dev lo",
    "route add 255.255.255.255 dev lo",
)
#: seconds at most until a program is ready
READY = 60


class Program:
    """One program, and what is due from it."""

    def __init__(self, number, command, due):
        self.due = due
        self.path = Path(f"output-{number}.txt")
        words = ["-c", due["code"]] if "code" in due else due["program"].split()
        with self.path.open("w") as out:
            self.process = subprocess.Popen(
                [*command, *words], stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, text=True
            )
        end = time.monotonic() + READY
        while not re.search(due.get("ready", ""), self.output()) and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(due.get("pause", 0.3))
        self.process.stdin.write(due.get("input", ""))
        self.process.stdin.flush()  # and stays open: the end of a program's input may end it
        if due.get("interrupt"):
            self.process.send_signal(signal.SIGINT)

    def output(self):
        return self.path.read_text(errors="replace")

    def failed(self):
        return self.process.poll() not in (None, 0)

    def done(self):
        code = self.process.poll()
        if "fails" in self.due:
            return bool(code) and re.search(self.due["fails"], self.output()) is not None
        if code is None and self.due.get("ends"):
            return False
        shows = self.due.get("shows", "")
        return not self.failed() and len(re.findall(shows, self.output(), re.MULTILINE)) >= self.due.get(
            "times", 1
        )


def main():
    path = Path(sys.argv[1])
    for words in NETWORK:
        subprocess.run(["ip", *words.split()], check=True, timeout=10)
    given = json.loads(path.read_text())
    programs = [Program(number, given["command"], due) for number, due in enumerate(given["run"])]
    end = time.monotonic() + given["limit"]
    while time.monotonic() < end:
        if any(program.failed() for program in programs):
            break
        if all(program.done() for program in programs):
            break
        time.sleep(0.05)
    rows = [(program.process.poll(), program.output(), program.done()) for program in programs]
    path.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
