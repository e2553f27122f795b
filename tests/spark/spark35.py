"""An environment with another Spark for `test_spark35.py`: 3.5, or the version that is named.

`python -m tests.spark.spark35 FOLDER [4.0]` makes it with the Python that runs this, and prints its
own one's path. It has our dependencies, and this checkout itself by PYTHONPATH, with its compiled core. The
second time it is there already.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: what is not among our own dependencies; Spark 3.5's Arrow code is not made for pandas 3
PACKAGES = ("pandas>=2,<3", "pyarrow>=18", "setuptools<81", "pytest>=8.3", "pytest-timeout")


def main() -> None:
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    folder = Path(sys.argv[1]).absolute()
    python = folder / "bin" / "python"
    done = folder / ".done"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    ours = [*project["dependencies"], *extras["numpy"], *extras["spool"], *extras["lz4"]]
    version = (*sys.argv[2:], "3.5")[0]
    wanted = [
        f"pyspark=={version}.*",
        *PACKAGES,
        *(name for name in ours if not name.startswith("tensor-transfer")),
    ]
    if not done.exists() or done.read_text().splitlines() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        subprocess.run([*pip, *wanted], check=True, stdout=sys.stderr)
        done.write_text("\n".join(wanted))
    print(python)


if __name__ == "__main__":
    main()
