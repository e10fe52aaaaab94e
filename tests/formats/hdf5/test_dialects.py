from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from counterpoint.cli.data.convert import convert
from counterpoint.cli.data.doctor import examine
from counterpoint.cli.data.info import info
from counterpoint.errors import BadInputError
from counterpoint.evaluation.browsed import BrowsedSet
from counterpoint.evaluation.held_out import open_training, open_unseen
from counterpoint.formats import open_dataset, read_episode_part
from counterpoint.formats.base import Reader
from counterpoint.formats.hdf5.dialects import DIALECTS, SIGNS
from counterpoint.formats.hdf5.reader import Hdf5Store
from counterpoint.training.agent import OfflineDataConfig, open_replay
from counterpoint.training.cloning import DemonstrationsConfig, open_demonstrations
from counterpoint.training.offline import SplitsConfig
from tests.data.reading import read_episode
from tests.formats.hdf5.made import (
    write_aloha,
    write_isaaclab,
    write_libero,
    write_low_dim,
    write_regenerated,
    write_robocasa,
    write_robomimic,
)
from tests.formats.made import write_lerobot

MADE: dict[str, Callable[[Path], object]] = {
    "robomimic": lambda root: write_robomimic(root / "image.hdf5"),
    "robomimic_low_dim": lambda root: write_low_dim(root / "low_dim.hdf5"),
    "robocasa": lambda root: write_robocasa(root / "robocasa.hdf5"),
    "libero": lambda root: write_libero(root / "open_the_drawer_demo.hdf5"),
    "libero_regenerated": lambda root: write_regenerated(root / "open_the_drawer_demo.hdf5"),
    "isaaclab": lambda root: write_isaaclab(root / "dataset.hdf5"),
    "aloha": write_aloha,
}


def _file(root: Path) -> Path:
    return next(root.glob("*.hdf5"))


@pytest.mark.parametrize("name", MADE)
def test_each_dialect_is_told_by_its_facts(tmp_path: Path, name: str) -> None:
    MADE[name](tmp_path)
    store = Hdf5Store(tmp_path)
    said = store.facts["dialect"]
    assert said.startswith(f"{name}: {DIALECTS[name].title} (recognised by ")
    assert said.count(";") >= 1  # two facts or more
    assert ("after its action" in store.facts["observation and action"]) == (name == "libero")
    assert ("images" in store.facts) == (name != "robomimic_low_dim")
    assert ("turned upright" in store.facts.get("images", "")) == name.startswith("libero")
    _file(tmp_path).rename(tmp_path / "another_name.hdf5")  # the name tells nothing
    assert Hdf5Store(tmp_path / "another_name.hdf5").facts["dialect"] == said


def test_facts_have_names_that_exist() -> None:
    for dialect in DIALECTS.values():
        assert {*dialect.needs, *dialect.also, *dialect.against} <= SIGNS.keys()
        assert dialect.within in {"", *DIALECTS}
        assert len(dialect.needs) + len(dialect.also) >= 2
        assert not dialect.recognises((dialect.needs + dialect.also)[:1])


def test_a_fact_alone_is_not_enough(tmp_path: Path) -> None:
    """A stripped copy of LIBERO's release and OpenVLA's regenerated files differ in one fact."""
    path, _ = write_libero(tmp_path / "open_the_drawer_demo.hdf5")
    with h5py.File(path, "a") as file:
        for name in list(file["data"].attrs):
            del file["data"].attrs[name]
    with pytest.raises(BadInputError) as told:
        open_dataset(path)
    images = "images named agentview_rgb or eye_in_hand_rgb"
    assert told.value.found == f"{images}; the state of LIBERO; data without attributes"
    assert told.value.hint.startswith("name the dialect: --dialect libero_regenerated or --dialect libero (")
    release, regenerated = (open_dataset(path, dialect=name) for name in ("libero", "libero_regenerated"))
    assert [e.length for e in release.episodes] == [5, 3]
    assert [e.length for e in regenerated.episodes] == [6, 4]
    assert release.fingerprint != regenerated.fingerprint
    assert isinstance(release, Reader)
    assert release.facts["dialect"] == "libero: LIBERO's release (named by the user)"


