from __future__ import annotations

import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from counterpoint.cli.data.convert import convert
from counterpoint.data.cache import cached
from counterpoint.data.robot_masks import binary_mask, masked_cameras
from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError
from counterpoint.formats import open_dataset, recognise
from counterpoint.formats.rlbench.poses import from_action
from counterpoint.formats.rlbench.reader import RLBenchStore
from tests.data.reading import read_episode
from tests.formats.rlbench.made import image, mask_image, rlbench_installed, write_episode, write_task


def test_a_task_is_recognised_from_every_folder_above_its_episodes(tmp_path: Path) -> None:
    task = write_task(tmp_path)
    for folder in (tmp_path, task, task / "variation0", task / "variation0" / "episodes"):
        assert recognise(folder).name == "rlbench"
        store = open_dataset(folder)
        assert isinstance(store, RLBenchStore)
        assert isinstance(store, EpisodeStore)
        assert [episode.length for episode in store.episodes] == [4, 5]
    assert "rlbench" not in sys.modules


def test_images_are_those_of_their_steps(tmp_path: Path) -> None:
    store = RLBenchStore(write_task(tmp_path))
    frames = store.frames(1, np.array([4, 0, 4]), "wrist")
    np.testing.assert_array_equal(frames, np.stack([image(1, step) for step in (4, 0, 4)]))
    np.testing.assert_array_equal(store.frames(1, np.array([2])), store.frames(1, np.array([2]), "front"))


def test_depth_is_not_read_and_named(tmp_path: Path) -> None:
    task = write_task(tmp_path, episodes=1)
    (task / "variation0" / "episodes" / "episode0" / "front_depth").mkdir()
    with pytest.raises(BadInputError, match="--drop front_depth"):
        convert(task, tmp_path / "out")
    assert open_dataset(convert(task, tmp_path / "out", drop=["front_depth"])).depth_cameras == ()


def test_an_action_is_the_pose_at_the_next_observation(tmp_path: Path) -> None:
    store = RLBenchStore(write_task(tmp_path, episodes=1))
    episode = read_episode(store, 0)  # which checks types and shapes
    assert episode.actions is not None
    assert episode.state is not None
    asked = from_action(episode.actions)
    np.testing.assert_allclose(asked[:, 2], 1.25 - 0.01 * np.arange(1, 5), atol=1e-6)
    np.testing.assert_allclose(asked[:, 3:7], np.tile((0.0, 1.0, 0.0, 0.0), (4, 1)), atol=1e-6)
    np.testing.assert_array_equal(asked[:, 7], (1, 1, 0, 0))  # closed from observation 3 on
    np.testing.assert_allclose(episode.state[:, :7], np.arange(7) + np.arange(4)[:, None])
    np.testing.assert_allclose(episode.state[:, 9], 1.25 - 0.01 * np.arange(4), atol=1e-6)
    np.testing.assert_array_equal(episode.state[:, 13], (1, 1, 1, 0))
    assert episode.success
    assert store.rewards(0) is None


def test_masks_are_the_robot_s_pixels(tmp_path: Path) -> None:
    task = write_task(tmp_path)
    store = RLBenchStore(task)
    assert store.cameras == ("front", "wrist", "front_mask", "wrist_mask")
    assert masked_cameras(store.cameras) == ("front", "wrist")
    masks = store.frames(0, np.array([0, 3]), "front_mask")
    assert masks.dtype == np.uint8
    assert set(np.unique(masks)) == {0, 255}
    expected = np.zeros((16, 16), bool)
    expected[:, :4] = True
    np.testing.assert_array_equal(binary_mask(masks), np.stack([expected, expected]))
    door = RLBenchStore(task, robot_handles=[300])
    above = np.zeros((16, 16), bool)
    above[:8, 4:] = True
    np.testing.assert_array_equal(binary_mask(door.frames(0, np.array([0]), "front_mask"))[0], above)
    assert door.fingerprint != store.fingerprint


def test_cameras_without_the_robot_have_no_masks(tmp_path: Path) -> None:
    assert RLBenchStore(write_task(tmp_path / "a", masks=("front",))).cameras == ("front", "wrist", "front_mask")
    assert RLBenchStore(write_task(tmp_path / "b"), robot_handles=[1]).cameras == ("front", "wrist")


def test_instructions_come_from_the_variation_or_the_episode(tmp_path: Path) -> None:
    task = write_task(tmp_path, variations=2, episodes=1)
    assert {episode.instruction for episode in RLBenchStore(task).episodes} == {"close microwave"}
    mixed = tmp_path / "open_box" / "all_variations" / "episodes"
    for number, words in enumerate((["open box"], ["open the box lid", "open box"])):
        folder = write_episode(mixed / f"episode{number}", number=number)
        (folder / "variation_descriptions.pkl").write_bytes(pickle.dumps(words))
    write_episode(tmp_path / "put_rubbish_in_bin" / "variation0" / "episodes" / "episode0")
    store = RLBenchStore(tmp_path)
    told = [episode.instruction for episode in store.episodes]
    assert told == ["close microwave"] * 2 + ["open box", "open the box lid", "put rubbish in bin"]


