"""The suite's rewards for whole batches of rollouts, out of sensor readings; and what guides a planner besides.

Each reward follows its task's `get_reward` in dm_control 1.0.28. What the suite reads off the physics directly
(positions, axes) comes from sensors added to the planner's copy of the model, named in `SENSORS`.

Where a reward is nought almost everywhere, a planner that samples sees no difference between plans. `GUIDES` are small
smooth terms that tell near from far; they steer the planner alone and are part of no return.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from counterpoint.data.episode import Array

__all__ = ["GUIDES", "REWARDS", "SENSORS", "Readings"]

SENSORS: dict[str, dict[str, tuple[str, str, str]]] = {
    "acrobot": {"tip": ("FRAMEPOS", "SITE", "tip"), "target": ("FRAMEPOS", "SITE", "target")},
    "ball_in_cup": {"ball": ("FRAMEPOS", "XBODY", "ball"), "target": ("FRAMEPOS", "SITE", "target")},
    "cheetah": {},
    "dog": {
        "torso": ("FRAMEPOS", "XBODY", "torso"),
        "pelvis": ("FRAMEPOS", "XBODY", "pelvis"),
        "torso_x": ("FRAMEXAXIS", "XBODY", "torso"),
        "torso_z": ("FRAMEZAXIS", "XBODY", "torso"),
        "pelvis_z": ("FRAMEZAXIS", "XBODY", "pelvis"),
        "skull_z": ("FRAMEZAXIS", "XBODY", "skull"),
    },
    "finger": {},
    "hopper": {"torso": ("FRAMEPOS", "BODY", "torso"), "foot": ("FRAMEPOS", "BODY", "foot")},
    "humanoid": {"head": ("FRAMEPOS", "XBODY", "head"), "torso_z": ("FRAMEZAXIS", "XBODY", "torso")},
    "quadruped": {"torso_z": ("FRAMEZAXIS", "XBODY", "torso")},
    "reacher": {"finger": ("FRAMEPOS", "GEOM", "finger"), "target": ("FRAMEPOS", "GEOM", "target")},
    "walker": {"torso": ("FRAMEPOS", "XBODY", "torso"), "torso_z": ("FRAMEZAXIS", "XBODY", "torso")},
}
"""Domain -> added sensor -> kind, kind of object, object. BODY is a body's centre of mass, XBODY its frame."""


@dataclass(frozen=True, slots=True)
class Readings:
    """What the sensors say after control steps of several rollouts.

    Attributes:
        positions: Sensor -> float64 [B, T, n], those of positions and velocities, after each control step.
        forces: The same of contact forces, as the last simulation step of a control step left them.
        controls: float64 [B, T, A], carried out.
        model: The planner's `mujoco.MjModel`, with this episode's targets.
        task: The suite's task, with this episode's constants.
    """

    positions: Callable[[str], Array]
    forces: Callable[[str], Array]
    controls: Array
    model: Any
    task: Any


Reward = Callable[[Readings], Array]
_MOST = float("inf")


def _tolerance(*arguments: Any, **options: Any) -> Array:
    from dm_control.utils.rewards import tolerance

    value: Array = tolerance(*arguments, **options)
    return value


def _distance(one: Array, other: Array) -> Array:
    length: Array = np.linalg.norm(one - other, axis=-1)
    return length


def _little_control(seen: Readings) -> Array:
    little = _tolerance(seen.controls, margin=1, value_at_margin=0, sigmoid="quadratic")
    value: Array = (little.mean(axis=-1) + 4) / 5
    return value


def _at_least(value: Array, least: float, margin: float, *, at_margin: float = 0.0) -> Array:
    """1 from `least` on; below it falls along a line, to `at_margin` where `margin` is missing."""
    return _tolerance(value, bounds=(least, _MOST), margin=margin, value_at_margin=at_margin, sigmoid="linear")


def _speed(speed: Array, wanted: float) -> Array:
    return _at_least(speed, wanted, wanted / 2, at_margin=0.5)


