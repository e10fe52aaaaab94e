"""What `counterpoint data info` and `doctor` say of a Minari data set of goal-reaching episodes.

Observations that tell no goals apart (flat vectors) are read as training reads them with `data.goals = "state"`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from counterpoint.data.draws import GoalEpisode
from counterpoint.data.formats.minari.files import open_minari
from counterpoint.data.formats.minari.reader import episode_success, read_minari
from counterpoint.errors import BadInputError

__all__ = ["describe_minari", "examine_minari"]


def describe_minari(path: Path) -> dict[str, str]:
    """Name of a fact -> the fact, in words.

    Raises:
        BadInputError: When the data set cannot be read, or an episode is not one to learn to reach goals from.
    """
    note: dict[str, Any] = dict(open_minari(path).storage.metadata)
    found, whole_states = _episodes(path)
    episodes = list(found)
    lengths = [len(episode.actions) for episode in episodes]
    first = episodes[0]
    try:
        success = episode_success(path)
        succeeded = f"{success.mean():.0%} of {len(success)} episodes"
    except BadInputError:
        succeeded = "not recorded"
    return {
        "format": "minari",
        "name": str(note.get("dataset_id", "not recorded")),
        "environment": str(note.get("env_id", "not recorded")),
        "episodes": f"{len(lengths)}, of {min(lengths)} to {max(lengths)} transitions",
        "transitions": str(sum(lengths)),
        "observations": "x".join(map(str, first.observations.shape[1:])),
        "goals": "x".join(map(str, first.achieved.shape[1:])) + (" (whole states)" if whole_states else ""),
        "actions": "discrete" if first.actions.ndim == 1 else f"{first.actions.shape[1]} dimensions",
        "success": succeeded,
    }


def examine_minari(path: Path) -> list[BadInputError]:
    """The first thing that is wrong with a data set, episode by episode; none where all is well."""
    try:
        for _ in _episodes(path)[0]:
            pass
    except BadInputError as error:
        return [error]
    return []


def _episodes(path: Path) -> tuple[Iterator[GoalEpisode], bool]:
    """Episodes with goal coordinates where there are some, else with whole states as goals; and whether these."""
    try:
        return read_minari(path), False
    except BadInputError:  # anything else that is wrong is wrong of states too
        return read_minari(path, goals="state"), True
