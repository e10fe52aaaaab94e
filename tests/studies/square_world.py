"""A square on a plane that actions push, as a control task and as recorded episodes: learnt in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from counterpoint.data.cache import cached
from counterpoint.data.episode import Array, Episode
from counterpoint.data.store import MemoryStore
from counterpoint.envs.base import CameraEnv

__all__ = ["SIZE", "SquareTask", "make_square", "record_squares"]

SIZE = 24
SIDE = 5
GOALS = {"left": (4.0, 12.0), "right": (20.0, 12.0), "top": (12.0, 4.0), "low": (12.0, 20.0)}
SPEED = 2.5
NEAR = 3.0


class SquareTask(CameraEnv):
    """Push the square to a place that the task's name says."""

    def __init__(self, name: str, steps: int | None = None) -> None:
        super().__init__(
            name,
            f"push {name.rpartition('/')[2]}",
            cameras=("front",),
            size=SIZE,
            action_dim=2,
            state_dim=2,
            control_hz=10,
            horizon=steps or 10,
        )
        self._goal = np.array(GOALS[name.rpartition("/")[2]])
        self.closed = False

    def _begin(self, seed: int) -> None:
        self._place = np.random.default_rng(seed).uniform(SIDE, SIZE - SIDE, 2)

    def _images(self) -> dict[str, Array]:
        frame = np.full((SIZE, SIZE, 3), 40, np.uint8)
        x, y = np.round(self._place - SIDE / 2).astype(int)
        frame[max(0, y) : y + SIDE, max(0, x) : x + SIDE] = (230, 180, 60)
        return {"front": frame}

    def state(self) -> Array:
        return self._place.astype(np.float32)

    def expert(self) -> Array:
        return np.clip((self._goal - self._place) / SPEED, -1, 1).astype(np.float32)

    def _advance(self, action: Array) -> tuple[float, bool, bool]:
        self._place = np.clip(self._place + SPEED * np.clip(action, -1, 1), 2, SIZE - 2)
        far = float(np.abs(self._place - self._goal).max())
        return SIZE - far, far < NEAR, False

    def close(self) -> None:
        self.closed = True


def make_square(name: str, *, steps: int | None = None, **_: object) -> SquareTask:
    """In place of `counterpoint.envs.make.make_env`."""
    return SquareTask(name, steps)


def record_squares(root: Path, tasks: tuple[str, ...], episodes: int, *, noise: float = 0.0, seed: int = 0) -> Path:
    """A training store of experts' episodes, of one length."""
    rng = np.random.default_rng(seed)
    made = []
    for task in map(SquareTask, tasks):
        for _ in range(episodes):
            task.reset(seed=int(rng.integers(2**31)))
            frames, states, actions, rewards = [], [], [], []
            for _ in range(task.horizon):
                frames.append(task.render())
                states.append(task.state())
                action = np.clip(task.expert() + noise * rng.standard_normal(2), -1, 1).astype(np.float32)
                actions.append(action)
                rewards.append(task.step(action)[1])
            made.append(
                Episode(
                    frames={"front": np.stack(frames)},
                    instruction=task.instruction,
                    timestamps=np.arange(task.horizon) / 10,
                    actions=np.stack(actions),
                    state=np.stack(states),
                    success=True,
                    rewards=np.array(rewards, np.float32),
                )
            )
    cached(MemoryStore(made), size=SIZE, root=root, progress=False)
    (folder,) = (path.parent for path in root.glob("*/store.json"))
    return folder