def _acrobot(seen: Readings) -> Array:
    away = _distance(seen.positions("target"), seen.positions("tip"))
    return _tolerance(away, bounds=(0, seen.model.site("target").size[0]), margin=1)


def _finger_spin(seen: Readings) -> Array:
    return (seen.positions("hinge_velocity")[..., 0] <= -15.0).astype(np.float64)


def _finger_gap(seen: Readings) -> Array:
    """Metres between the spinner's tip and the rim of the target; negative inside."""
    away = _distance(seen.positions("target")[..., [0, 2]], seen.positions("tip")[..., [0, 2]])
    return away - float(seen.model.site("target").size[0])


def _finger_turn(seen: Readings) -> Array:
    return (_finger_gap(seen) <= 0).astype(np.float64)


def _hopper_height(seen: Readings) -> Array:
    height: Array = seen.positions("torso")[..., 2] - seen.positions("foot")[..., 2]
    return height


def _hopper_stand(seen: Readings) -> Array:
    return _tolerance(_hopper_height(seen), (0.6, 2)) * _little_control(seen)


def _hopper_hop(seen: Readings) -> Array:
    hopping = _speed(seen.positions("torso_subtreelinvel")[..., 0], 2.0)
    return _tolerance(_hopper_height(seen), (0.6, 2)) * hopping


def _walker(wanted: float) -> Reward:
    def reward(seen: Readings) -> Array:
        standing = _tolerance(seen.positions("torso")[..., 2], bounds=(1.2, _MOST), margin=0.6)
        upright = (1 + seen.positions("torso_z")[..., 2]) / 2
        stand = (3 * standing + upright) / 4
        if wanted == 0:
            return stand
        moving = _speed(seen.positions("torso_subtreelinvel")[..., 0], wanted)
        value: Array = stand * (5 * moving + 1) / 6
        return value

    return reward


def _humanoid(wanted: float) -> Reward:
    def reward(seen: Readings) -> Array:
        standing = _tolerance(seen.positions("head")[..., 2], bounds=(1.4, _MOST), margin=0.35)
        upright = _at_least(seen.positions("torso_z")[..., 2], 0.9, 1.9)
        velocity = seen.positions("torso_subtreelinvel")[..., :2]
        if wanted == 0:
            moving = _tolerance(velocity, margin=2).mean(axis=-1)
        else:
            speed = np.linalg.norm(velocity, axis=-1)
            moving = (5 * _at_least(speed, wanted, wanted) + 1) / 6
        value: Array = _little_control(seen) * standing * upright * moving
        return value

    return reward


def _dog(wanted: float) -> Reward:
    cosine = float(np.cos(np.deg2rad(30)))

    def reward(seen: Readings) -> Array:
        value: Array = np.ones(seen.controls.shape[:2])
        for body, height in zip(("torso", "pelvis"), seen.task._stand_height, strict=True):
            value = value * _tolerance(seen.positions(body)[..., 2], bounds=(height, _MOST), margin=float(height))
        for axis in ("skull_z", "torso_z", "pelvis_z"):
            value = value * _at_least(seen.positions(axis)[..., 2], cosine, cosine + 1)
        feet = ("palm_L", "palm_R", "sole_L", "sole_R")
        weight = float(seen.task._body_weight)
        touch = np.concatenate([seen.forces(foot) for foot in feet], axis=-1).sum(axis=-1)
        value = value * _at_least(touch, weight, weight, at_margin=0.9)
        if wanted > 0:
            forward = (seen.positions("torso_linvel") * seen.positions("torso_x")).sum(axis=-1)
            bounds = (wanted, 2 * wanted)
            moving = _tolerance(forward, bounds=bounds, margin=max(1.0, wanted), value_at_margin=0, sigmoid="linear")
            value = value * (4 * moving + 1) / 5
        return value

    return reward


