"""`NStepSpec` + store + seed -> batches of transitions, drawn and read a whole batch at a time.

Batch k of a run is a pure function of (seed, k): all its anchors, negatives and shifts come from Philox streams keyed
on the two, and each rank reads its own rows. So workers and world sizes change nothing, and a run resumes at step k by
asking for step k.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from counterpoint.data.cameras import Cameras, camera_names
from counterpoint.data.episode import Array
from counterpoint.data.gather import Buffers, gather_frames
from counterpoint.data.loader import Steps, check_source
from counterpoint.data.masks import binary_mask, mask_camera, masked_cameras
from counterpoint.data.multitask import Task, action_mask, task_numbers
from counterpoint.data.nstep import NStepSpec
from counterpoint.data.nstep_draws import AnchorTable, Balance, draw_near
from counterpoint.data.sampling import sample_rng
from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError

__all__ = ["NStepLoader"]

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
            raise BadInputError(
                "balance", found=repr(balance), expected="'steps' or 'tasks'", mend="choose one of the two"
            )
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
            actions = _joined(store, "actions")
            self.action_dim = _padded_to(actions, action_dim)
            pad = self.action_dim - actions.shape[1]
            self._actions = np.pad(actions, [(0, 0), (0, pad)])
            self._mask = np.pad(action_mask(store, actions.shape[1]), [(0, 0), (0, pad)])
        self._rewards = _joined(store, "rewards") if spec.rewards else None
        self._state = _joined(store, "state") if spec.state else None
        first = int(self._table.episodes[0])
        self._picture = store.frames(first, np.zeros(1, np.int64), self.cameras[0]).shape[1:]
        self._masked = self._cameras_with_masks() if spec.masks else ()
        if min(self._picture[:2]) < spec.crop:
            raise BadInputError(
                "frames",
                found=f"{self._picture[0]} x {self._picture[1]}",
                expected=f"at least {spec.crop} x {spec.crop}, the side of a crop",
                mend="open the data at a larger size, or crop less",
            )
        self._buffers, self._of_one_camera = Buffers(), Buffers()

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
        frames = self._buffers.get((b, V, C * S, *self._picture))
        rows = frames.reshape(-1, C, S, *self._picture)
        if C == 1:
            gather_frames(self.store, episodes, steps, self.cameras[0], rows[:, 0])
            return frames
        # A camera's frames do not lie together in the batch: they go there by way of an array of their own.
        own = self._of_one_camera.get((b * V, S, *self._picture))
        for number, camera in enumerate(self.cameras):
            gather_frames(self.store, episodes, steps, camera, own)
            rows[:, number] = own
        return frames

    def _cameras_with_masks(self) -> tuple[bool, ...]:
        """Of each camera in order, whether the store has its mask."""
        masked = masked_cameras(self.store.cameras)
        if not set(masked) & set(self.cameras):
            raise BadInputError(
                "masks",
                found=f"cameras {list(self.store.cameras)}",
                expected=f"a mask of one of {list(self.cameras)} at least, such as {mask_camera(self.cameras[0])!r}",
                mend="record masks with the data, or make them with `counterpoint data masks`",
            )
        return tuple(camera in masked for camera in self.cameras)

    def _read_masks(self, episode: NDArray[np.int64], views: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Masks of the newest frame of every view."""
        b, V = views.shape
        masks = np.zeros((b, V, len(self.cameras), *self._picture[:2]), np.bool_)
        own = self._of_one_camera.get((b, V, *self._picture))
        for number, camera in enumerate(self.cameras):
            if self._masked[number]:
                gather_frames(self.store, episode, views, mask_camera(camera), own)
                masks[:, :, number] = binary_mask(own)
        return masks

    def _report_skipped(self) -> None:
        if not self.skipped:
            return
        wanted = f"at least {self.spec.min_length} steps, which this objective's sampling needs"
        if not len(self._table):
            raise BadInputError(
                "episodes",
                found=f"none longer than {self._lengths.max()} steps",
                expected=wanted,
                mend="use longer episodes, or fewer actions a sample",
            )
        _log.warning(
            "%d of %d episodes are left out, the first is episode %d with %d steps: expected %s",
            len(self.skipped),
            len(self._lengths),
            self.skipped[0],
            self._lengths[self.skipped[0]],
            wanted,
        )


def _joined(store: EpisodeStore, source: str) -> Array:
    """All episodes' actions, rewards or state, end to end."""
    parts: list[Array] = []
    for episode in range(len(store.episodes)):
        values: Array | None = getattr(store, source)(episode)
        if values is None:
            raise BadInputError(
                f"episode {episode}",
                found=f"no {source}",
                expected=f"{source}, which this objective needs",
                mend=f"use data with {source}, or another objective",
            )
        if parts and values.shape[1:] != parts[0].shape[1:]:
            raise BadInputError(
                f"episode {episode}",
                found=f"{source} of {values.shape[-1]} dimensions",
                expected=f"{parts[0].shape[-1]}, as in episode 0",
                mend="join domains that differ in a MultiTaskStore, one store a domain"
                if source == "actions"
                else f"keep to data of one robot, or ask for no {source}: it is not padded as actions are",
            )
        parts.append(values)
    return np.concatenate(parts).astype(np.float32, copy=False)


def _padded_to(actions: Array, wanted: int | None) -> int:
    own = actions.shape[1]
    if wanted is not None and wanted < own:
        raise BadInputError(
            "action_dim", found=str(wanted), expected=f"at least the data's {own}", mend=f"use {own} or more"
        )
    return own if wanted is None else wanted