def test_episodes_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for number in (10, 9, 1):
        write_episode(tmp_path / "t" / "variation0" / "episodes" / f"episode{number}", number=number)
    store = RLBenchStore(tmp_path)
    assert [int(store.frames(e, np.array([0]))[0, 0, 0, 0]) for e in range(3)] == [1, 9, 10]


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_every_pickle_protocol_is_read(tmp_path: Path, protocol: int) -> None:
    store = RLBenchStore(write_task(tmp_path, episodes=1, protocol=protocol))
    state = store.state(0)
    assert state is not None
    np.testing.assert_allclose(state[:, 0], np.arange(4))


class Runs:
    """A pickle of it would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_pickle_that_runs_something_is_refused_and_named(tmp_path: Path) -> None:
    task, trace = write_task(tmp_path / "data", episodes=1), tmp_path / "trace"
    with rlbench_installed():
        (task / "variation0" / "episodes" / "episode0" / "low_dim_obs.pkl").write_bytes(pickle.dumps(Runs(trace)))
    with pytest.raises(BadInputError, match=r"needs pathlib[\w.]*\.\w+"):
        RLBenchStore(task)
    assert not trace.exists()


@pytest.mark.parametrize(
    "named", [b"cnumpy\nload\n", b"cbuiltins\neval\n", b"cos\nsystem\n", b"cnumpy.testing\nrundocs\n"]
)
def test_nothing_beside_what_rlbench_writes_is_found(tmp_path: Path, named: bytes) -> None:
    task = write_task(tmp_path, episodes=1)
    low_dim = task / "variation0" / "episodes" / "episode0" / "low_dim_obs.pkl"
    low_dim.write_bytes(named + b"(S'1'\ntR.")
    with pytest.raises(BadInputError, match="a pickle that needs"):
        RLBenchStore(task)


def test_arrays_of_objects_are_no_numbers(tmp_path: Path) -> None:
    # numpy would take these bytes for addresses.
    forged = b"\x80\x03cnumpy\nndarray\n(K\x01\x85cbuiltins\nobject\nC\x08AAAAAAAAtR."
    task = write_task(tmp_path / "a", episodes=1)
    (task / "variation0" / "episodes" / "episode0" / "low_dim_obs.pkl").write_bytes(forged)
    with pytest.raises(BadInputError):
        RLBenchStore(task)
    objects = np.array([None] * 7, object)
    with pytest.raises(BadInputError, match="gripper_pose"):
        RLBenchStore(write_task(tmp_path / "b", episodes=1, gripper_pose=objects))


@pytest.mark.parametrize(
    ("changed", "match"),
    [
        ({"joint_positions": None}, "joint_positions"),
        ({"gripper_pose": np.zeros(6)}, "gripper_pose"),
        ({"gripper_open": float("nan")}, "gripper_open"),
    ],
)
def test_missing_or_bad_numbers_are_told(tmp_path: Path, changed: dict[str, Any], match: str) -> None:
    with pytest.raises(BadInputError, match=match):
        RLBenchStore(write_task(tmp_path, episodes=1, **changed))


def test_damage_is_told_and_may_be_left_out(tmp_path: Path) -> None:
    task = write_task(tmp_path, episodes=6)
    episodes = task / "variation0" / "episodes"
    (episodes / "episode0" / "low_dim_obs.pkl").write_bytes(b"\x80\x04\x95")
    (episodes / "episode1" / "low_dim_obs.pkl").write_bytes(pickle.dumps({"a": 1}))
    (episodes / "episode2" / "wrist_rgb" / "5.png").unlink()
    shutil.rmtree(episodes / "episode2" / "front_rgb")
    shutil.rmtree(episodes / "episode4" / "wrist_rgb")
    told: list[str] = []
    store = RLBenchStore(task, on_bad_row=lambda error: told.append(str(error)))
    assert [episode.length for episode in store.episodes] == [7, 9]
    assert [text.split("/episodes/")[1][:8] for text in told] == ["episode0", "episode1", "episode2", "episode4"]
    with pytest.raises(BadInputError):
        RLBenchStore(task)


def test_images_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    task = write_task(tmp_path, episodes=1)
    store = RLBenchStore(task)
    images = task / "variation0" / "episodes" / "episode0" / "front_rgb"
    (images / "1.png").write_bytes(b"no image")
    Image.fromarray(mask_image(8)).save(images / "2.png")
    with pytest.raises(BadInputError, match=r"1\.png"):
        store.frames(0, np.array([0, 1]))
    with pytest.raises(BadInputError, match="several sizes"):
        store.frames(0, np.array([0, 2]))
    with pytest.raises(BadInputError, match="'overhead'"):
        store.frames(0, np.array([0]), "overhead")


def test_a_training_store_is_made_of_it_with_its_masks(tmp_path: Path) -> None:
    source = RLBenchStore(write_task(tmp_path / "data"))
    store = cached(source, size=16, root=tmp_path / "store", progress=False)
    assert store.cameras == source.cameras
    wanted = np.arange(3)
    np.testing.assert_array_equal(
        binary_mask(store.frames(0, wanted, "front_mask")), binary_mask(source.frames(0, wanted, "front_mask"))
    )