def _cup(seen: Readings) -> Array:
    away = np.abs(seen.positions("target") - seen.positions("ball"))[..., [0, 2]]
    room = seen.model.site("target").size[[0, 2]] - seen.model.geom("ball").size[0]
    inside: Array = (away < room).all(axis=-1).astype(np.float64)
    return inside


def _reacher_gap(seen: Readings) -> tuple[Array, float]:
    """Metres between the arm's tip and the target's middle, and how many are near enough."""
    away = _distance(seen.positions("target")[..., :2], seen.positions("finger")[..., :2])
    return away, float(seen.model.geom("target").size[0] + seen.model.geom("finger").size[0])


def _reacher(seen: Readings) -> Array:
    away, near = _reacher_gap(seen)
    return _tolerance(away, (0, near))


def _cheetah(seen: Readings) -> Array:
    return _at_least(seen.positions("torso_subtreelinvel")[..., 0], 10, 10)


def _quadruped(wanted: float) -> Reward:
    def reward(seen: Readings) -> Array:
        moving = _at_least(seen.positions("velocimeter")[..., 0], wanted, wanted, at_margin=0.5)
        upright = _at_least(seen.positions("torso_z")[..., 2], 1, 2)
        return upright * moving

    return reward


REWARDS: dict[str, Reward] = {
    "acrobot-swingup": _acrobot,
    "finger-turn_hard": _finger_turn,
    "finger-spin": _finger_spin,
    "hopper-stand": _hopper_stand,
    "hopper-hop": _hopper_hop,
    "walker-stand": _walker(0),
    "walker-walk": _walker(1),
    "walker-run": _walker(8),
    "humanoid-stand": _humanoid(0),
    "humanoid-walk": _humanoid(1),
    "dog-stand": _dog(0),
    "dog-walk": _dog(1),
    "dog-trot": _dog(3),
    "cup-catch": _cup,
    "reacher-hard": _reacher,
    "cheetah-run": _cheetah,
    "quadruped-walk": _quadruped(0.5),
    "quadruped-run": _quadruped(5),
}
"""Task -> its reward: `Readings` of B rollouts and T control steps -> float64 [B, T] in [0, 1]."""


def _acrobot_guide(seen: Readings) -> Array:
    away = _distance(seen.positions("target"), seen.positions("tip"))
    return 0.2 * (1 - away / 4)


def _hopper_guide(seen: Readings) -> Array:
    rising = _tolerance(_hopper_height(seen), (0.6, 2), margin=0.6, value_at_margin=0, sigmoid="linear")
    return 0.3 * rising


def _hopping_guide(seen: Readings) -> Array:
    value: Array = _hopper_guide(seen) * (1 + _speed(seen.positions("torso_subtreelinvel")[..., 0], 2.0))
    return value


def _finger_spin_guide(seen: Readings) -> Array:
    spin = -seen.positions("hinge_velocity")[..., 0]
    return 0.3 * np.clip(spin / 15, -1, 1)


def _finger_turn_guide(seen: Readings) -> Array:
    return 0.3 * _tolerance(_finger_gap(seen), (-_MOST, 0), margin=0.3, sigmoid="long_tail")


def _cup_guide(seen: Readings) -> Array:
    away = _distance(seen.positions("target"), seen.positions("ball"))
    return 0.2 * _tolerance(away, (0, 0), margin=0.3, sigmoid="long_tail")


def _reacher_guide(seen: Readings) -> Array:
    away, near = _reacher_gap(seen)
    return 0.3 * _tolerance(away, (0, near), margin=0.1, sigmoid="long_tail")


GUIDES: dict[str, Reward] = {
    "acrobot-swingup": _acrobot_guide,
    "finger-turn_hard": _finger_turn_guide,
    "finger-spin": _finger_spin_guide,
    "hopper-stand": _hopper_guide,
    "hopper-hop": _hopping_guide,
    "cup-catch": _cup_guide,
    "reacher-hard": _reacher_guide,
}
"""Task -> what its planner adds to the reward of a control step: float64 [B, T], 0.6 at most."""
