"""An environment with another Spark for `test_spark35.py` and `test_connect.py`: 3.5, or the version and
extra that are named.

`python -m tests.spark.spark35 FOLDER [VERSION[EXTRA]]`, for instance `4.0` or `4.3[connect]`, makes it with
the Python that runs this, and prints its own one's path. It has our dependencies, and this checkout itself by
PYTHONPATH, with its compiled core. The second time it is there already. A test's variable names such a
Python, or a folder, where the test makes it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: what is not among our own dependencies; Spark 3.5's Arrow code is not made for pandas 3
PACKAGES = ("pandas>=2,<3", "pyarrow>=18", "setuptools<81", "pytest>=8.3", "pytest-timeout")


def main() -> None:
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    print(make(*sys.argv[1:]))


def named_by(variable: str, spark: str) -> str:
    """The Python that an environment variable names, or one made in the folder that it names; else the test
    is skipped."""
    value = os.environ.get(variable)
    if not value:
        pytest.skip(
            f"{variable} names no Python with Spark {spark}; "
            f"`python -m tests.spark.spark35 FOLDER '{spark}'` makes one and prints its path"
        )
    return value if Path(value).is_file() else make(value, spark)


def make(place: str, spark: str = "3.5") -> str:
    """The path of the Python in this folder, whose environment is made if it is not there."""
    folder = Path(place).absolute()
    python = folder / "bin" / "python"
    done = folder / ".done"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    ours = [*project["dependencies"], *extras["numpy"], *extras["spool"], *extras["lz4"]]
    version, bracket, extra = spark.partition("[")
    wanted = [
        f"pyspark{bracket}{extra}=={version}.*",
        *PACKAGES,
        *(name for name in ours if not name.startswith("tensor-transfer")),
    ]
    if not done.exists() or done.read_text().splitlines() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        subprocess.run([*pip, *wanted], check=True, stdout=sys.stderr)
        done.write_text("\n".join(wanted))
    return str(python)


if __name__ == "__main__":
    main()
