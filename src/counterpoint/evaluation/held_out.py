"""Which episodes a run is reported on, at the pixels it was trained at and as they were recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from counterpoint.data.cache import cached
from counterpoint.data.formats import open_dataset, split_names
from counterpoint.data.store import EpisodeStore, SubsetStore
from counterpoint.errors import BadInputError

__all__ = ["HeldOut", "open_held_out"]

SPLITS = ("test", "val", "validation")


@dataclass(frozen=True)
class HeldOut:
    """Episodes to report on.

    Attributes:
        store: Frames as the encoder was trained on them.
        source: The same episodes as recorded, for showing.
        path: Of the data set.
        split: Its name; `None` for all episodes.
        seen: Whether the run may have been trained on them.
        left_out: Episodes without an instruction or of one step.
        drawn_from: How many there were before a sample was taken.
    """

    store: EpisodeStore
    source: EpisodeStore
    path: Path
    split: str | None
    seen: bool
    left_out: int
    drawn_from: int


def open_held_out(
    config: Mapping[str, Any], where: Path, data: Path | None, split: str | None, *, most: int, seed: int
) -> HeldOut:
    """Open the episodes to report on.

    Args:
        config: The run's; `data.path`, `data.size`, and `data.camera` and `data.cache` where it names them.
        where: The configuration's file, for errors.
        data: Another data set; the run's own by default.
        split: Which split; by default `test`, `val` or `validation`, the first there is, or all episodes of a
            data set that has none.
        most: Of more episodes than this, as many are drawn.
        seed: Of that draw.

    Raises:
        BadInputError: When a key is missing, the data set is elsewhere, or it has no such split.
    """
    section = config.get("data")
    if not isinstance(section, Mapping) or "path" not in section or not isinstance(section.get("size"), int):
        raise BadInputError(
            where,
            found="no data.path or data.size",
            expected="the configuration that training writes",
            mend="give the folder of a run of this version",
        )
    path = Path(data or section["path"])
    if not path.exists():
        raise BadInputError(
            path, found="no such data set", expected="the run's data", mend="say where it is: --data PATH"
        )
    splits = split_names(path)
    chosen = split or next((name for name in SPLITS if name in splits), None)
    if chosen is None and splits:
        raise BadInputError(
            path,
            found=f"splits {list(splits)}",
            expected=f"one of {list(SPLITS)}",
            mend="name the split to report on: --split NAME (what was trained on flatters the encoder)",
        )
    source = open_dataset(path, split=chosen)
    camera = section.get("camera") or source.cameras[0]
    store = cached(source, size=section["size"], root=section.get("cache"), cameras=(camera,))
    good = [at for at, info in enumerate(store.episodes) if info.length > 1 and info.instruction.strip()]
    if not good:
        raise BadInputError(
            path,
            found="no episode with an instruction",
            expected="some",
            mend="report on instructed episodes",
        )
    drawn = np.random.default_rng(seed).choice(len(good), min(most, len(good)), replace=False)
    kept = [good[at] for at in sorted(drawn.tolist())]
    own = path.resolve() == Path(section["path"]).resolve()
    return HeldOut(
        store=SubsetStore(store, kept),
        source=SubsetStore(source, kept),
        path=path,
        split=chosen,
        seen=own and chosen in (None, section.get("train_split", "train")),
        left_out=len(store.episodes) - len(good),
        drawn_from=len(good),
    )
