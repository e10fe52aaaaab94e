"""A run's folder belongs to one configuration: going on with another is refused before anything is touched."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from counterpoint.errors import BadInputError

__all__ = ["FREE", "claim_run"]


FREE = ("steps", "epochs", "workers", "log_every", "eval_every", "eval_batches", "save_every", "keep", "trackers")
"""Settings that may change when a run is continued: none of them touches a parameter."""


def claim_run(out: Path, settings: Mapping[str, Any], free: Mapping[str, Collection[str]]) -> None:
    """Make the run's folder, or check that the run in it has the same configuration.

    Args:
        out: The run's folder.
        settings: The resolved configuration, by section.
        free: Section -> keys that may differ (a longer run may continue a shorter one).

    Raises:
        BadInputError: When `out` is a file, or holds a run with another configuration.
    """
    record = out / "config.json"
    if out.exists() and not out.is_dir():
        raise BadInputError(out, "a file", "a folder", "choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    if not record.exists():
        return
    before = json.loads(record.read_text())
    for section, values in settings.items():
        old = before.get(section)
        if isinstance(values, dict) and isinstance(old, dict):
            bound = [key for key in values if key not in free.get(section, ())]
            values, old = ({key: part.get(key) for key in bound} for part in (values, old))
        if values != old:
            raise BadInputError(
                out,
                f"a run with another [{section}]",
                "the same configuration, to continue it",
                "choose another --out, or repeat the earlier overrides",
            )
