"""What an episode must be before it enters a replay buffer or a data set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterpoint.data.goals import Spaces
from counterpoint.errors import BadInputError

__all__ = ["Checked", "check_episode"]

TOLERANCE = 1e-6
"""How far beyond [-1, 1] an action may lie, for rounding in float32; it is clipped then."""


@dataclass(frozen=True)
class Checked:
    """An episode in the types it is stored in: T + 1 states, T actions and rewards."""

    observations: NDArray[Any]
    actions: NDArray[Any]
    goals: NDArray[Any]
    commanded: NDArray[Any]
    rewards: NDArray[np.float32]


def check_episode(
    spaces: Spaces,
    observations: NDArray[Any],
    actions: NDArray[Any],
    goals: NDArray[Any],
    commanded: NDArray[Any],
    rewards: NDArray[Any] | None,
) -> Checked:
    """Check one episode against `spaces`; arguments as those of `ReplayBuffer.add_episode`.

    Raises:
        BadInputError: When it has fewer than two states, a shape or type is wrong, a number is not finite, or an
            action is out of range.
    """
    observations = np.asarray(observations)
    states = len(observations) if observations.ndim else 0
    if states < 2:
        raise BadInputError(
            "episode",
            found=f"{states} states",
            expected="at least 2, the two ends of a transition",
            mend="leave such episodes out",
        )
    T = states - 1
    return Checked(
        _states("observations", observations, (states, *spaces.observation)),
        _actions(spaces, np.asarray(actions), T),
        _states("goals", np.asarray(goals), (states, *spaces.goal)),
        _states("commanded goal", np.asarray(commanded), spaces.goal),
        _states("rewards", np.zeros(T) if rewards is None else np.asarray(rewards), (T,)),
    )


def _states(where: str, values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    _check_shape(where, values, shape)
    if len(shape) >= 3:
        if values.dtype != np.uint8:
            raise BadInputError(
                where,
                found=str(values.dtype),
                expected="pictures as uint8 in [0, 255]",
                mend="convert the pictures before they are stored",
            )
        return values
    return _finite(where, values)


def _actions(spaces: Spaces, actions: NDArray[Any], T: int) -> NDArray[Any]:
    if spaces.discrete:
        _check_shape("actions", actions, (T,))
        if not np.issubdtype(actions.dtype, np.integer):
            raise BadInputError(
                "actions",
                found=str(actions.dtype),
                expected=f"integers from 0 to {spaces.action - 1}",
                mend="give the number of each action",
            )
        least, most = 0.0, spaces.action - 1.0
    else:
        _check_shape("actions", actions, (T, spaces.action))
        actions, least, most = _finite("actions", actions), -1.0, 1.0
    outside = np.argwhere((actions < least - TOLERANCE) | (actions > most + TOLERANCE))
    if len(outside):
        place = tuple(outside[0])
        raise BadInputError(
            f"actions, step {place[0]}",
            found=f"{actions[place]:g}",
            expected=f"actions from {least:g} to {most:g}",
            mend="scale continuous actions to [-1, 1] by the bounds of their space",
        )
    if spaces.discrete:
        return actions.astype(np.int64)
    clipped: NDArray[np.float32] = np.clip(actions, -1.0, 1.0)
    return clipped


def _check_shape(where: str, values: NDArray[Any], shape: tuple[int, ...]) -> None:
    if values.shape != shape:
        raise BadInputError(
            where,
            found=f"shape {values.shape}",
            expected=f"{shape}",
            mend="give T + 1 states with their goals, T actions and T rewards, as the spaces say",
        )


def _finite(where: str, values: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is told below
        values = values.astype(np.float32)
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        raise BadInputError(
            where,
            found=f"NaN or infinity at {tuple(bad[0].tolist())}",
            expected="finite numbers",
            mend="drop or repair the episode; a simulation may have blown up",
        )
    return values
