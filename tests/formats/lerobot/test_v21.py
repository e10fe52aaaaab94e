from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from counterpoint.errors import BadInputError
from counterpoint.formats.lerobot.reader import LeRobotStore
from counterpoint.formats.video import encode_video
from tests.data.reading import read_episode
from tests.formats.lerobot.made import FPS, edit_info, episode, write_v21

EPISODES = tuple(episode(number, 4 + number, success=number != 1) for number in range(3))


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_v21(tmp_path_factory.mktemp("v21") / "set", EPISODES, image_cameras=["wrist"])


@pytest.fixture
def root(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "set"))


def test_every_episode_is_read(pristine: Path) -> None:
    store = LeRobotStore(pristine, split="train")
    for number, given in enumerate(EPISODES):
        found = read_episode(store, number)
        assert (found.instruction, found.success) == (given.instruction, given.success)
        np.testing.assert_array_equal(found.actions, given.actions)
        np.testing.assert_array_equal(found.state, given.state)
        np.testing.assert_array_equal(found.timestamps, given.timestamps)
        np.testing.assert_array_equal(found.frames["wrist"], given.frames["wrist"])
        for step, frame in enumerate(found.frames["top"]):
            errors = np.abs(given.frames["top"].astype(float) - frame).mean((1, 2, 3))
            assert errors.argmin() == step


@pytest.mark.parametrize("version", ["v2.0", "v2.1"])
def test_success_is_read_from_the_rows_without_statistics(root: Path, version: str) -> None:
    (root / "meta/episodes_stats.jsonl").unlink()
    edit_info(root, codebase_version=version)
    assert [info.success for info in LeRobotStore(root).episodes] == [True, False, True]


def _shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def _other_length(root: Path) -> None:
    lines = [json.loads(line) for line in (root / "meta/episodes.jsonl").read_text().splitlines()]
    lines[2]["length"] = 5
    (root / "meta/episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda root: (root / "meta/episodes.jsonl").unlink(), r"episodes\.jsonl"),
        (
            lambda root: (root / "meta/episodes.jsonl").write_text('{"episode_index": 0}\n'),
            "KeyError: 'tasks'|KeyError: 'length'",
        ),
        (lambda root: (root / "meta/episodes.jsonl").write_text("[1]\n"), r"line 1: \[1\]"),
        (lambda root: (root / "meta/episodes.jsonl").write_text("{\n"), r"episodes\.jsonl"),
        (
            lambda root: (root / "meta/episodes_stats.jsonl").write_text('{"stats": {"next.success": {"max": []}}}'),
            "KeyError|IndexError",
        ),
        (lambda root: _shorten(root / "data/chunk-000/episode_000001.parquet"), r"episode_000001\.parquet"),
        (
            lambda root: (root / "data/chunk-001/episode_000002.parquet").unlink(),
            r"episode_000002\.parquet: found no such",
        ),
        (_other_length, r"episode_000002\.\w+: found 6 (rows|frames); expected 5"),
        (
            lambda root: encode_video(
                root / "videos/chunk-000/observation.images.top/episode_000000.mp4", EPISODES[0].frames["top"][:3], FPS
            ),
            r"episode_000000\.mp4: found 3 frames; expected 4",
        ),
        (lambda root: edit_info(root, data_path="/tmp/{episode_index}.parquet"), "inside the data set's folder"),
        (lambda root: edit_info(root, video_path="a/../../{episode_index}.mp4"), "inside the data set's folder"),
    ],
)
def test_damage_is_refused(root: Path, damage: Callable[[Path], None], match: str) -> None:
    damage(root)
    with pytest.raises(BadInputError, match=match):
        _read_all(root)


def _read_all(root: Path) -> None:
    store = LeRobotStore(root)
    for number in range(len(store.episodes)):
        read_episode(store, number)
