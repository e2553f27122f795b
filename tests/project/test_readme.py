"""The programs in the README run, and print what it says. (The one with Spark: tests/spark/test_readme.py)"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAMS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
OUTPUT = re.findall(r"\nprints\n\n```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def program(word: str) -> str:
    (found,) = [text for text in PROGRAMS if word in text]
    return found


def run(text: str, folder: Path, timeout: float) -> str:
    answer = subprocess.run(
        [sys.executable, "-c", text],
        cwd=folder, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_the_sockets_do_what_it_says(tmp_path):
    printed = run(program("context.socket"), tmp_path, 50)
    told = OUTPUT[0]
    assert re.sub(r":\d{4,5} ", ":PORT ", printed) == re.sub(r":\d{4,5} ", ":PORT ", told)