def test_facts_of_two_dialects_are_refused(tmp_path: Path) -> None:
    path = write_robocasa(tmp_path / "a.hdf5")
    with h5py.File(path, "a") as file:
        file["data"].attrs["problem_info"] = "{}"
        file["data/demo_0/obs/agentview_rgb"] = file["data/demo_0/obs/robot0_agentview_left_image"][()]
    with pytest.raises(BadInputError) as told:
        open_dataset(path)
    assert "the attribute problem_info" in told.value.found
    assert told.value.expected == "two or more facts that tell one dialect, not robocasa and libero"
    assert told.value.hint.startswith("name the dialect: --dialect robocasa or --dialect libero (")


def test_names_of_dialects(tmp_path: Path) -> None:
    write_aloha(tmp_path / "aloha")
    with pytest.raises(BadInputError, match=r"--dialect: found 'aloa'; expected one of aloha, .*did you mean 'aloha'"):
        open_dataset(tmp_path / "aloha", dialect="aloa")
    with pytest.raises(BadInputError, match=r"a group data, as in LIBERO's release.*name one of aloha"):
        open_dataset(tmp_path / "aloha", dialect="libero")
    write_robomimic(tmp_path / "image.hdf5")
    with pytest.raises(BadInputError, match=r"action and observations there.*name one of robomimic"):
        open_dataset(tmp_path / "image.hdf5", dialect="aloha")
    lerobot = write_lerobot(tmp_path / "lerobot")
    with pytest.raises(BadInputError, match="--dialect: found 'libero'; expected none: LeRobot has no dialects"):
        open_dataset(lerobot, dialect="libero")


def test_files_of_two_dialects_are_not_mixed(tmp_path: Path) -> None:
    write_libero(tmp_path / "a_demo.hdf5")
    write_regenerated(tmp_path / "b_demo.hdf5")
    with pytest.raises(BadInputError, match=r"b_demo.hdf5: found dialects \['libero_regenerated'\].*\['libero'\]"):
        open_dataset(tmp_path)


def test_a_regenerated_task_of_libero_is_not_shifted(tmp_path: Path) -> None:
    path, upright = write_regenerated(tmp_path / "open_the_drawer_demo.hdf5")
    store = open_dataset(path)
    assert [(e.length, e.instruction, e.success) for e in store.episodes] == [
        (6, "open the drawer", True),
        (4, "open the drawer", True),
    ]
    with h5py.File(path) as file:
        for number, images in enumerate(upright):
            episode, demo = read_episode(store, number), file[f"data/demo_{number}"]
            np.testing.assert_array_equal(episode.frames["agentview_rgb"], images)
            np.testing.assert_array_equal(episode.actions, demo["actions"][()].astype(np.float32))
            assert episode.state is not None
            np.testing.assert_array_equal(episode.state[:, :2], demo["obs/gripper_states"][()].astype(np.float32))


def test_aloha(tmp_path: Path) -> None:
    folder = write_aloha(tmp_path / "pick_up_the-cup", (2, 10, 0))
    store = Hdf5Store(folder)
    assert store.cameras == ("cam_high", "cam_left_wrist")
    assert [(e.length, e.instruction, e.fps, e.success) for e in store.episodes] == [
        (6, "pick up the cup", 50.0, None)
    ] * 3
    assert not store.rate_recorded
    assert store.left_out == ("observations/qvel",)
    assert store.facts["instructions from"].startswith("the folder's name")
    actions = [store.actions(number) for number in range(3)]
    assert [values[0, 0] for values in actions if values is not None] == [0, 2, 10]  # episode_2 before episode_10
    with h5py.File(folder / "episode_2.hdf5") as file:
        np.testing.assert_array_equal(store.state(1), file["observations/qpos"][()])
        images = file["observations/images/cam_left_wrist"][()]
    np.testing.assert_array_equal(store.frames(1, np.array([5, 0]), "cam_left_wrist"), images[[5, 0]])
    assert [e.length for e in open_dataset(folder / "episode_10.hdf5").episodes] == [6]
    assert examine(folder) == []


