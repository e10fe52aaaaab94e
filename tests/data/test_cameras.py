from __future__ import annotations

import numpy as np
import pytest

from counterpoint.data.store import Cameras, camera_images, camera_names
from counterpoint.errors import BadInputError
from tests.policies.two_cameras import OUTER, WRIST, record_pairs

KNOWN = ("a", "b", "c")


@pytest.mark.parametrize(
    ("camera", "count", "names"),
    [
        (None, None, ("a",)),
        (None, 2, ("a", "b")),
        ("c", None, ("c",)),
        ("c", 1, ("c",)),
        (["c", "a"], None, ("c", "a")),
        (("c", "a"), 2, ("c", "a")),
    ],
)
def test_what_names_mean(camera: Cameras, count: int | None, names: tuple[str, ...]) -> None:
    assert camera_names(camera, KNOWN, count) == names


@pytest.mark.parametrize(
    ("camera", "count", "told"),
    [
        ("d", None, r"found 'd'; expected one of \['a', 'b', 'c'\]"),
        (("a", "d"), 2, "found 'd'"),
        (("a", "a"), 2, "found a, a"),
        ((), None, "found none"),
        ("a", 2, "found a; expected 2 of"),
        (None, 4, "found a, b, c; expected 4 of"),
    ],
)
def test_names_that_do_not_fit_are_refused(camera: Cameras, count: int | None, told: str) -> None:
    with pytest.raises(BadInputError, match=told):
        camera_names(camera, KNOWN, count)


def test_pictures_of_several_cameras_stand_beside_each_other() -> None:
    store = record_pairs(1)
    steps = np.array([3, 0, 3])
    found = camera_images(store, 0, steps, (WRIST, OUTER))
    for place, camera in enumerate((WRIST, OUTER)):
        np.testing.assert_array_equal(found[:, place], store.frames(0, steps, camera))
