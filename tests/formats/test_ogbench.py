from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counterpoint.cli.data.convert import convert
from counterpoint.cli.data.doctor import doctor
from counterpoint.cli.data.info import info
from counterpoint.data.episode import Spaces
from counterpoint.data.sampler import Sampler
from counterpoint.data.spec import Spec
from counterpoint.errors import BadInputError
from counterpoint.formats import open_dataset, recognise, split_names
from counterpoint.formats.ogbench import OGBenchStore
from counterpoint.training.agent import OfflineDataConfig, open_replay


def write_ogbench(path: Path, lengths: tuple[int, ...] = (4, 3), *, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """Write a file as OGBench's recorder does: T + 1 rows an episode, the last one terminal."""
    rng, rows = np.random.default_rng(seed), sum(lengths) + len(lengths)
    arrays = {
        "observations": rng.normal(size=(rows, 2)).astype(np.float32),
        "actions": rng.uniform(-0.7, 0.7, size=(rows, 2)).astype(np.float32),
        "terminals": np.concatenate([np.arange(length + 1) == length for length in lengths]),
        "qpos": rng.normal(size=(rows, 2)).astype(np.float32),
        "qvel": np.zeros((rows, 2), np.float32),
    } | changes
    np.savez_compressed(path, **{name: values for name, values in arrays.items() if values is not None})
    return arrays


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_ogbench(tmp_path / "pointmaze-medium-stitch-v0-val.npz", (5,), seed=1)
    write_ogbench(tmp_path / "pointmaze-medium-stitch-v0.npz")
    return tmp_path / "pointmaze-medium-stitch-v0.npz"


def test_rows_are_states_with_the_action_taken_there(data: Path) -> None:
    assert recognise(data).name == "ogbench"
    assert split_names(data) == ("train", "val")
    store, written = open_dataset(data, split="train"), np.load(data)
    assert isinstance(store, OGBenchStore)
    assert [episode.length for episode in store.episodes] == [5, 4]
    np.testing.assert_array_equal(store.state(1), written["observations"][5:])
    np.testing.assert_array_equal(store.actions(1), written["actions"][5:])
    assert store.rewards(0) is None
    assert [episode.length for episode in open_dataset(data).episodes] == [5, 4, 6]
    assert [episode.length for episode in open_dataset(data, split="val").episodes] == [6]
    with pytest.raises(BadInputError, match="'test'"):
        open_dataset(data, split="test")


def test_a_replay_buffer_holds_what_ogbench_trains_on(data: Path) -> None:
    """Their `load_dataset`: the last row of each episode is a next observation alone, and its action is dropped."""
    written, replay = np.load(data), open_replay(data, OfflineDataConfig())
    assert replay.spaces.observation == replay.spaces.goal == (2,)
    kept = ~written["terminals"]
    follows = np.concatenate([[False], kept[:-1]])
    transitions = {
        (*s, *a, *after)
        for s, a, after in zip(
            written["observations"][kept], written["actions"][kept], written["observations"][follows], strict=True
        )
    }
    keys = ("observation", "action", "next_observation")
    batch = Sampler(replay, Spec.transitions(set(keys), discount=0.9).bind(replay), batch_size=512, seed=0)[0]
    rows = np.concatenate([batch[key].numpy() for key in keys], axis=1)
    assert {tuple(row) for row in rows} == transitions  # unscaled: -1 and 1 are the action's bounds, not the data's


def test_a_replay_buffer_holds_images_and_discrete_actions(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(256, size=(9, 8, 8, 6)).astype(np.uint8)
    actions = np.array([0, 3, 1, 2, 0, 1, 1, 0, 3], np.int32)
    write_ogbench(tmp_path / "world.npz", observations=images, actions=actions)
    replay = open_replay(tmp_path / "world.npz", OfflineDataConfig())
    assert replay.spaces == Spaces((8, 8, 6), (8, 8, 6), 4, discrete=True)
    keys = ("observation", "action", "next_observation", "goal")
    batch = Sampler(replay, Spec.transitions(set(keys), discount=0.9).bind(replay), batch_size=64, seed=0)[0]
    for seen, action, after, goal in zip(*(batch[key].numpy() for key in keys), strict=True):
        row = next(row for row in range(9) if (images[row] == seen).all())
        assert action == actions[row]
        np.testing.assert_array_equal(after, images[row + 1])
        np.testing.assert_array_equal(goal, images[4 if row < 4 else 8])


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"actions": np.full(9, -1, np.int32)}, r"values in \[-1, -1\]; expected numbers from 0 on"),
        ({"actions": np.zeros(9, np.float32)}, r"float32 \(9,\); expected float \[N, n\] or int \[N\]"),
        ({"observations": np.zeros((9, 8, 8, 3), np.float32)}, r"expected float \[N, n\] or uint8 \[N, H, W, C\]"),
    ],
)
def test_what_no_agent_can_learn_from_is_refused(tmp_path: Path, changes: dict[str, Any], word: str) -> None:
    write_ogbench(tmp_path / "bad.npz", **changes)
    with pytest.raises(BadInputError, match=word):
        open_replay(tmp_path / "bad.npz", OfflineDataConfig())


def test_a_dialect_is_refused(data: Path) -> None:
    with pytest.raises(BadInputError, match="OGBench's data sets have no dialects"):
        open_replay(data, OfflineDataConfig(dialect="libero"))


def test_info_doctor_and_convert(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    info(data)
    assert doctor(data) == 0
    said = capsys.readouterr().out
    for part in ("OGBench", "3, of 4 to 6", "2 dimensions", "train 0:2, val 2:3", "nothing wrong"):
        assert part in said
    store, back = open_dataset(data), open_dataset(convert(data, tmp_path / "lerobot"))
    for number in range(3):
        np.testing.assert_array_equal(store.state(number), back.state(number))
        np.testing.assert_array_equal(store.actions(number), back.actions(number))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"actions": np.zeros((8, 2), np.float32)}, "lengths that disagree"),
        ({"terminals": np.arange(9) == 4}, "without an end"),
        ({"terminals": np.arange(9) >= 7}, "one row"),
        ({"actions": np.full((9, 2), 2.0)}, r"values in \[2, 2\]"),
        ({"actions": np.full((9, 2), np.nan)}, "not finite"),
        ({"actions": np.zeros(9, np.int32)}, "int32"),
        ({"observations": np.zeros((9, 8, 8, 3), np.uint8)}, "uint8"),
        ({"observations": np.array([{}] * 9, object)}, "object"),
    ],
)
def test_damage_is_one_message(
    tmp_path: Path, changes: dict[str, Any], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_ogbench(tmp_path / "bad.npz", **changes)
    with pytest.raises(BadInputError, match=word):
        open_dataset(tmp_path / "bad.npz")
    assert doctor(tmp_path / "bad.npz") == 2
    assert "bad.npz" in capsys.readouterr().out.replace("\n", "")


def test_other_archives_and_cut_ones_are_refused(tmp_path: Path) -> None:
    write_ogbench(tmp_path / "other.npz", terminals=None)
    with pytest.raises(BadInputError, match=r"OGBench's NAME\.npz"):
        recognise(tmp_path / "other.npz")
    write_ogbench(tmp_path / "cut.npz")
    whole = (tmp_path / "cut.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadInputError, match="found a file"):
        open_dataset(tmp_path / "cut.npz")
    damaged = bytearray(whole)
    damaged[whole.index(b"observations.npy") + 150] ^= 255
    (tmp_path / "damaged.npz").write_bytes(damaged)
    with pytest.raises(BadInputError, match=r"damaged content|found a file"):
        open_dataset(tmp_path / "damaged.npz")
