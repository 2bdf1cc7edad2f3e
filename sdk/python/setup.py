"""Generates the stubs before the package is built, so that `pip install` of a clone just works."""

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).resolve().parent))
import generate_stubs  # noqa: E402


class BuildWithStubs(build_py):
    def run(self) -> None:
        generate_stubs.generate()
        super().run()


setup(cmdclass={"build_py": BuildWithStubs})