def test_compressed_images_of_aloha_need_the_order_of_their_colours(tmp_path: Path) -> None:
    folder = write_aloha(tmp_path / "cup", packed=True)
    with pytest.raises(BadInputError, match="images as compressed rows") as told:
        open_dataset(folder)
    assert "--dialect aloha_jpeg or --dialect aloha_jpeg_bgr" in told.value.hint
    own, exchanged = (open_dataset(folder, dialect=name) for name in ("aloha_jpeg", "aloha_jpeg_bgr"))
    for store, red, blue in ((own, 0, 2), (exchanged, 2, 0)):
        images = store.frames(0, np.arange(6), "cam_high")
        assert images.shape == (6, 16, 24, 3)
        assert abs(images[..., red].mean((1, 2)) - (250 - np.arange(6))).max() < 3
        assert images[..., blue].max() < 5
    damaged = write_aloha(tmp_path / "damaged", packed=True)
    with h5py.File(damaged / "episode_0.hdf5", "a") as file:
        file["observations/images/cam_high"][3] = 0
    with pytest.raises(BadInputError, match=r"episode_0.hdf5, cam_high, row 3"):
        open_dataset(damaged, dialect="aloha_jpeg").frames(0, np.array([3]))


def test_the_hint_names_dialects_that_can_read_the_file(tmp_path: Path) -> None:
    folder = write_aloha(tmp_path / "cup", (0,))
    with h5py.File(folder / "episode_0.hdf5", "a") as file:
        del file["observations/qpos"]
    path, _ = write_libero(tmp_path / "states.hdf5")
    with h5py.File(path, "a") as file:
        for demo in file["data"].values():
            del demo["obs/agentview_rgb"], demo["obs/eye_in_hand_rgb"]
    hints = []
    for each in (folder, path):  # the second is LIBERO's, shifted by a step, and not robomimic's without images
        with pytest.raises(BadInputError) as told:
            open_dataset(each)
        hints.append(told.value.hint)
        names = [part.split()[0] for part in told.value.hint.split("--dialect ")[1:]]
        assert all(open_dataset(each, dialect=name).episodes for name in names)
    assert hints[0].startswith(
        "name the dialect: --dialect aloha or --dialect aloha_jpeg or --dialect aloha_jpeg_bgr ("
    )
    assert hints[1].startswith("name the dialect: --dialect libero (")
    assert open_dataset(path, dialect="libero").episodes[0].length == 5


