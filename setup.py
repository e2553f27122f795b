"""Builds the compiled core, if it can. The version is that of deploy/version.py; all else stands in
pyproject.toml.

Without Cython, a C compiler or Python's headers the install goes through, prints one warning, and
the Python twin (`transports/core/pure`) does the work.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
#: by the link in `transfer/`, as the modules are named
NATIVE = Path("transfer/transports/core/native")
#: set to 1 to install the Python twin only
SWITCH = "TRANSFER_NO_NATIVE"
#: Older ones drop an attribute's old value before they store the new one. Where that frees an object and so
#: lets another thread run, that thread frees it again: seen as a crash when sockets close on many cores
#: (https://github.com/cython/cython/pull/7909).
OLDEST_CYTHON = (3, 3, 1)
#: set to 1 where a build without the compiled core is an error
NEEDED = os.environ.get("TRANSFER_NEED_NATIVE") == "1"
#: the compiler's flags; those of the sanitizers take their place (tests/sanitizers)
FLAGS = os.environ.get("TRANSFER_CORE_FLAGS", "-O3 -g0").split()


def give_up(reason: str) -> None:
    """The one warning of a build without the compiled core; an error where that is needed."""
    if NEEDED:
        raise SystemExit(f"the compiled core cannot be built: {reason}")
    print(
        f"WARNING: tensor-transfer is built without its compiled core ({reason}). "
        "It works, several times slower. Install gcc and python3-dev, then run `make build`, "
        "or install it again.",
        file=sys.stderr,
    )


def translator() -> Any:
    """Cython's `cythonize`; None: it cannot be used, which was said."""
    try:
        from Cython import __version__
        from Cython.Build import cythonize
    except ImportError:
        return give_up("Cython is not installed")
    if tuple(map(int, re.findall(r"\d+", __version__)[:3])) < OLDEST_CYTHON:
        oldest = ".".join(map(str, OLDEST_CYTHON))
        return give_up(f"Cython {__version__} makes code that can crash; {oldest} or newer is needed")
    return cythonize


class BuildCore(build_ext):
    """Builds every extension or gives up on all: half a core would be neither one nor the other."""

    def run(self) -> None:
        """Translates to C what changed, then compiles it."""
        if self.extensions:
            cythonize = translator()
            if cythonize is None:
                self.extensions = []
            else:
                options = {"build_dir": "build/cython", "language_level": 3, "quiet": True}
                # A copy of an object with C pointers would free their memory a second time.
                options["compiler_directives"] = {"auto_pickle": False}
                translated = {one.name: one.sources for one in cythonize(self.extensions, **options)}
                for extension in self.extensions:
                    extension.sources = translated[extension.name]
        super().run()

    def build_extensions(self) -> None:
        try:
            super().build_extensions()
        # Compilers fail with errors of distutils, of the linker wrapper and of the system alike.
        except Exception as error:
            for extension in self.extensions:
                Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
            self.extensions = []
            if NEEDED:
                raise
            give_up(str(error).strip().splitlines()[-1] if str(error) else type(error).__name__)


def extensions() -> list[Any]:
    """The compiled modules."""
    sources = sorted(ROOT.joinpath(NATIVE).glob("*.pyx"))
    if not sources or not ROOT.joinpath("transfer/patterns/__init__.py").exists():
        raise SystemExit(
            "transfer/transports and transfer/patterns are links to the folders beside `transfer`, and lead\n"
            "nowhere: was this unpacked or cloned without links? `git config core.symlinks true`, clone again"
        )
    if os.environ.get(SWITCH) == "1":
        give_up(f"{SWITCH}=1")
        return []
    if sys.platform != "linux":
        give_up("it needs Linux")
        return []
    headers = [str(path.relative_to(ROOT)) for path in ROOT.joinpath(NATIVE).glob("*.h")]
    return [
        Extension(
            ".".join(source.relative_to(ROOT).with_suffix("").parts),
            [str(source.relative_to(ROOT))],
            include_dirs=[str(NATIVE)],
            depends=headers,
            extra_compile_args=[*FLAGS, "-fvisibility=hidden", "-Wno-unused-function"],
            extra_link_args=["-pthread"],
        )
        for source in sources
    ]


os.chdir(ROOT)
VERSION = runpy.run_path("deploy/version.py")["version_of"](ROOT)
setup(version=VERSION, ext_modules=extensions(), cmdclass={"build_ext": BuildCore})
