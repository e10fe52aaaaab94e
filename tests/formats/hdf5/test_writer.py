from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from counterpoint.cli.data.convert import convert
from counterpoint.cli.data.doctor import examine
from counterpoint.data.episode import Episode
from counterpoint.data.robot_masks import mask_frames
from counterpoint.errors import BadInputError
from counterpoint.formats import open_dataset, split_names
from counterpoint.formats.hdf5.files import env_args
from counterpoint.formats.hdf5.writer import RobomimicWriter, robomimic_about
from tests.data.masks_made import LENGTHS, made_masks
from tests.data.reading import read_episode
from tests.formats.made import smooth_frames

ENV: dict[str, Any] = {
    "env_name": "Lift",
    "env_version": "1.5.1",
    "env_kwargs": {"robots": ["Panda"], "control_freq": 20, "lang": "lift the cube"},
}


def episodes() -> list[Episode]:
    rng = np.random.default_rng(0)
    made = []
    for number, (length, mask) in enumerate(zip(LENGTHS, made_masks(), strict=True)):
        rewards = np.zeros(length, np.float32)
        rewards[-1] = number != 1
        made.append(
            Episode(
                frames={
                    "agentview": smooth_frames(length, 24, 32, seed=number),
                    "robot0_eye_in_hand": smooth_frames(length, 24, 32, seed=9 + number),
                    "agentview_mask": mask_frames(mask),
                },
                instruction="lift the cube",
                timestamps=np.arange(length) / 20,
                actions=rng.uniform(-1, 1, (length, 7)).astype(np.float32),
                state=rng.normal(size=(length, 9)).astype(np.float32),
                success=number != 1,
                rewards=rewards,
            )
        )
    return made


def write(path: Path, **given: Any) -> Path:
    writer = RobomimicWriter(path, **ENV, **given)
    for number, episode in enumerate(episodes()):
        writer.add_episode(episode, np.full((len(episode), 5), float(number)))
    writer.finalize({"train": "0:2", "val": "2:3"})
    return path


def test_the_library_reads_back_what_it_wrote(tmp_path: Path) -> None:
    path = write(tmp_path / "deep" / "lift.hdf5", about={"seed": 3})
    store = open_dataset(path)
    assert store.cameras == ("agentview_image", "robot0_eye_in_hand_image", "agentview_image_mask")
    assert split_names(path) == ("train", "valid")
    assert [len(open_dataset(path, split=name).episodes) for name in ("train", "valid")] == [2, 1]
    for number, episode in enumerate(episodes()):
        read = read_episode(store, number)
        for camera, frames in episode.frames.items():
            key = camera.replace("_mask", "_image_mask") if "_mask" in camera else f"{camera}_image"
            np.testing.assert_array_equal(read.frames[key], frames)
        for name in ("actions", "state", "rewards"):
            np.testing.assert_array_equal(getattr(read, name), getattr(episode, name))
        assert (read.success, read.instruction) == (episode.success, "lift the cube")
    assert env_args(path)["env_kwargs"] == ENV["env_kwargs"]
    assert robomimic_about(path) == {"seed": 3}
    assert [file.name for file in path.parent.iterdir()] == ["lift.hdf5"]


def test_the_schema_is_robomimics(tmp_path: Path) -> None:
    with h5py.File(write(tmp_path / "lift.hdf5", model_file="<mujoco/>")) as file:
        data = file["data"]
        assert data.attrs["total"] == sum(LENGTHS)
        assert json.loads(data.attrs["env_args"])["type"] == 1
        demo = data["demo_1"]
        assert (demo.attrs["num_samples"], demo.attrs["model_file"]) == (7, "<mujoco/>")
        assert demo["dones"][()].tolist() == [0] * 6 + [1]
        assert demo["states"].shape == (7, 5)
        assert set(demo["obs"]) == set(demo["next_obs"])
        assert demo["obs/agentview_mask"].shape == (7, 24, 32, 1)
        assert demo["obs/agentview_image"].dtype == np.uint8
        assert [demo[f"obs/robot0_{part}"].shape[1] for part in ("eef_pos", "eef_quat", "gripper_qpos")] == [3, 4, 2]
        for key, values in demo["obs"].items():
            np.testing.assert_array_equal(demo[f"next_obs/{key}"][:-1], values[1:])
        assert file["mask/valid"][()].tolist() == [b"demo_2"]


def test_masks_survive_the_way_to_lerobot(tmp_path: Path) -> None:
    store = open_dataset(convert(write(tmp_path / "lift.hdf5"), tmp_path / "out"))
    for number, mask in enumerate(made_masks()):
        kept = store.frames(number, np.arange(len(mask)), "agentview_image_mask")
        np.testing.assert_array_equal(kept, mask_frames(mask))


@pytest.mark.slow
def test_a_mask_of_another_size_is_found_by_the_doctor(tmp_path: Path) -> None:
    path = write(tmp_path / "lift.hdf5")
    assert examine(path) == []
    with h5py.File(path, "a") as file:
        del file["data/demo_0/obs/agentview_mask"]
        file["data/demo_0/obs/agentview_mask"] = np.zeros((5, 12, 16, 1), np.uint8)
    (finding,) = examine(path)
    assert finding.found == "masks of 16x12 pixels"


def test_what_does_not_fit_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    (first, *_) = episodes()
    parts = {name: getattr(first, name) for name in ("frames", "instruction", "timestamps", "actions")}
    for more, message in (
        ({"state": first.state}, "actions True, rewards False, state of 9"),
        ({"state": first.state[:, :4] if first.state is not None else None}, "state of 4"),
        ({"state": first.state, "rewards": first.rewards, "success": False}, "highest reward of 1"),
    ):
        with pytest.raises(BadInputError, match=message):
            RobomimicWriter(tmp_path / "lift.hdf5", **ENV).add_episode(Episode(**parts, **more))
    with pytest.raises(BadInputError, match="no demonstration"):
        RobomimicWriter(tmp_path / "lift.hdf5", **ENV).finalize()
    (tmp_path / "old.hdf5").touch()
    with pytest.raises(BadInputError, match="an existing path"):
        RobomimicWriter(tmp_path / "old.hdf5", **ENV)
    assert not (tmp_path / "lift.hdf5").exists()