def test_images_of_other_forms(tmp_path: Path) -> None:
    """Channel-first, float and grey images become RGB; RGBA, normals and classes of pixels are named, not lost."""
    path = write_robomimic(tmp_path / "image.hdf5")
    with h5py.File(path, "a") as file:
        wanted = file["data/demo_0/obs/agentview_image"][:3]
        for demo in file["data"].values():
            images = demo["obs/agentview_image"][()]
            del demo["obs/agentview_image"], demo["obs/agentview_depth"], demo["obs/robot0_eye_in_hand_image"]
            demo["obs/agentview_image"] = images.transpose(0, 3, 1, 2)
            demo["obs/float_image"], demo["obs/grey_image"] = images / 255, images[..., :1]
            demo["obs/flat_view"] = images[..., 1]
            demo["obs/normals_image"], demo["obs/agentview_seg"] = images / 255 - 0.5, images[..., :1]
            demo["obs/policy/rgba"] = np.concatenate([images, images[..., :1]], axis=-1)
    store = Hdf5Store(path)
    assert store.cameras == ("agentview_image", "flat_view", "float_image", "grey_image")
    for camera in ("agentview_image", "float_image"):
        np.testing.assert_array_equal(store.frames(0, np.arange(3), camera), wanted)
    np.testing.assert_array_equal(store.frames(0, np.arange(3), "grey_image"), wanted[..., :1].repeat(3, axis=-1))
    np.testing.assert_array_equal(store.frames(0, np.arange(3), "flat_view"), wanted[..., 1:2].repeat(3, axis=-1))
    assert [store.sizes(camera) for camera in store.cameras] == [{(24, 24): 3}] * 4
    assert store.unread == ("obs/agentview_seg", "obs/normals_image", "obs/policy/rgba")
    assert "obs/agentview_seg (uint8 [5, 24, 24, 1])" in store.left_out
    wrong = shutil.copy(path, tmp_path / "wrong.hdf5")
    with h5py.File(wrong, "a") as file:
        file["data/demo_1/obs/float_image"][4] = 200
    with pytest.raises(BadInputError, match=r"values from 0 to 200; expected floats in \[0, 1\]"):
        Hdf5Store(wrong).frames(1, np.arange(6), "float_image")
    drops = "--drop obs/agentview_seg --drop obs/normals_image --drop obs/policy/rgba"
    with pytest.raises(BadInputError, match=drops):
        convert(path, tmp_path / "out")
    other = write_low_dim(tmp_path / "low_dim.hdf5")
    with h5py.File(other, "a") as file:
        for demo in file["data"].values():
            demo["obs/float_image"] = np.zeros((len(demo["actions"]), 8, 8, 3))
    assert Hdf5Store(other).facts["dialect"].startswith("robomimic: ")  # there are images, though none is read


@pytest.mark.parametrize("form", ["rows of varying length", "texts", "one camera not compressed"])
def test_other_forms_of_compressed_images(tmp_path: Path, form: str) -> None:
    folder = write_aloha(tmp_path / "cup", (0,), packed=True)
    whole = open_dataset(write_aloha(tmp_path / "whole", (0,), packed=True), dialect="aloha_jpeg")
    wanted = whole.frames(0, np.arange(6), "cam_high")
    with h5py.File(folder / "episode_0.hdf5", "a") as file:
        images = file["observations/images"]
        rows = [row.tobytes().rstrip(b"\0") for row in images["cam_high"][()]]
        del images["cam_high"]
        if form == "rows of varying length":
            packed = images.create_dataset("cam_high", (6,), dtype=h5py.vlen_dtype(np.uint8))
            for step, row in enumerate(rows):
                packed[step] = np.frombuffer(row, np.uint8)
        elif form == "texts":
            images["cam_high"] = np.array(rows, "S")
        else:
            images["cam_high"] = wanted
    with pytest.raises(BadInputError, match="--dialect aloha_jpeg or --dialect aloha_jpeg_bgr"):
        open_dataset(folder)
    store = open_dataset(folder, dialect="aloha_jpeg")
    assert store.cameras == ("cam_high", "cam_left_wrist")
    np.testing.assert_array_equal(store.frames(0, np.arange(6), "cam_high"), wanted)


def test_words_in_the_files_of_aloha(tmp_path: Path) -> None:
    folder = write_aloha(tmp_path / "cup", (0, 1))
    with h5py.File(folder / "episode_0.hdf5", "a") as file:
        del file["observations/qvel"]
        file["language_raw"] = np.array([b"fold the shirt"])
    with h5py.File(folder / "episode_1.hdf5", "a") as file:
        file.attrs["instruction"] = " "
    store = Hdf5Store(folder)
    assert [e.instruction for e in store.episodes] == ["fold the shirt", "cup"]
    assert store.left_out == ()


def test_isaaclab(tmp_path: Path) -> None:
    store = Hdf5Store(write_isaaclab(tmp_path / "dataset.hdf5"))
    assert store.cameras == ("table_cam",)
    assert [(e.length, e.instruction, e.fps, e.success) for e in store.episodes] == [
        (9, "stack cube franka", 25.0, True),
        (9, "stack cube franka", 25.0, False),
    ]
    assert store.rate_recorded
    state = store.state(0)
    assert state is not None
    assert state.shape == (9, 12)
    assert set(store.left_out) == {"initial_state", "states"}


