"""The server from which tests fork processes: it has imported what they need once, and opened nothing."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext

IMPORTED = ("counterpoint.objectives.actol", "counterpoint.training.learner", "tests.formats.fuzzing.trials")


def warm() -> ForkServerContext:
    """Return the context of the one server of this process, which imports everything at its start."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(IMPORTED))
    return context
