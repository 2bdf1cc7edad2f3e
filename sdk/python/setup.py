"""Generates the stubs before the package is looked at, so that `pip install` of a clone just works."""

import sys
from pathlib import Path

from setuptools import setup

sys.path.insert(0, str(Path(__file__).resolve().parent))
import generate_stubs  # noqa: E402

generate_stubs.generate()
setup()
