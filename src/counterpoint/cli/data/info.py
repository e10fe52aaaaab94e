"""`counterpoint data info`: print what a data set holds."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Annotated

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tyro.conf import Positional, arg

from counterpoint.cli.data.alignment import alignment_of, measure
from counterpoint.data.episode import says_nothing, visible
from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError, require
from counterpoint.formats import open_dataset, recognise, split_names
from counterpoint.formats.base import Column, Reader
from counterpoint.formats.hdf5.reader import Hdf5Store
from counterpoint.formats.lerobot import layout
from counterpoint.formats.lerobot.reader import LeRobotStore
from counterpoint.formats.minari.files import is_minari
from counterpoint.formats.remote import url_of
from counterpoint.parameter_types import Name
from counterpoint.progress import duration

DataSet = Annotated[str | Path, arg(metavar="PATH")]
_SHOWN = 100  # rows of a table that are shown


def info(path: Positional[DataSet], *, dialect: Name = None, check_alignment: bool = False) -> None:
    """Print what a data set holds: episodes, cameras, sizes, instructions, splits, share of successes.

    Time: a second or two, since no video is decoded beyond its first frame. Disk: nothing.

    Args:
        path: A LeRobot, video-folder, EPIC-KITCHENS, robomimic, LIBERO, IsaacLab, ALOHA, DrQ-v2, RLBench, RLDS,
            Diffusion Policy, DROID, BridgeData, ROS 2 (MCAP) or Minari data set, or a training store.
        dialect: The dialect of HDF5 files, if the files do not identify it.
        check_alignment: Also measure whether the action of each step is the one that leads to the next state.
    """
    for found in data_sets(url_of(path) or path):
        _describe(found, dialect, check_alignment)


def data_sets(path: str | Path) -> list[str | Path]:
    """Return the data sets at a path: the path itself, or the data sets in a folder that `collect pointmaze` wrote.

    Raises:
        BadInputError: When the path has no data set.
    """
    if is_minari(path):
        return [path]
    try:
        recognise(path)
    except BadInputError:
        folders = [folder for depth in ("*", "*/*", "*/*/*") for folder in sorted(Path(path).glob(depth))]
        below = [folder for folder in folders if (folder / "meta/info.json").is_file() or is_minari(folder)]
        if not below:
            raise
        return list(below)
    return [path]


def _describe(path: str | Path, dialect: str | None, check_alignment: bool) -> None:
    console = Console()
    if is_minari(path):
        require_no_dialect(path, dialect)
        from counterpoint.formats.minari.reader import describe_minari, vectors_of  # minari is an optional dependency

        measured = {"alignment": str(measure(vectors_of(Path(path))))} if check_alignment else {}
        _print_facts(console, path, describe_minari(Path(path)) | measured)
        return
    store = open_dataset(path, dialect=dialect)
    lengths = [episode.length for episode in store.episodes]
    actions, state = store.actions(0), store.state(0)
    rates = sorted({round(episode.fps, 2) for episode in store.episodes})
    known = [episode.success for episode in store.episodes if episode.success is not None]
    seconds = sum(episode.length / episode.fps for episode in store.episodes)
    sizes = {camera: sizes_in_words(store.sizes(camera)) for camera in store.cameras}
    counts = Counter(episode.instruction for episode in store.episodes)
    facts = {
        "format": recognise(path).title,
        "episodes": f"{len(lengths)}, of {min(lengths)} to {max(lengths)} frames",
        "frames": f"{sum(lengths)}, {duration(seconds)}",
        "frames a second": ", ".join(f"{rate:g}" for rate in rates),
        "cameras": ", ".join(f"{name} {words}" for name, words in sizes.items()) or "none",
        **({"depth": ", ".join(_depth(store, name) for name in store.depth_cameras)} if store.depth_cameras else {}),
        "actions": f"{actions.shape[1]} dimensions" if actions is not None else "none",
        "state": f"{state.shape[1]} dimensions" if state is not None else "none",
        "splits": ", ".join(f"{name} {text}" for name, text in splits_in_words(path, store, dialect).items()) or "none",
        "instructions": _wording(counts),
        "success": f"{np.mean(known):.0%} of {_recording(len(known), len(lengths))}" if known else "not recorded",
    }
    if isinstance(store, Reader):
        facts["frames a second"] += "" if store.rate_recorded else " (assumed: the data do not say)"
        facts |= store.facts
        if store.instructions:
            empty = {key: sum(not visible(text) for text in texts) for key, texts in store.instructions.items()}
            keys = (f"{key} (empty in {count} of {len(lengths)} episodes)" for key, count in empty.items())
            facts["instruction keys"] = ", ".join(keys)
        more = ", ".join(f"{name} {column.dtype}" for name, column in further_columns(store).items())
        facts |= {"further columns": more} if more else {}
        facts |= {"left out": ", ".join(left_out)} if (left_out := unread_parts(store)) else {}
    scripts = Counter[str]()
    for text, count in counts.items():
        scripts.update(dict.fromkeys(other_scripts(text), count))
    if scripts:
        named = ", ".join(f"{script} in {count}" for script, count in scripts.most_common())
        facts["other scripts"] = f"{named} of {len(lengths)} instructions; the default text encoders know English"
    facts |= {"alignment": str(alignment_of(store))} if check_alignment else {}
    texts = Table("instruction", "episodes")
    for text, count in counts.most_common(_SHOWN):
        texts.add_row(Text(text if text else "(none)"), str(count))
    if len(counts) > _SHOWN:
        texts.add_row(f"... and {len(counts) - _SHOWN} more", "")
    _print_facts(console, path, facts)
    console.print(texts)


def other_scripts(text: str) -> set[str]:
    """Return a text's writing systems other than Latin, and "symbols" for emoji and the like."""
    found = set()
    for letter in text:
        kind, name = unicodedata.category(letter), unicodedata.name(letter, "").partition(" ")[0]
        if letter >= "\u0250" and kind in ("Lu", "Ll", "Lt", "Lo") and name != "LATIN":  # lower: ASCII, accented Latin
            found.add(name if name == "CJK" else name.capitalize())
        elif letter >= "\u0250" and kind in ("So", "Sk", "Co", "Cn"):
            found.add("symbols")
    return found


