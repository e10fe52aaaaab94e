"""Spec + store + seed -> batches, in one global order that depends on nothing else.

Sample g of a run is a pure function of (seed, g): its epoch is g // N, its episode the one at place g % N of that
epoch's permutation, its draws come from a stream keyed on (seed, g, draw name). Batch k of rank r holds the samples
from (k W + r) b to (k W + r + 1) b, with b the batch size of a rank and W their number. So 0, 1 or 4 workers and 1, 2
or 4 ranks give the same global batches, and a run resumes at step k by asking for step k.

`NStepSpec` + store + seed -> batches of transitions, drawn and read a whole batch at a time.

Batch k of a run is a pure function of (seed, k): all its anchors, negatives and shifts come from Philox streams keyed
on the two, and each rank reads its own rows. So workers and world sizes change nothing, and a run resumes at step k by
asking for step k.

Batches of several loaders, side by side: a policy's, and those of an objective that trains along with it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, Sampler

from counterpoint.data.augment import draw_crop, draw_jitter
from counterpoint.data.draws import AnchorTable, Balance, draw_near
from counterpoint.data.episode import Array
from counterpoint.data.masks.robot import binary_mask, mask_camera, masked_cameras
from counterpoint.data.memory import OutputPool
from counterpoint.data.spec import Drawn, NStepSpec, Spec, epoch_order, sample_rng
from counterpoint.data.store import Cameras, EpisodeStore, Task, action_mask, camera_names, task_numbers
from counterpoint.errors import BadInputError

__all__ = ["JointLoader", "Loader", "NStepLoader", "Steps", "check_source"]


class Loader(Dataset[dict[str, Any]]):
    """Serves a `Spec` from a store, batch by batch.

    A batch holds the spec's keys as tensors [b, F, ...], each draw's `NAME.indices` (int64 [b, F]) and `NAME.valid`
    (bool [b, F]), the augmentation's numbers where there is one, and `instruction` (b strings), `instruction_id`
    (int64 [b]: equal text, equal number), `episode`, `sample` and `length` (int64 [b]).

    Args:
        store: Where episodes come from.
        spec: What each sample holds.
        batch_size: Samples a batch over all ranks; a multiple of `world_size`.
        seed: The run's seed.
        camera: Which camera; the store's first by default.
        rank: This process's number.
        world_size: How many processes share each batch.
        workers: Worker processes that prepare batches; 0 prepares them here.

    Raises:
        BadInputError: When an episode is too short for a draw, the batch does not divide, the camera is unknown, or the
            spec is one of transitions.
    """

    def __init__(
        self,
        store: EpisodeStore,
        spec: Spec | NStepSpec,
        *,
        batch_size: int,
        seed: int,
        camera: str | None = None,
        rank: int = 0,
        world_size: int = 1,
        workers: int = 0,
    ) -> None:
        if isinstance(spec, NStepSpec):
            raise BadInputError("spec", "transitions", "clips", "use NStepLoader, which serves transitions")
        _check_lengths(store, spec)
        check_source(store, batch_size, world_size, camera)
        self.store, self.spec, self.seed, self.camera = store, spec, seed, camera
        self.rank, self.workers = rank, workers
        self.world_size, self.local_size = world_size, batch_size // world_size
        texts = [info.instruction for info in store.episodes]
        self._ids = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        self._groups = [[e for e, t in enumerate(texts) if t == text] for text in self._ids]
        self._order = lru_cache(maxsize=2)(self._epoch)

    @property
    def epoch_size(self) -> int:
        """Samples an epoch: episodes, or distinct instructions where the spec asks for one clip of each."""
        return len(self._groups) if self.spec.unique_instructions else len(self.store.episodes)

    def batches(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """The batches of steps `start` to `stop - 1`, prepared by the workers, in order."""
        loader = DataLoader(
            self,
            batch_size=None,
            sampler=Steps(start, stop),
            num_workers=self.workers,
            prefetch_factor=4 if self.workers else None,
            pin_memory=torch.cuda.is_available(),
            # Without one of its own it would draw from the global stream, which a resumed run must find untouched.
            generator=torch.Generator(),
        )
        yield from loader

    def __getitem__(self, step: int) -> dict[str, Any]:
        """This rank's batch of one step."""
        first = (step * self.world_size + self.rank) * self.local_size
        return _collate([self.sample(g) for g in range(first, first + self.local_size)])

    def sample(self, g: int) -> dict[str, Any]:
        """Sample g of the run, before collation."""
        epoch, place = divmod(g, self.epoch_size)
        episode = int(self._order(epoch)[place])
        info = self.store.episodes[episode]
        drawn = {name: draw(info.length, sample_rng(self.seed, g, name)) for name, draw in self.spec.draws.items()}
        item: dict[str, Any] = {
            "instruction": info.instruction,
            "instruction_id": self._ids[info.instruction],
            "episode": episode,
            "sample": g,
            "length": info.length,
        }
        for name, steps in drawn.items():
            item[f"{name}.indices"], item[f"{name}.valid"] = steps.indices, steps.valid
        for name, key in self.spec.keys.items():
            item[name] = self._read(episode, key.source, drawn[key.draw])
            augment = self.spec.augment
            if augment is not None and key.source == "frames":
                rng = sample_rng(self.seed, g, f"{name} augment")
                item[f"{name}.crop"] = draw_crop(augment, rng)
                if augment.jitter:
                    item[f"{name}.jitter"] = draw_jitter(augment, len(drawn[key.draw].indices), rng)
        return item

    def _epoch(self, epoch: int) -> Array:
        if not self.spec.unique_instructions:
            return epoch_order(len(self.store.episodes), self.seed, epoch)
        rng = sample_rng(self.seed, epoch, "clip of each instruction")
        chosen = np.array([group[int(rng.integers(len(group)))] for group in self._groups])
        return np.asarray(chosen[epoch_order(len(chosen), self.seed, epoch)])

    def _read(self, episode: int, source: str, steps: Drawn) -> Array:
        if source == "frames":
            return self.store.frames(episode, steps.indices, self.camera)
        values: Array | None = getattr(self.store, source)(episode)
        if values is None:
            raise BadInputError(
                f"episode {episode}",
                f"no {source}",
                f"{source}, which this objective needs",
                f"use data with {source}, or another objective",
            )
        selected: Array = values[steps.indices]
        return selected

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the cached orders, which each worker makes anew."""
        return {name: value for name, value in self.__dict__.items() if name != "_order"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._order = lru_cache(maxsize=2)(self._epoch)


class Steps(Sampler[int]):
    """Steps in order: from `start` to `stop - 1`."""

    def __init__(self, start: int, stop: int) -> None:
        self._range = range(start, stop)

    def __iter__(self) -> Iterator[int]:
        return iter(self._range)

    def __len__(self) -> int:
        return len(self._range)


def check_source(store: EpisodeStore, batch_size: int, world_size: int, camera: str | None) -> None:
    """Refuse a batch that does not divide, and a camera the store has not.

    Raises:
        BadInputError: In either case.
    """
    if batch_size % world_size or batch_size < 1:
        raise BadInputError(
            "batch_size",
            f"{batch_size} over {world_size} processes",
            "a positive multiple of the number of processes",
            f"use {max(1, batch_size // world_size) * world_size}",
        )
    if camera is not None and camera not in store.cameras:
        raise BadInputError("camera", repr(camera), f"one of {list(store.cameras)}", "name one of these")


def _collate(items: list[dict[str, Any]]) -> dict[str, Any]:
    batch: dict[str, Any] = {}
    for name in items[0]:
        values = [item[name] for item in items]
        if isinstance(values[0], str):
            batch[name] = values
        elif isinstance(values[0], int):
            batch[name] = torch.tensor(values)
        else:
            batch[name] = torch.from_numpy(np.stack(values))
    return batch


def _check_lengths(store: EpisodeStore, spec: Spec) -> None:
    short = [e for e, info in enumerate(store.episodes) if info.length < spec.min_length]
    if short:
        raise BadInputError(
            f"episode {short[0]}" + (f" and {len(short) - 1} more" if len(short) > 1 else ""),
            f"{store.episodes[short[0]].length} frames",
            f"at least {spec.min_length}, which this objective's sampling needs",
            "leave short episodes out (data.min_length), or use fewer frames a clip",
        )


_log = logging.getLogger(__name__)


class NStepLoader(Dataset[dict[str, Any]]):
    """Serves an `NStepSpec` from a store, batch by batch.

    A batch of b samples (a rank's share) holds

    - `frames` uint8 [b, V, S, H, W, 3], one view an offset, negatives appended; with C cameras [b, V, C S, H, W, 3],
      the S frames of the first camera first; `frames_valid` bool [b, V], False where an offset lay before the first
      step or a negative fills a gap; `near_valid` bool [b, N];
    - `shift` int64 [b, V, 2], (x, y) in 0..2 pad, where the spec asks for random shifts: one for all frames of a view,
      whatever the camera;
    - `crop` int64 [b, V, C, 2], (x, y) of a window's top left corner, where the spec asks for crops;
    - `masks` bool [b, V, C, H, W], the robot in each picture, where the spec asks for them: all False of a camera
      without masks;
    - `actions` float32 [b, K, A], zeros beyond a task's own dimensions, with `action_mask` bool [b, A], and
      `actions_valid` bool [b, K], False where the window left the episode;
    - `rewards` float32 [b, K] and `state` float32 [b, offsets, P], where the spec asks for them;
    - `task` int64 [b], the number of the distinct instruction (of the domain), and `instruction`, b strings;
    - `episode`, `step` (the anchor's) and `sample`, int64 [b].

    Args:
        store: Where episodes come from; a `MultiTaskStore` brings masks of its own.
        spec: What each sample holds.
        batch_size: Samples a batch over all ranks; a multiple of `world_size`.
        seed: The run's seed.
        camera: Which camera, or several in order; the store's first by default.
        rank: This process's number.
        world_size: How many processes share each batch.
        workers: Worker processes that prepare batches; 0 prepares them here.
        balance: `steps` draws every anchor alike, `tasks` every task alike and then its anchors.
        action_dim: A, where it shall be more than the data's own; the rest is masked.
        known_tasks: Tasks that have a number already (`task_table` of the training episodes); others come after.

    Attributes:
        skipped: Episodes too short for a single anchor; they are left out, with one warning.

    Raises:
        BadInputError: When no episode is long enough, something asked for is missing or of uneven dimensions, the
            batch does not divide, or a camera or the balance is unknown.
    """

    def __init__(
        self,
        store: EpisodeStore,
        spec: NStepSpec,
        *,
        batch_size: int,
        seed: int,
        camera: Cameras = None,
        rank: int = 0,
        world_size: int = 1,
        workers: int = 0,
        balance: Balance = "steps",
        action_dim: int | None = None,
        known_tasks: Mapping[Task, int] | None = None,
    ) -> None:
        check_source(store, batch_size, world_size, None)
        if balance not in get_args(Balance):
            raise BadInputError("balance", repr(balance), "'steps' or 'tasks'", "choose one of the two")
        self.store, self.spec, self.seed, self.balance = store, spec, seed, balance
        self.cameras = camera_names(camera, store.cameras)
        self.rank, self.workers = rank, workers
        self.batch_size, self.local_size = batch_size, batch_size // world_size
        self._lengths = np.array([info.length for info in store.episodes], np.int64)
        self._starts = np.concatenate([[0], np.cumsum(self._lengths)])
        self.tasks = task_numbers(store, known_tasks)
        self._table = AnchorTable.of(spec, self._lengths, self.tasks)
        self.skipped = tuple(np.flatnonzero(spec.anchors(self._lengths) == 0).tolist())
        self._report_skipped()
        if spec.actions:
            actions = store.column("actions").astype(np.float32, copy=False)
            self.action_dim = _padded_to(actions, action_dim)
            pad = self.action_dim - actions.shape[1]
            self._actions = np.pad(actions, [(0, 0), (0, pad)])
            self._mask = np.pad(action_mask(store, actions.shape[1]), [(0, 0), (0, pad)])
        self._rewards = store.column("rewards").astype(np.float32, copy=False) if spec.rewards else None
        self._state = store.column("state").astype(np.float32, copy=False) if spec.state else None
        first = int(self._table.episodes[0])
        self._picture = store.frames(first, np.zeros(1, np.int64), self.cameras[0]).shape[1:]
        self._masked = self._cameras_with_masks() if spec.masks else ()
        if min(self._picture[:2]) < spec.crop:
            raise BadInputError(
                "frames",
                f"{self._picture[0]} x {self._picture[1]}",
                f"at least {spec.crop} x {spec.crop}, the side of a crop",
                "open the data at a larger size, or crop less",
            )
        self._buffers, self._of_one_camera = OutputPool(), OutputPool()

    @property
    def epoch_size(self) -> int:
        """Anchors of all usable episodes."""
        return len(self._table)

    def batches(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """The batches of steps `start` to `stop - 1`, prepared by the workers, in order."""
        if not self.workers and not torch.cuda.is_available():
            yield from map(self.__getitem__, range(start, stop))
            return
        yield from DataLoader(
            self,
            batch_size=None,
            sampler=Steps(start, stop),
            num_workers=self.workers,
            prefetch_factor=4 if self.workers else None,
            pin_memory=torch.cuda.is_available(),
            # Without one of its own it would draw from the global stream, which a resumed run must find untouched.
            generator=torch.Generator(),
        )

    def __getitem__(self, step: int) -> dict[str, Any]:
        """This rank's batch of one step."""
        spec, B = self.spec, self.batch_size
        rows = slice(self.rank * self.local_size, (self.rank + 1) * self.local_size)
        episode, anchor = self._table.draw(B, self.balance, self._rng(step, "anchors"))
        batch: dict[str, Any] = {}
        if spec.shift:
            shifts = 1 if spec.shift_together else spec.views
            drawn = self._rng(step, "shift").integers(2 * spec.shift + 1, size=(B, shifts, 2))
            batch["shift"] = np.broadcast_to(drawn[rows], (len(drawn[rows]), spec.views, 2)).copy()
        if spec.crop:
            room = np.array(self._picture[1::-1]) - spec.crop + 1  # corners there are, along x and y
            corners = self._rng(step, "crop").integers(room, size=(B, spec.views, len(self.cameras), 2))
            batch["crop"] = corners[rows]
        wanted = anchor[:, None] + np.array(spec.offsets)
        views, valid = np.maximum(wanted, 0), wanted >= 0
        if spec.near is not None:
            near, near_valid = draw_near(
                spec.near, anchor, views[:, -1], self._lengths[episode], self._rng(step, "near")
            )
            views, valid = np.concatenate([views, near], 1), np.concatenate([valid, near_valid], 1)
            batch["near_valid"] = near_valid[rows]
        episode, anchor, views = episode[rows], anchor[rows], views[rows]
        batch["frames_valid"] = valid[rows]
        batch["frames"] = self._read(episode, views)
        if spec.masks:
            batch["masks"] = self._read_masks(episode, views)
        first = self._starts[episode]
        own = (anchor + spec.first_action)[:, None] + np.arange(spec.actions)
        inside = np.clip(own, 0, self._lengths[episode][:, None] - 1)
        following = first[:, None] + inside
        if spec.actions:
            batch["actions"], batch["action_mask"] = self._actions[following], self._mask[episode]
            batch["actions_valid"] = own == inside
        if self._rewards is not None:
            batch["rewards"] = self._rewards[following]
        if self._state is not None:
            batch["state"] = self._state[first[:, None] + views[:, : len(spec.offsets)]]
        batch["task"] = self.tasks[episode]
        batch["episode"], batch["step"] = episode, anchor
        batch["sample"] = step * B + np.arange(B)[rows]
        tensors: dict[str, Any] = {name: torch.from_numpy(value) for name, value in batch.items()}
        return {**tensors, "instruction": [self.store.episodes[e].instruction for e in episode]}

    def _rng(self, step: int, name: str) -> np.random.Generator:
        return sample_rng(self.seed, step, f"transitions: {name}")

    def _read(self, episode: NDArray[np.int64], views: NDArray[np.int64]) -> NDArray[np.uint8]:
        S, C, (b, V) = self.spec.stack, len(self.cameras), views.shape
        steps = np.maximum(views[..., None] - np.arange(S - 1, -1, -1), 0).reshape(-1, S)
        episodes = np.repeat(episode, V)
        frames = self._buffers.empty((b, V, C * S, *self._picture))
        rows = frames.reshape(-1, C, S, *self._picture)
        if C == 1:
            self.store.gather("frames", episodes, steps, camera=self.cameras[0], out=rows[:, 0])
            return frames
        # A camera's frames do not lie together in the batch: they go there by way of an array of their own.
        own = self._of_one_camera.empty((b * V, S, *self._picture))
        for number, camera in enumerate(self.cameras):
            self.store.gather("frames", episodes, steps, camera=camera, out=own)
            rows[:, number] = own
        return frames

    def _cameras_with_masks(self) -> tuple[bool, ...]:
        """Of each camera in order, whether the store has its mask."""
        masked = masked_cameras(self.store.cameras)
        if not set(masked) & set(self.cameras):
            raise BadInputError(
                "masks",
                f"cameras {list(self.store.cameras)}",
                f"a mask of one of {list(self.cameras)} at least, such as {mask_camera(self.cameras[0])!r}",
                "record masks with the data, or make them with `counterpoint data masks`",
            )
        return tuple(camera in masked for camera in self.cameras)

    def _read_masks(self, episode: NDArray[np.int64], views: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Masks of the newest frame of every view."""
        b, V = views.shape
        masks = np.zeros((b, V, len(self.cameras), *self._picture[:2]), np.bool_)
        own = self._of_one_camera.empty((b, V, *self._picture))
        for number, camera in enumerate(self.cameras):
            if self._masked[number]:
                self.store.gather("frames", episode, views, camera=mask_camera(camera), out=own)
                masks[:, :, number] = binary_mask(own)
        return masks

    def _report_skipped(self) -> None:
        if not self.skipped:
            return
        wanted = f"at least {self.spec.min_length} steps, which this objective's sampling needs"
        if not len(self._table):
            raise BadInputError(
                "episodes",
                f"none longer than {self._lengths.max()} steps",
                wanted,
                "use longer episodes, or fewer actions a sample",
            )
        _log.warning(
            "%d of %d episodes are left out, the first is episode %d with %d steps: expected %s",
            len(self.skipped),
            len(self._lengths),
            self.skipped[0],
            self._lengths[self.skipped[0]],
            wanted,
        )


def _padded_to(actions: Array, wanted: int | None) -> int:
    own = actions.shape[1]
    if wanted is not None and wanted < own:
        raise BadInputError("action_dim", str(wanted), f"at least the data's {own}", f"use {own} or more")
    return own if wanted is None else wanted


class JointLoader:
    """Serves the batches of one loader with those of others beside them, under their names.

    Key `frames` of the loader `curl` becomes `curl.frames`. Each loader draws for itself, so that a term more or less
    leaves the other batches as they are.

    Args:
        main: Whose keys stay as they are, and whose passes count.
        others: Name -> loader, of the same batch size.
    """

    def __init__(self, main: NStepLoader, others: Mapping[str, NStepLoader]) -> None:
        self._main, self._others = main, dict(others)

    @property
    def epoch_size(self) -> int:
        """Samples of one pass of the main loader."""
        return self._main.epoch_size

    def batches(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """Batches number `start` to `stop - 1`."""
        streams = [loader.batches(start, stop) for loader in self._others.values()]
        for batch, *beside in zip(self._main.batches(start, stop), *streams, strict=True):
            for name, part in zip(self._others, beside, strict=True):
                batch |= {f"{name}.{key}": value for key, value in part.items()}
            yield batch
