"""Mistakes of readers surface, and what is no image or number is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counterpoint.data.episode import Array, EpisodeInfo
from counterpoint.errors import BadInputError
from counterpoint.formats import open_dataset
from counterpoint.formats.base import Reader, rows_of, stack_images
from counterpoint.formats.boundary import MISTAKES
from tests.formats.fuzzing.sources import SOURCES

READERS = [name for name in SOURCES if name not in ("store", "minari")]


class Odd(Reader):
    """One episode of two steps whose parts are given."""

    def __init__(self, images: Any = None, actions: Any = None) -> None:
        self.episodes, self.names = open_episodes(), ["episode"]
        self.images, self.numbers = images, actions

    def read(self, episode: int, steps: Array, camera: str) -> Array:
        return np.asarray(self.images)

    def vectors(self, episode: int, name: str) -> Array | None:
        return np.asarray(self.numbers)


def open_episodes() -> Any:
    from counterpoint.data.episode import EpisodeInfo

    return (EpisodeInfo(2, "push", 10.0),)


@pytest.mark.parametrize("kind", MISTAKES)
@pytest.mark.parametrize("name", READERS)
def test_mistakes_in_a_reader_surface(
    name: str, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_dataset(SOURCES[name](tmp_path / "set"))

    def planted(*_: Any) -> Any:
        raise kind

    monkeypatch.setattr(type(store), "read", planted)
    monkeypatch.setattr(type(store), "vectors", planted)
    with pytest.raises(kind):
        store.frames(0, np.array([0])) if store.cameras else store.actions(0)


@pytest.mark.parametrize(
    "images", [np.zeros((1, 4, 4, 3), np.float32), np.zeros((1, 4, 4), np.uint8), np.zeros((1, 4, 4, 1), "u1")]
)
def test_what_is_no_image_is_refused(images: Array) -> None:
    with pytest.raises(BadInputError, match=r"found images .* expected uint8"):
        Odd(images).frames(0, np.array([0]))


@pytest.mark.parametrize("numbers", [np.zeros((2, 1), complex), np.array([["a"], ["b"]]), np.array([[{}], [{}]])])
def test_what_is_no_number_is_refused(numbers: Array) -> None:
    with pytest.raises(BadInputError, match="expected numbers"):
        Odd(actions=numbers).actions(0)


class Counting(Reader):
    """Images whose pixels are their step; the steps that are read are noted."""

    episodes = (EpisodeInfo(9, "count", 10.0),)
    names = ("counted",)

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def read(self, episode: int, steps: Array, camera: str) -> Array:
        self.asked.append(steps.tolist())
        return np.broadcast_to(steps[:, None, None, None], (len(steps), 2, 3, 3)).astype(np.uint8)


@pytest.mark.parametrize("steps", [[0, 1, 2], [5, 2, 5, 0], [3, 3], []])
def test_each_step_is_read_once_and_in_order(steps: list[int]) -> None:
    store = Counting()
    frames = store.frames(0, np.array(steps, np.int64))
    assert frames.shape == (len(steps), 2, 3, 3)
    assert frames[:, 0, 0, 0].tolist() == steps
    assert store.asked == [sorted(set(steps)) or [0]]


def test_images_of_several_sizes_are_refused_by_name() -> None:
    images = [(name, np.zeros((2, width, 3), np.uint8)) for name, width in (("a", 3), ("b", 3), ("c", 4))]
    assert stack_images(images[:2]).shape == (2, 2, 3, 3)
    with pytest.raises(BadInputError, match=r"c: found images of several sizes: \(2, 4, 3\); expected \(2, 3, 3\)"):
        stack_images(images)


@pytest.mark.parametrize("wanted", [[4], [2, 3, 4], [0, 2], [0, 9]])
def test_rows_are_those_that_are_asked_for(wanted: list[int]) -> None:
    np.testing.assert_array_equal(rows_of(np.arange(20).reshape(10, 2), np.array(wanted))[:, 0], 2 * np.array(wanted))
