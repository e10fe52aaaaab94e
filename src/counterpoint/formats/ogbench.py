"""OGBench's data sets (Park et al., ICLR 2025): `NAME.npz`, and next to it `NAME-val.npz`.

The rows of all episodes follow one another; a row is a state and the action taken in that state::

    observations   [N, O]    float, or images: uint8 [N, H, W, C]
    actions        [N, A]    float, in [-1, 1], or numbers of discrete actions: int [N]
    terminals      [N]       bool, true in the last row of each episode
    qpos, qvel     [N, _]    the simulator's state (not read)

The state after the last row's action was not recorded, so an episode of T + 1 rows has T transitions. There are no
rewards and no commanded goals: a goal is a whole observation. `OGBenchStore` reads states and continuous actions;
`load_ogbench`, which training uses, reads images (`visual-*`, `powderworld-*`) and discrete actions too.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from counterpoint.data.episode import Array, EpisodeInfo, GoalEpisode, Spaces
from counterpoint.errors import require
from counterpoint.formats.base import OnBadRow, Reader, raise_error, read_each, require_split
from counterpoint.formats.boundary import array_headers, load_arrays, parsing
from counterpoint.formats.minari.reader import filled_buffer
from counterpoint.formats.recognition import OGBENCH_ARRAYS

if TYPE_CHECKING:
    from counterpoint.data.replay import ReplayBuffer

_FPS = 10.0  # the files record no rate; OGBench's mazes have ten steps a second
# Bytes of a file's three arrays: 4 million states and actions of a humanoid have 1.5 GB, a million images of 64 x 64
# pixels 12 GB.
_LARGEST, _LARGEST_IMAGES = 2 << 30, 16 << 30
_EXPECTED = "an .npz of OGBench"
_HINT = "download it again"
_SLACK = 1e-5  # rounding may move an action out of the box by this much


def ogbench_files(path: Path) -> dict[str, Path]:
    """Return the files of a data set by split: `train`, and `val` if that file exists."""
    val = path.with_name(f"{path.stem}-val.npz")
    return {"train": path} | ({"val": val} if val.is_file() else {})


class OGBenchStore(Reader):
    """Episodes of an OGBench data set: states and actions, no camera.

    Args:
        path: The training episodes' file, `NAME.npz`.
        split: `train` or `val`; by default all episodes, `train` first.
        on_bad_row: Called with the error of each file that cannot be used and is left out; by default the first error
            is raised.

    Raises:
        BadInputError: When a file is damaged, holds images, lacks an array, or its lengths disagree.
    """

    cameras = ()
    rate_recorded = False
    left_out = ("qpos and qvel, the simulator's states",)

    def __init__(self, path: str | Path, *, split: str | None = None, on_bad_row: OnBadRow = raise_error) -> None:
        files = ogbench_files(Path(path))
        require_split(path, split, files)
        wanted = [file for name, file in files.items() if split in (None, name)]
        read = list(read_each(wanted, _episodes, on_bad_row))
        self.files = [file for file, _ in read]
        self._arrays = [arrays for _, (arrays, _) in read]
        self._rows = [(number, rows) for number, (_, (_, each)) in enumerate(read) for rows in each]
        self.names = [f"{file}, episode {episode}" for file, (_, each) in read for episode in range(len(each))]
        self.episodes = tuple(EpisodeInfo(rows.stop - rows.start, "", _FPS) for _, rows in self._rows)

    def vectors(self, episode: int, name: str) -> Array | None:
        """Return the states or the actions of an episode, [T, n]."""
        number, rows = self._rows[episode]
        arrays = {"state": "observations", "actions": "actions"}
        return self._arrays[number][arrays[name]][rows] if name in arrays else None


def load_ogbench(path: Path) -> ReplayBuffer:
    """Read the training episodes of a data set into a replay buffer; goals are whole observations, rewards are zero.

    The number of discrete actions is one more than the largest in the data.

    Raises:
        BadInputError: See `OGBenchStore`; images and discrete actions are read.
    """
    arrays, rows = _episodes(path, images=True)
    seen, actions = arrays["observations"], arrays["actions"]
    discrete = actions.ndim == 1
    count = int(actions.max()) + 1 if discrete else actions.shape[1]
    spaces = Spaces(observation=seen.shape[1:], goal=seen.shape[1:], action=count, discrete=discrete)
    bounds = None if discrete else np.repeat(np.array([[-1], [1]], np.float32), count, axis=1)
    episodes = (
        GoalEpisode(seen[each], seen[each], seen[each][-1], actions[each][:-1], np.zeros(each.stop - each.start - 1))
        for each in rows
    )
    return filled_buffer(path, spaces, [each.stop - each.start - 1 for each in rows], episodes, bounds, True)


def _episodes(file: Path, *, images: bool = False) -> tuple[dict[str, Array], list[slice]]:
    """Return the observations and actions of a file, and the range of rows of each episode.

    Args:
        file: The file.
        images: Accept images and discrete actions too.
    """
    with parsing(file, _EXPECTED, _HINT):
        headers = array_headers(file)
        missing = [name for name in OGBENCH_ARRAYS if name not in headers]
        require(not missing, file, f"no {', '.join(missing)}", f"the arrays {', '.join(OGBENCH_ARRAYS)}", _HINT)
        others = {"observations": ("uint8 [N, H, W, C]", 4, "u"), "actions": ("int [N]", 1, "iu")} if images else {}
        for name in OGBENCH_ARRAYS:
            shape, kind = headers[name]
            wanted = "[N]" if name == "terminals" else "float [N, n]"
            good = len(shape) == 1 if name == "terminals" else len(shape) == 2 and kind.kind == "f"
            hint = "train an agent on it: the commands for data read states and continuous actions"
            if name in others:
                other, dimensions, kinds = others[name]
                good = good or (len(shape) == dimensions and kind.kind in kinds)
                wanted, hint = f"{wanted} or {other}", _HINT
            require(good, f"{file}, {name}", f"{kind} {shape}", wanted, hint)
        arrays = load_arrays(file, OGBENCH_ARRAYS, _LARGEST_IMAGES if images else _LARGEST)
    lengths = {name: len(values) for name, values in arrays.items()}
    require(len(set(lengths.values())) == 1, file, f"lengths that disagree: {lengths}", "one row a step", _HINT)
    ends = np.flatnonzero(arrays["terminals"]) + 1
    whole = len(ends) > 0 and ends[-1] == lengths["terminals"]
    require(whole, f"{file}, terminals", "a last episode without an end", "a last row that is terminal", _HINT)
    starts = np.concatenate([[0], ends[:-1]])
    short = f"an episode of one row, from row {starts[np.argmin(ends - starts)]} on"
    require((ends - starts).min() >= 2, f"{file}, terminals", short, "two rows at least, a transition", _HINT)
    least, most = arrays["actions"].min(), arrays["actions"].max()
    discrete = arrays["actions"].ndim == 1
    inside = least >= 0 if discrete else least >= -1 - _SLACK and most <= 1 + _SLACK
    found = "a value that is not finite" if np.isnan(least + most) else f"values in [{least:.3g}, {most:.3g}]"
    require(inside, f"{file}, actions", found, "numbers from 0 on" if discrete else "values in [-1, 1]", _HINT)
    return arrays, [slice(int(start), int(end)) for start, end in zip(starts, ends, strict=True)]
