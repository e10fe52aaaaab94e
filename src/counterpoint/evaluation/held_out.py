"""Read a run's configuration, log and training episodes; find the episodes that none of several runs was trained on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from counterpoint.data.draws import sample_rng
from counterpoint.data.segments import Segments, by_segments
from counterpoint.data.store import EpisodeStore
from counterpoint.data.store_views import SubsetStore
from counterpoint.errors import require
from counterpoint.files import read_object
from counterpoint.formats import open_dataset, split_names
from counterpoint.formats.remote import absolute, may_exist, reachable
from counterpoint.repositories import hub_id

SPLITS = ("test", "val", "validation")


def read_config(path: Path) -> dict[str, Any]:
    """Return a run's configuration.

    Raises:
        BadInputError: If the file is missing, or was not written by training.
    """
    require(path.is_file(), path, "no such file", "a run's folder", "give the folder that training wrote")
    return read_object(path, "a run's configuration", "restore the file")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the lines of `metrics.jsonl`, without a last line that is incomplete because the process was killed.

    Raises:
        BadInputError: If another line is damaged.
    """
    texts = path.read_text().splitlines() if path.is_file() else []
    lines: list[dict[str, Any]] = []
    for number, text in enumerate(texts, start=1):
        try:
            line = json.loads(text)
            lines.append({**line, "step": line["step"], "split": line["split"]})
        except (json.JSONDecodeError, KeyError, TypeError):
            hint = "restore the file, or delete it for a report without curves"
            expected = 'an object with "step" and "split"'
            require(number == len(texts), f"{path}, line {number}", repr(text[:60]), expected, hint)
    return lines


def reading_of(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `open_dataset` in the data section of a run's configuration."""
    return {name: section.get(name) for name in ("dialect", "instruction_key")}


def open_training(config: Mapping[str, Any]) -> tuple[EpisodeStore, list[int]] | None:
    """Open a run's recorded data, with the numbers of its training episodes; `None` if they are not there."""
    section = config["data"]
    path, inside = Path(section["path"]), section.get("train_split")
    if not reachable(path):
        return None
    split = inside if inside in split_names(path) else None
    store = by_segments(open_dataset(path, split=split, **reading_of(section)), section.get("segments", "episode"))
    out = set(config.get("held_out", ()))
    return store, [number for number, info in enumerate(store.episodes) if number not in out and info.length > 1]


def open_unseen(
    configs: Sequence[Mapping[str, Any]],
    path: Path,
    split: str | None,
    *,
    most: int,
    seed: int,
    dialect: str | None = None,
) -> tuple[SubsetStore, dict[str, Any], list[bool]]:
    """Open episodes of a data set that runs were not trained on; episodes without an instruction are left out.

    The episodes are a split, if the data set has a suitable one. Otherwise they are the episodes that every run on
    these data held out; a run with cross-fitting counts the episodes that its judges score. Without such runs, they are
    all episodes. For runs that were trained on segments (`data.segments`), segments are returned.

    Args:
        configs: The runs' configurations.
        path: The data set.
        split: Name of the split; by default the first of `test`, `val` and `validation`.
        most: Maximum number of episodes; larger sets are sampled at random.
        seed: Random seed of that sample.
        dialect: The dialect of HDF5 files; by default as in the runs that were trained on the data set.

    Returns:
        The episodes, facts about them, and for each run True if it was trained on them. With cross-fitting, the facts
        have `judged`: the number of each episode in the whole data set, which determines the judge that scores it.

    Raises:
        BadInputError: If the data set or the split does not exist or has no usable episode.
    """
    require(may_exist(path), path, "no such data set", "the run's data", "say where it is: --data PATH")
    splits, own = split_names(path), [trains_on(config, path) for config in configs]
    chosen = split or next((name for name in SPLITS if name in splits), None)
    mine = [config for config, same in zip(configs, own, strict=True) if same]
    reading, held = reading_of(mine[0]["data"] if mine else {}), None
    reading["dialect"] = dialect or reading["dialect"]
    sections = [config["data"] for config in configs if isinstance(config.get("data"), Mapping)]
    clips: set[Segments] = {section.get("segments", "episode") for section in sections}
    hint = "compare runs that were trained with the same data.segments"
    require(len(clips) < 2, "data.segments", " and ".join(sorted(clips)), "one of them in all runs", hint)
    segments: Segments = clips.pop() if clips else "episode"
    if chosen is None and mine and all("held_out" in config or "judged" in config for config in mine):
        held = set.intersection(*map(_unseen, mine))
        inside = mine[0]["data"].get("train_split")
        source = by_segments(open_dataset(path, split=inside if inside in splits else None, **reading), segments)
    else:
        hint = "name the split to report on: --split NAME (the training split flatters the encoder)"
        good = chosen is not None or not splits or not mine
        require(good, path, f"splits {list(splits)}", f"one of {list(SPLITS)}", hint)
        source = by_segments(open_dataset(path, split=chosen, **reading), segments)
    way = f"the split {chosen}" if chosen else "all episodes"
    way += ", each segment for itself" if segments == "task" else ""
    if held is not None:
        numbers = ", ".join(map(str, sorted(held)))
        judges = [len(config["judged"]) for config in mine if "judged" in config]
        way = f"{len(held)} of {len(source.episodes)} episodes, left out of training by task: {numbers}"
        if judges:
            way = f"{len(held)} of {len(source.episodes)} episodes, each judged by one of {max(judges)} models"
            way += " that did not learn from it; the saved model learned from all"
        source = SubsetStore(source, sorted(held))
    infos = list(enumerate(source.episodes))
    good_ones = [at for at, info in infos if info.length > 1 and info.instruction.strip()]
    require(good_ones, path, "no episode with an instruction", "some", "report on instructed episodes")
    sample = sample_rng(seed, 0, "held-out episodes").choice(len(good_ones), min(most, len(good_ones)), replace=False)
    kept = [good_ones[at] for at in sorted(sample.tolist())]
    trained = [
        same and held is None and chosen in (None, config["data"].get("train_split", "train"))
        for config, same in zip(configs, own, strict=True)
    ]
    about: dict[str, Any] = {
        "data": str(path),
        "split": chosen,
        "held_out": way,
        "episodes_left_out": len(infos) - len(good_ones),
        "episodes_drawn_from": len(good_ones),
    }
    if held is not None and any("judged" in config for config in mine):
        about["judged"] = [sorted(held)[at] for at in kept]
    return SubsetStore(source, kept), about, trained


def _unseen(config: Mapping[str, Any]) -> set[int]:
    """Return the numbers of the episodes that a run held out, or, with cross-fitting, that its judges score."""
    return set(config["held_out"]) if "held_out" in config else {one for part in config["judged"] for one in part}


def trains_on(config: Mapping[str, Any], path: Path) -> bool:
    """Return True if a run was trained on the data set at `path`.

    Raises:
        BadInputError: If the run was trained on another commit of this data set of the Hub.
    """
    section = config.get("data")
    if not isinstance(section, Mapping) or "path" not in section:
        return False
    own, given = absolute(section["path"]), absolute(path)
    (name, _, commit), (other, _, wanted) = own.partition("@"), given.partition("@")
    mixed = hub_id(path) is not None and name == other and commit != wanted
    expected, hint = f"{own}, which a run was trained on", f"read that commit: --data {own}"
    require(not mixed, path, f"the commit {wanted}", expected, hint)
    return own == given
