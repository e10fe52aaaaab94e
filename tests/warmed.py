"""What the server imports from which tests fork processes; what is not installed here is left to those that use it."""

from __future__ import annotations

import gc
from contextlib import suppress
from importlib import import_module

import pytest

for _name in (
    "counterpoint.cli",
    "counterpoint.objectives.actol",
    "counterpoint.training.agent",
    "counterpoint.training.clips",
    "counterpoint.training.learner",
    "tests.formats.fuzzing.trials",
):
    with suppress(ImportError, pytest.skip.Exception):
        import_module(_name)
gc.collect()
gc.freeze()  # in none of the forked processes does the collector look at the imported modules
