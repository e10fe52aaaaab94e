"""Several cameras of one simulation: each picture is what that camera alone would have given."""

from __future__ import annotations

import numpy as np
import pytest

from counterpoint.envs.make import make_task

pytestmark = pytest.mark.sim


@pytest.mark.parametrize(
    ("name", "cameras"), [("metaworld/drawer-open", ("corner2", "gripperPOV")), ("dmc/walker-walk", ("back", "side"))]
)
@pytest.mark.parametrize("render", [None, 64])
def test_several_cameras_stand_in_the_order_asked_for(name: str, cameras: tuple[str, ...], render: int | None) -> None:
    drawn = []
    for camera in (cameras, *cameras, cameras[:1]):
        task = make_task(name, camera=camera, size=32, render=render)
        task.reset(3)
        task.step(np.zeros(task.action_dim, np.float32))
        drawn.append(task.draw())
        task.close()
    both, first, second, one = drawn
    assert both.shape == (2, 32, 32, 3)
    np.testing.assert_array_equal(both, np.stack([first, second]))
    np.testing.assert_array_equal(one, first)
    assert not np.array_equal(first, second)
