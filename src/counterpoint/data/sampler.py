"""The sampler of batches: the batch of every step depends only on a bound spec, a store and a seed.

A whole batch is drawn at once from streams keyed on (seed, step, name), and each rank reads its own rows. So 0, 1 or 4
workers, and 1, 2 or 4 ranks, give the same global batches, and a run resumes at step k by reading step k.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from counterpoint.data.augment import ViewShape
from counterpoint.data.draws import Draw, Table, sample_rng
from counterpoint.data.episode import Array, EpisodeInfo
from counterpoint.data.robot_masks import binary_mask, mask_camera, masked_cameras
from counterpoint.data.spec import BoundSpec, Read
from counterpoint.data.store import EpisodeStore, OutputPool
from counterpoint.data.store_views import action_mask, task_numbers
from counterpoint.errors import require

Integers = NDArray[np.int64]


class Sampler(Dataset[dict[str, Any]]):
    """A data set of batches: for each step, it reads from a store what a spec asks for.

    A batch of b samples (a rank's share) holds the spec's reads and transforms. The other keys depend on the index:

    - clips: `frames` uint8 [b, F, H, W, 3], or `features` float32 [b, F, A, E] and the row of each sample in
      `features.row`; `state` float32 [b, F, P]; `clip.indices` int64 and `clip.valid` bool [b, F], False where a short
      clip is padded; `instruction` (b strings), `instruction_id` (equal for equal text), `episode`, `sample` and
      `length`, int64 [b];
    - anchors: `frames` uint8 [b, V, C S, H, W, 3], one view per offset, negatives appended; `frames_valid` bool
      [b, V], False where an offset lies before the first step or a negative only fills a gap; `near_valid` bool [b, N];
      `masks` bool [b, V, C, H, W], all False for a camera without masks; `actions` float32 [b, K, A], zeros beyond a
      task's own dimensions, with `action_mask` bool [b, A] and `actions_valid` bool [b, K]; `rewards` [b, K] and
      `state` [b, offsets, P] float32; `instruction` and its number `task`; the numbers `episode`, `step` (of the
      anchor) and `sample`;
    - transitions: the keys of `counterpoint.data.spec.TRANSITION_READS`.

    Args:
        store: The episodes. If the store grows, each step draws from the episodes that are in the store at that time.
        bound: The spec, bound to the training data.
        batch_size: B, samples per batch over all ranks; a multiple of `world_size`.
        seed: The run's seed.
        rank: This process's number, from 0.
        world_size: Number of processes that share each batch.
        workers: Worker processes that prepare batches; 0 prepares them in this process.

    Raises:
        BadInputError: When the batch cannot be divided among the processes, episodes are too short, or a source is
            missing.
    """

    def __init__(
        self,
        store: EpisodeStore,
        bound: BoundSpec,
        *,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        workers: int = 0,
    ) -> None:
        good, near = batch_size > 0 and batch_size % world_size == 0, max(1, batch_size // world_size) * world_size
        found, expected = f"{batch_size} over {world_size} processes", "a positive multiple of the number of processes"
        require(good, "batch_size", found, expected, f"use {near}")
        self.store, self.bound, self.seed, self.batch_size, self.workers = store, bound, seed, batch_size, workers
        self._rows = slice(rank * batch_size // world_size, (rank + 1) * batch_size // world_size)
        self._wanted = frozenset(read.at for read in bound.spec.reads.values())
        self._pool, self._version = OutputPool(), store.version
        self._table = self._new_table()
        shared: dict[str, Any] = {"batch_size": batch_size, "rank": rank, "world_size": world_size}
        self._beside = {
            # Another seed, since drawing the same anchors twice would make a batch less diverse.
            name: Sampler(store, replace(bound, spec=other), seed=seed + 1, **shared)
            for name, other in bound.spec.beside.items()
        }
        self._image: tuple[int, ...] = (0, 0, 3)
        if "frames" in bound.spec.reads:
            zero = np.zeros(1, np.int64)
            self._image = store.gather("frames", zero, zero, camera=bound.cameras[0]).shape[1:]
        if "actions" in bound.spec.reads:
            own, width = store.column("actions").shape[1], bound.action_dim or 0
            require(width >= own, "action_dim", width, f"at least the data's {own}", f"use {own} or more")
            self._mask = np.pad(action_mask(store, own), [(0, 0), (0, width - own)])
        if "masks" in bound.spec.reads:
            have, mask = set(masked_cameras(store.cameras)) & set(bound.cameras), mask_camera(bound.cameras[0])
            hint = "record masks with the data, or make them with `counterpoint data masks`"
            require(have, "masks", f"cameras {list(store.cameras)}", f"one such as {mask!r}", hint)
        for transform in bound.spec.transforms.values():  # refuses images that are too small
            transform.draw(ViewShape(1, 1, len(bound.cameras), *self._image[:2]), sample_rng(seed, 0, "check"))
        vectors = {"rewards", "state", "timestamps", "features"}
        for source in vectors & {read.source for read in bound.spec.reads.values()}:
            store.column(source)

    @property
    def table(self) -> Table:
        """The table of the samples that can be drawn now."""
        if self.store.version != self._version:
            self._table, self._version = self._new_table(), self.store.version
        return self._table

    @property
    def epoch_size(self) -> int:
        """Number of samples per epoch: clips (or distinct instructions), anchors of usable episodes, or transitions."""
        return len(self.table)

    def batches(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """Yield the batches of steps `start` to `stop - 1`, prepared by the workers, in order."""
        if not self.workers and not torch.cuda.is_available():
            yield from map(self.__getitem__, range(start, stop))
            return
        yield from DataLoader(
            self,
            batch_size=None,
            sampler=range(start, stop),
            num_workers=self.workers,
            prefetch_factor=4 if self.workers else None,
            pin_memory=torch.cuda.is_available(),
            # Without its own generator the loader would draw from the global stream, which must not change if a run is
            # to be resumed.
            generator=torch.Generator(),
        )

    def __getitem__(self, step: int) -> dict[str, Any]:
        """Return this rank's batch of one step."""
        spec, rows = self.bound.spec, self._rows
        draws, values = self.table.draw(self.batch_size, self.seed, step, self._wanted)
        if spec.transforms:
            size = draws[next(iter(spec.reads.values())).at].steps.shape
            views = ViewShape(size[0], size[1], len(self.bound.cameras), *self._image[:2])
            for key, transform in spec.transforms.items():
                values[key] = transform.draw(views, sample_rng(self.seed, step, f"transitions: {key}"))
        if "actions" in spec.reads:
            values["action_mask"] = self._mask[draws["actions"].episode]
        values = {key: value[rows] for key, value in values.items()}
        for key, read in spec.reads.items():
            draw = draws[read.at]
            values[key] = self._read(read, Draw(draw.episode[rows], draw.steps[rows]))
        batch: dict[str, Any] = {key: torch.from_numpy(value) for key, value in values.items()}
        if "episode" in values:
            episodes = [self.store.episodes[episode] for episode in values["episode"]]
            batch["instruction"] = [info.instruction for info in episodes]
            if any(info.wordings for info in episodes):
                chance = sample_rng(self.seed, step, "wording").random(self.batch_size)[rows]
                batch["instruction"] = list(map(_drawn, episodes, chance))
        for name, other in self._beside.items():
            batch |= {f"{name}.{key}": value for key, value in other[step].items()}
        return batch

    def _new_table(self) -> Table:
        tasks = task_numbers(self.store, self.bound.tasks) if self.bound.tasks else np.zeros(0, np.int64)
        return self.bound.spec.index.table(self.store.lengths, tasks)

    def _read(self, read: Read, draw: Draw) -> Array:
        if read.source == "frames":
            return self._frames(read.stack, draw)
        if read.source == "masks":
            return self._masks(draw)
        values = self.store.gather(read.source, draw.episode, draw.steps)
        more = (self.bound.action_dim or 0) - values.shape[-1] if read.source == "actions" else 0
        return np.pad(values, [(0, 0), (0, 0), (0, more)]) if more > 0 else values

    def _frames(self, stack: int, draw: Draw) -> Array:
        cameras, steps = self.bound.cameras, draw.steps
        if stack:
            steps = np.maximum(steps[..., None] - np.arange(stack - 1, -1, -1), 0)
        if len(cameras) == 1:
            out = self._pool.empty((*steps.shape, *self._image))
            return self.store.gather("frames", draw.episode, steps, camera=cameras[0], out=out)
        require(stack, "camera", f"{len(cameras)} cameras", "one, of which clips are made", "name one camera")
        b, V, S = steps.shape
        frames = self._pool.empty((b, V, len(cameras), S, *self._image))
        # A camera's frames are not contiguous in the batch: they are read into an array of their own and then copied.
        own = self._pool.empty((b, V, S, *self._image))
        for number, camera in enumerate(cameras):
            frames[:, :, number] = self.store.gather("frames", draw.episode, steps, camera=camera, out=own)
        return frames.reshape(b, V, len(cameras) * S, *self._image)

    def _masks(self, draw: Draw) -> NDArray[np.bool_]:
        masks = np.zeros((*draw.steps.shape, len(self.bound.cameras), *self._image[:2]), np.bool_)
        own = self._pool.empty((*draw.steps.shape, *self._image))
        for number, camera in enumerate(self.bound.cameras):
            if mask_camera(camera) in self.store.cameras:
                self.store.gather("frames", draw.episode, draw.steps, camera=mask_camera(camera), out=own)
                masks[:, :, number] = binary_mask(own)
        return masks


def _drawn(info: EpisodeInfo, part: float) -> str:
    """Return one of an episode's texts, given a uniform number in [0, 1)."""
    return info.wordings[int(part * len(info.wordings))] if info.wordings else info.instruction
