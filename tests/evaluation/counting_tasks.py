"""Tasks that count their steps, and ones that fail; processes import this file alone, which needs no torch."""

from __future__ import annotations

import os

import numpy as np

from counterpoint.data.episode import Array
from counterpoint.envs.base import CameraEnv
from counterpoint.errors import BadInputError, MissingExtraError


class CountingTask(CameraEnv):
    """Shows the seed and the step; solved at step `seed % 7 + 2`, over early at step 4 for seeds of 100 and more."""

    closed = 0

    def __init__(self) -> None:
        super().__init__(
            "stub/count", "count", cameras=("front",), size=2, action_dim=1, state_dim=2, control_hz=10, horizon=6
        )

    def _begin(self, seed: int) -> None:
        self._seed, self._step = seed, 0

    def _images(self) -> dict[str, Array]:
        return {"front": np.full((2, 2, 3), (self._seed % 16) * 16 + self._step, np.uint8)}

    def state(self) -> Array:
        return np.array([self._seed, self._step], np.float32)

    def _advance(self, action: Array) -> tuple[float, bool, bool]:
        self._step += 1
        solved = self._step == self._seed % 7 + 2
        return float(action[0]), solved, self._seed >= 100 and self._step == 4

    def close(self) -> None:
        type(self).closed += 1


class DyingTask(CountingTask):
    """Ends its process, as a simulator that crashes."""

    def _advance(self, action: Array) -> tuple[float, bool, bool]:
        os._exit(3)


class BrokenTask(CountingTask):
    """Refuses its actions."""

    def _advance(self, action: Array) -> tuple[float, bool, bool]:
        raise BadInputError("action", "any", "none", "rest")


class FragileTask(CountingTask):
    """Raises in the episodes of some seeds: at the third step, or before the first."""

    def _begin(self, seed: int) -> None:
        super()._begin(seed)
        if seed == 7:
            raise FloatingPointError("unstable from the start")

    def _advance(self, action: Array) -> tuple[float, bool, bool]:
        if self._seed == 13 and self._step == 2:
            raise FloatingPointError("unstable")
        return super()._advance(action)


class AbsentTask(CountingTask):
    """Cannot be built."""

    def __init__(self) -> None:
        raise BadInputError("camera", "nobody", "somebody", "look")


class UninstalledTask(CountingTask):
    """Lacks its simulator."""

    def __init__(self) -> None:
        raise MissingExtraError("simulator", "sim")