def test_observations_of_isaaclab_in_the_group_policy(tmp_path: Path) -> None:
    flat = write_isaaclab(tmp_path / "flat.hdf5")
    nested = write_isaaclab(tmp_path / "nested.hdf5")
    with h5py.File(nested, "a") as file:
        for demo in file["data"].values():
            file.move(f"{demo.name}/obs", f"{demo.name}/kept")
            file.move(f"{demo.name}/kept", f"{demo.name}/obs/policy")
            demo["obs/critic/contact"] = np.zeros((9, 2))
    store, expected = Hdf5Store(nested), Hdf5Store(flat)
    assert (store.cameras, store.episodes) == (expected.cameras, expected.episodes)
    np.testing.assert_array_equal(store.state(1), expected.state(1))
    np.testing.assert_array_equal(store.frames(1, np.arange(9)), expected.frames(1, np.arange(9)))
    assert set(store.left_out) == {"initial_state", "obs/critic", "states"}


def test_files_without_images(tmp_path: Path) -> None:
    path = write_low_dim(tmp_path / "low_dim.hdf5")
    store = open_dataset(path)
    assert (store.cameras, len(store.episodes)) == ((), 2)
    buffer = open_replay(path, OfflineDataConfig())
    assert buffer.spaces.action == 7
    assert open_demonstrations(path, DemonstrationsConfig()).state(0) is not None
    with pytest.raises(BadInputError, match=r"found data without images.*diff_c-robosuite-state"):
        store.frames(0, np.arange(2))
    assert examine(path) == []
    out = open_dataset(convert(path, tmp_path / "out"))
    np.testing.assert_array_equal(out.state(1), store.state(1))


def test_robocasa_keeps_its_own_words(tmp_path: Path) -> None:
    store = Hdf5Store(write_robocasa(tmp_path / "a.hdf5"))
    assert [e.instruction for e in store.episodes] == ["close the drawer"]
    assert "instructions from" not in store.facts


def test_everything_that_opens_data_takes_a_dialect(tmp_path: Path) -> None:
    path, name = write_aloha(tmp_path / "cup", packed=True), "aloha_jpeg_bgr"
    train, _ = SplitsConfig(dialect=name).open(path)
    wanted = train.fingerprint
    assert open_demonstrations(path, DemonstrationsConfig(dialect=name)).fingerprint == wanted
    assert open_replay(path, OfflineDataConfig(dialect=name)).spaces.action == 14
    config: dict[str, Any] = {"data": {"path": str(path), "dialect": name}}
    opened = open_training(config)
    assert opened is not None
    assert opened[0].fingerprint == wanted
    unseen, *_ = open_unseen([config], path, None, most=9, seed=0)
    assert len(unseen.episodes) == 2
    assert len(open_unseen([], path, None, most=9, seed=0, dialect=name)[0].episodes) == 2
    for browsed in (BrowsedSet(path, [config]), BrowsedSet(path, dialect=name)):
        assert browsed.store.fingerprint == wanted
    frames, *_ = read_episode_part(path, 0, None, 0, 1 << 20, name)
    np.testing.assert_array_equal(frames, train.frames(0, np.arange(6)))
    assert examine(path, name) == []
    with pytest.raises(BadInputError, match="Minari's data sets have no dialects"):
        open_replay(tmp_path / "absent", OfflineDataConfig(dialect=name))


def test_info_and_convert_take_a_dialect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_aloha(tmp_path / "cup", packed=True, length=3)
    info(path, dialect="aloha_jpeg", check_alignment=True)
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for fact in ("aloha_jpeg", "named by the user", "assumed", "folder's name", "cannot tell"):
        assert fact in told
    assert open_dataset(convert(path, tmp_path / "out", dialect="aloha_jpeg")).cameras == ("cam_high", "cam_left_wrist")
