"""One target: a platform and a version of Python. Describes it to Python, which then builds for it.

CPython reads what it was built with from a module `_sysconfigdata_…`. Two variables that its own cross builds
use, _PYTHON_SYSCONFIGDATA_NAME and _PYTHON_HOST_PLATFORM, make it read another one. This one names zig as the
compiler, the flags of every wheel, and the target's file names.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from deploy.wheels.environments import Environment, Unable
from deploy.wheels.platforms import Platform

#: -fwrapv: as CPython itself. -g0 and -s: no paths of this machine. zig adds checks of undefined behaviour.
_FLAGS = "-fPIC -O3 -g0 -DNDEBUG -fwrapv -Wall -fno-sanitize=all"
_LINK_FLAGS = "-shared -s -Wl,--build-id=none"
_PYCONFIG_CHECK = Path(__file__).with_name("pyconfig_check.c")
#: seconds for one file; the first one of a platform builds its C library
_LIMIT = 600
#: prints what the interpreter was built with
_VARIABLES = "import json, sysconfig; print(json.dumps(sysconfig.get_config_vars()))"


@dataclass(frozen=True, slots=True)
class Target:
    """A platform and the environment of an interpreter, whose version and headers it has."""

    platform: Platform
    version: str
    environment: Environment
    zig: Path
    #: for files that are made here, and for the compiler's cache
    place: Path

    @property
    def name(self) -> str:
        return f"cp{self.version.replace('.', '')} {self.platform.name}"

    @property
    def compiler(self) -> list[str]:
        return [str(self.zig), "cc", "-target", self.platform.target]

    def variables(self) -> dict[str, str]:
        """Returns the environment variables of a build for it. Writes the module that they name."""
        own = self._own_variables()
        suffix = f"cpython-{self.version.replace('.', '')}-{self.platform.multiarch}"
        cc = " ".join(self.compiler)
        data = own | {
            "CC": cc,
            "CFLAGS": _FLAGS,
            "OPT": "",
            "CCSHARED": "",
            "LDSHARED": f"{cc} {_LINK_FLAGS}",
            "LDFLAGS": "",
            "EXT_SUFFIX": f".{suffix}.so",
            "SOABI": suffix,
            "MULTIARCH": self.platform.multiarch,
            "Py_ENABLE_SHARED": 0,  # else the linker is given the folder of libpython
        }
        name = f"_sysconfigdata_{self.platform.name.replace('-', '_')}_{self.version.replace('.', '_')}"
        self.place.mkdir(parents=True, exist_ok=True)
        (self.place / f"{name}.py").write_text(f"build_time_vars = {data!r}\n")
        return self._compiler_variables() | {
            "PYTHONPATH": str(self.place),
            "_PYTHON_SYSCONFIGDATA_NAME": name,
            "_PYTHON_HOST_PLATFORM": f"linux-{self.platform.machine}",
        }

    def check_headers(self) -> None:
        """Compiles the comparison of the headers with the target. Raises Unable."""
        include = self._own_variables()["INCLUDEPY"]
        made = str(self.place / "pyconfig_check.o")
        command = [*self.compiler, "-c", f"-I{include}", str(_PYCONFIG_CHECK), "-o", made]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_LIMIT,
            env={**os.environ, **self._compiler_variables()},
        )  # fmt: skip
        if done.returncode:
            raise Unable(f"the headers in {include} do not fit {self.platform.name}:\n{done.stderr[-2000:]}")

    def _own_variables(self) -> dict[str, object]:
        command = [str(self.environment.python), "-I", "-c", _VARIABLES]
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_LIMIT)
        found: dict[str, object] = json.loads(answer.stdout)
        return found

    def _compiler_variables(self) -> dict[str, str]:
        cache = str(self.place / "zig-cache")
        return {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache}
