"""Parameters of which the quick tests take a part."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def quick(chosen: Collection[Any], every: Iterable[Any]) -> list[Any]:
    """Return all parameters; those that are not chosen are slow.

    Args:
        chosen: Parameters, of which each stands for others that the code treats alike.
        every: All parameters.
    """
    return [pytest.param(value, marks=[] if value in chosen else [pytest.mark.slow]) for value in every]
