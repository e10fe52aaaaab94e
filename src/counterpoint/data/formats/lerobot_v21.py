"""Find the episodes of a LeRobot v2.1 data set: metadata in JSON lines, files of one episode each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from counterpoint.data.formats.lerobot_layout import (
    SUCCESS,
    EpisodePlace,
    Info,
    VideoPlace,
    damaged,
    located,
    one_instruction,
)
from counterpoint.errors import BadInputError

__all__ = ["places_v21"]


def places_v21(root: Path, info: Info) -> list[EpisodePlace]:
    """Where each episode lies, in order of `episode_index`.

    Raises:
        BadInputError: When metadata are missing or malformed, or a path leaves the folder.
    """
    path = root / "meta/episodes.jsonl"
    success = _successes(root / "meta/episodes_stats.jsonl")
    video_keys = [key for key in info.cameras.values() if info.features[key].dtype == "video"]
    places = []
    for line in _lines(path):
        try:
            number, length = int(line["episode_index"]), int(line["length"])
            tasks = [str(task) for task in line["tasks"]]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise damaged(
                path, f"{type(error).__name__}: {error}", "episode_index, length and tasks"
            ) from error
        if not 1 <= length < 2**31:
            raise damaged(path, f"episode {number} of length {length}", "at least one step")
        at = {"episode_chunk": number // info.chunk, "episode_index": number}
        places.append(
            EpisodePlace(
                number=number,
                length=length,
                instruction=one_instruction(path, tasks),
                success=success.get(number),
                data=located(root, info.data_path, **at),
                row=0,
                rows=length,
                videos={
                    key: VideoPlace(
                        located(root, info.video_path or "", video_key=key, **at), 0, (length, length)
                    )
                    for key in video_keys
                },
            )
        )
    return sorted(places, key=lambda place: place.number)


def _successes(path: Path) -> dict[int, bool]:
    """Episode number -> whether any step succeeded, where the statistics (absent before v2.1) say."""
    if not path.exists():
        return {}
    entries = ((line, line.get("stats", {}).get(SUCCESS)) for line in _lines(path))
    try:
        return {int(line["episode_index"]): bool(stats["max"][0]) for line, stats in entries if stats}
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise damaged(path, f"{type(error).__name__}: {error}", "statistics of each episode") from error


def _lines(path: Path) -> list[dict[str, Any]]:
    lines = []
    try:
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if text.strip():
                lines.append(json.loads(text))
                if not isinstance(lines[-1], dict):
                    raise damaged(path, f"line {number}: {text[:40]}", "one JSON object a line")
    except BadInputError:
        raise
    except (OSError, ValueError) as error:
        raise damaged(path, str(error), "one JSON object a line") from error
    return lines
