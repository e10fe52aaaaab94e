"""Mistakes of readers surface, and what is no image or number is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counterpoint.data.episode import Array
from counterpoint.errors import BadInputError
from counterpoint.formats import open_dataset
from counterpoint.formats.base import Reader
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
