"""Spec + store + seed -> batches, in one global order that depends on nothing else.

Sample g of a run is a pure function of (seed, g): its epoch is g // N, its episode the one at place g % N of that
epoch's permutation, its draws come from a stream keyed on (seed, g, draw name). Batch k of rank r holds the samples
from (k W + r) b to (k W + r + 1) b, with b the batch size of a rank and W their number. So 0, 1 or 4 workers and 1, 2
or 4 ranks give the same global batches, and a run resumes at step k by asking for step k.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from counterpoint.data.augment import draw_crop, draw_jitter
from counterpoint.data.episode import Array
from counterpoint.data.nstep import NStepSpec
from counterpoint.data.sampling import Drawn, Spec, epoch_order, sample_rng
from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError

__all__ = ["Loader", "Steps", "check_source"]


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
            raise BadInputError(
                "spec",
                found="transitions",
                expected="clips",
                mend="use NStepLoader, which serves transitions",
            )
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
        drawn = {
            name: draw(info.length, sample_rng(self.seed, g, name)) for name, draw in self.spec.draws.items()
        }
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
                found=f"no {source}",
                expected=f"{source}, which this objective needs",
                mend=f"use data with {source}, or another objective",
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
            found=f"{batch_size} over {world_size} processes",
            expected="a positive multiple of the number of processes",
            mend=f"use {max(1, batch_size // world_size) * world_size}",
        )
    if camera is not None and camera not in store.cameras:
        raise BadInputError(
            "camera",
            found=repr(camera),
            expected=f"one of {list(store.cameras)}",
            mend="name one of these",
        )


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
            found=f"{store.episodes[short[0]].length} frames",
            expected=f"at least {spec.min_length}, which this objective's sampling needs",
            mend="leave short episodes out (data.min_length), or use fewer frames a clip",
        )