def _recording(known: int, total: int) -> str:
    """Return the episodes that record success, in words."""
    return f"{known} episodes" if known == total else f"the {known} of {total} episodes that record it"


def _wording(counts: Counter[str]) -> str:
    """Describe instructions: how many are different, missing, or the same except for case, punctuation and spacing."""
    texts = [text for text in counts if text]
    missing = counts.total() - sum(counts[text] for text in texts)
    alike: dict[str, list[str]] = {}
    for text in texts:
        alike.setdefault(" ".join(re.findall(r"\w+", text.casefold())) or text, []).append(text)
    twins = [group for group in alike.values() if len(group) > 1]
    said = f"{len(texts)} different"
    said += f"; {missing} of {counts.total()} episodes have none" if missing else ""
    void = list(filter(says_nothing, texts))
    said += f"; {sum(counts[text] for text in void)} say no more than {' or '.join(map(repr, void))}" if void else ""
    if twins:
        pair = " and ".join(map(repr, twins[0][:2]))
        said += f"; {sum(map(len, twins))} differ only in case, punctuation or spacing, such as {pair}"
    return said


def sizes_in_words(sizes: Counter[tuple[int, int]]) -> str:
    """Return sizes (height, width) as `32x24` (width first), each with its number of episodes if there are several."""
    if len(sizes) == 1:
        return "".join(f"{width}x{height}" for height, width in sizes)
    return " and ".join(
        f"{width}x{height} ({count} of {sizes.total()} episodes)" for (height, width), count in sizes.most_common()
    )


def require_no_dialect(path: str | Path, dialect: str | None) -> None:
    """Raise a `BadInputError` if a dialect is given for Minari data."""
    require(dialect is None, "--dialect", repr(dialect), f"none for {path}: Minari has no dialects", "leave it out")


def further_columns(store: EpisodeStore) -> dict[str, Column]:
    """Return the recorded columns that are not read as a part of an episode."""
    main = {keys for ways in layout.ROLES.values() for keys in ways[0]} | {layout.SUCCESS}
    columns = store.columns if isinstance(store, Reader) else {}
    return {name: column for name, column in columns.items() if name not in main}


def unread_parts(store: Reader) -> tuple[str, ...]:
    """Return the parts of the data that are not read, each part once."""
    told = {text.partition(" (")[0] for text in store.left_out}
    return (*store.left_out, *(name for name in store.unread if name not in told))


def _depth(store: EpisodeStore, camera: str) -> str:
    """Return the name, size and unit of a depth camera."""
    image = store.depth(0, np.array([0]), camera)[0]
    unit = "millimetres" if image.dtype == np.uint16 else "metres"
    return f"{camera} {image.shape[1]}x{image.shape[0]}, {image.dtype} {unit}"


def _print_facts(console: Console, path: str | Path, facts: dict[str, str]) -> None:
    console.print(Text(str(path)), soft_wrap=True)
    table = Table(show_header=False)
    for name, fact in facts.items():
        table.add_row(name, Text(fact))
    console.print(table)


def splits_in_words(path: str | Path, store: EpisodeStore, dialect: str | None) -> dict[str, str]:
    """Return each split's episodes as "a:b" (a to b - 1), or their number for HDF5, whose splits are not contiguous."""
    if isinstance(store, LeRobotStore):
        return {name: f"{first}:{stop}" for name, (first, stop) in store.info.splits.items()}
    if isinstance(store, Hdf5Store):
        return {name: f"({len(episodes)} episodes)" for name, episodes in store.splits.items()}
    splits, first = {}, 0
    for name in split_names(path):
        stop = first + len(open_dataset(path, split=name, dialect=dialect).episodes)
        splits[name], first = f"{first}:{stop}", stop
    return splits
