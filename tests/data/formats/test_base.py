"""The boundary around what readers parse: damage becomes one message, our own mistakes surface."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from counterpoint.data.episode import Array
from counterpoint.data.formats import open_dataset
from counterpoint.data.formats.base import DAMAGE, TREE, Reader, parsing
from counterpoint.errors import BadInputError
from tests.data.test_fuzz_readers import MAKERS

MISTAKES = (TypeError, AttributeError, NameError, AssertionError)
READERS = [name for name in MAKERS if name != "store"]


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


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_one_message(kind: type[Exception]) -> None:
    error = kind(1, "text") if issubclass(kind, av.FFmpegError) else kind("text")
    expected = r"where: found damaged content .*; expected whole"
    with pytest.raises(BadInputError, match=expected), parsing("where", "whole"):
        raise error


@pytest.mark.parametrize("kind", MISTAKES)
def test_mistakes_surface(kind: type[Exception]) -> None:
    with pytest.raises(kind), parsing("where", "whole"):
        raise kind
    if kind in TREE:
        with pytest.raises(BadInputError), parsing("where", "whole", also=TREE):
            raise kind


@pytest.mark.parametrize("kind", MISTAKES)
@pytest.mark.parametrize("name", READERS)
def test_mistakes_in_a_reader_surface(
    name: str, kind: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_dataset(MAKERS[name](tmp_path / "set"))

    def planted(*_: Any) -> Any:
        raise kind

    monkeypatch.setattr(type(store), "read", planted)
    monkeypatch.setattr(type(store), "vectors", planted)
    with pytest.raises(kind):
        store.frames(0, np.array([0]))


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
