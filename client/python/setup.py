# SPDX-License-Identifier: Apache-2.0
"""Takes the libphub that `make` built into the package, when there is one ($PHUB_LIBRARY, or this tree's build folder).

Without one the package is pure Python and finds the system's libphub. libphub-dpdk.so, libphub-etcd.so and phubd, when they lie
beside the library, go with it: that is where the library looks. What setuptools makes on the way goes to a temporary folder: the source
tree stays clean.
"""

import atexit
import os
import pathlib
import shutil
import sys
import tempfile

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

HERE = pathlib.Path(__file__).resolve().parent
LIBRARY = pathlib.Path(os.environ.get("PHUB_LIBRARY") or HERE.parents[1] / "build" / "libphub.so.0")
BESIDE = {LIBRARY.parent / "libphub-dpdk.so": "transport dpdk", LIBRARY.parent / "libphub-etcd.so": "phub+etcd://",
          LIBRARY.parent / "phubd": "?hostbox=auto"}
WORK = tempfile.mkdtemp(prefix="phub-")
atexit.register(shutil.rmtree, WORK, ignore_errors=True)


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        if LIBRARY.exists():
            shutil.copy(LIBRARY, pathlib.Path(self.build_lib) / "phub" / "libphub.so.0")
        for file, what in BESIDE.items() if LIBRARY.exists() else ():
            if file.exists():
                shutil.copy(file, pathlib.Path(self.build_lib) / "phub" / file.name)
            else:
                print(f"phub: without {file}: {what} is not in this package", file=sys.stderr)


class BinaryDistribution(Distribution):
    """Its wheels are of this machine's kind when they hold the library."""

    def has_ext_modules(self):
        return LIBRARY.exists()


setup(
    cmdclass={"build_py": BuildWithLibrary},
    distclass=BinaryDistribution,
    options={"build": {"build_base": WORK}, "egg_info": {"egg_base": WORK}},
)
