"""Packages of the extra `report`, imported when first needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from counterpoint.errors import MissingExtraError

__all__ = ["report_package"]


def report_package(module: str) -> Any:
    """Import a module of scipy, scikit-learn, matplotlib or jinja2.

    Raises:
        MissingExtraError: When it is not installed.
    """
    try:
        return import_module(module)
    except ImportError:
        raise MissingExtraError(module.partition(".")[0], "report") from None
