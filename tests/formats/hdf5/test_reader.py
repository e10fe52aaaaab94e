from __future__ import annotations

import pickle
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from counterpoint.cli.data.convert import convert
from counterpoint.cli.data.doctor import doctor, examine
from counterpoint.cli.data.info import info
from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError, MissingExtraError
from counterpoint.formats import open_dataset, recognise, split_names
from counterpoint.formats.hdf5.files import env_args
from counterpoint.formats.hdf5.reader import Hdf5Store
from tests.data.reading import read_episode
from tests.formats.hdf5.made import ENV_ARGS, made_demo, write_isaaclab, write_libero, write_robomimic

CAMERAS = ("agentview_image", "robot0_eye_in_hand_image")
DEPTH = "obs/agentview_depth"


def test_robomimic_is_read_as_it_stands(tmp_path: Path) -> None:
    demos = [made_demo(length, seed, solved=seed != 1) for seed, length in enumerate((5, 12, 3))]
    path = write_robomimic(tmp_path / "image.hdf5", demos)
    assert recognise(path).name == "hdf5"
    store = open_dataset(path)
    assert isinstance(store, Hdf5Store)
    assert isinstance(store, EpisodeStore)
    assert store.cameras == CAMERAS
    assert [(e.length, e.instruction, e.fps, e.success) for e in store.episodes] == [
        (5, "lift the cube", 20.0, True),
        (12, "lift the cube", 20.0, False),
        (3, "lift the cube", 20.0, True),
    ]
    for number, demo in enumerate(demos):
        episode = read_episode(store, number)
        for camera in CAMERAS:
            np.testing.assert_array_equal(episode.frames[camera], demo["obs"][camera])
        parts = [demo["obs"][f"robot0_{part}"] for part in ("eef_pos", "eef_quat", "gripper_qpos")]
        np.testing.assert_array_equal(store.state(number), np.concatenate(parts, axis=1).astype(np.float32))
        np.testing.assert_array_equal(store.actions(number), demo["actions"].astype(np.float32))
        np.testing.assert_array_equal(store.rewards(number), demo["rewards"].astype(np.float32))
        np.testing.assert_allclose(store.timestamps(number), np.arange(len(demo["actions"])) / 20)


def test_demonstrations_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    path = write_robomimic(tmp_path / "image.hdf5", [made_demo(2 + n, n, size=8) for n in range(12)])
    assert [e.length for e in Hdf5Store(path).episodes] == list(range(2, 14))  # demo_2 before demo_10


def test_libero_is_turned_upright(tmp_path: Path) -> None:
    for convention in ("opengl", "opencv", None):
        path, upright = write_libero(tmp_path / f"{convention}_demo.hdf5", convention=convention)
        store = Hdf5Store(path)
        assert store.cameras == ("agentview_rgb", "eye_in_hand_rgb")
        for number, recorded in enumerate(upright):
            images, steps = recorded[:-1], np.arange(len(recorded) - 1)
            np.testing.assert_array_equal(store.frames(number, steps), images)
            np.testing.assert_array_equal(store.frames(number, steps, "eye_in_hand_rgb"), images[:, :, ::-1])
            torch.from_numpy(store.frames(number, steps))  # which takes no reversed view
        with h5py.File(path) as file:
            obs = file["data/demo_0/obs"]
            state = np.concatenate([obs["gripper_states"], obs["joint_states"]], axis=1)
        np.testing.assert_array_equal(store.state(0), state[:-1].astype(np.float32))
        assert [e.success for e in store.episodes] == [True, True]


def test_an_action_of_libero_leads_from_its_image_to_the_next(tmp_path: Path) -> None:
    """A toy with known dynamics, recorded as LIBERO's `create_dataset.py` does: act, then look."""
    path, _ = write_libero(tmp_path / "toy_demo.hdf5", (9,))
    with h5py.File(path, "a") as file:
        demo = file["data/demo_0"]
        demo["actions"][()] = np.random.default_rng(3).choice([-1.0, 1.0], (9, 7))
        place = 100
        for row, action in enumerate(demo["actions"][:, 0]):
            place += 10 * int(action)
            demo["obs/agentview_rgb"][row] = place
            demo["obs/gripper_states"][row] = place
        demo["rewards"][()] = np.arange(9)
    store = Hdf5Store(path)
    episode = read_episode(store, 0)
    actions, state, rewards = episode.actions, episode.state, episode.rewards
    assert len(episode) == 8
    assert actions is not None
    assert state is not None
    assert rewards is not None
    places = episode.frames["agentview_rgb"][:, 0, 0, 0].astype(int)
    np.testing.assert_array_equal(places[1:], places[:-1] + 10 * actions[:-1, 0])
    np.testing.assert_array_equal(state[:, 0], places)
    np.testing.assert_array_equal(rewards, np.arange(1, 9))
    with h5py.File(path) as file:  # nothing is lost but the first action and the last image
        np.testing.assert_array_equal(actions, file["data/demo_0/actions"][1:].astype(np.float32))
        np.testing.assert_array_equal(places, file["data/demo_0/obs/agentview_rgb"][:-1, 0, 0, 0])


def test_one_row_of_libero_holds_no_step(tmp_path: Path) -> None:
    path, _ = write_libero(tmp_path / "short_demo.hdf5", (1, 4))
    with pytest.raises(BadInputError, match="demo_0: found one row; expected two or more"):
        Hdf5Store(path)
    found: list[BadInputError] = []
    assert [e.length for e in Hdf5Store(path, on_bad_row=found.append).episodes] == [3]
    assert len(found) == 1


def test_a_folder_of_tasks(tmp_path: Path) -> None:
    # The name says what LIBERO's benchmark says; words in the file may be others.
    write_libero(tmp_path / "KITCHEN_SCENE3_turn_on_the_stove_demo.hdf5", words="switch the stove on")
    write_libero(tmp_path / "mine.hdf5", (3,), words='"open the top drawer"')
    store = open_dataset(tmp_path)
    told = [(e.length, e.instruction) for e in store.episodes]
    assert told == [(5, "turn on the stove"), (3, "turn on the stove"), (2, "open the top drawer")]
    one = open_dataset(tmp_path, camera="eye_in_hand_rgb")
    np.testing.assert_array_equal(one.frames(2, np.arange(2)), store.frames(2, np.arange(2), "eye_in_hand_rgb"))


@pytest.mark.parametrize(
    ("args", "instruction", "fps", "success"),
    [
        (ENV_ARGS | {"env_name": "Stack_D0"}, "stack", 20.0, True),
        (ENV_ARGS | {"env_kwargs": {"control_freq": 10, "lang": "do it"}}, "do it", 10.0, True),
        (ENV_ARGS | {"env_kwargs": {"reward_scale": 2.0}}, "lift the cube", 20.0, False),
        ({"env_name": "hopper-medium", "type": 2, "env_kwargs": {}}, "hopper medium", 20.0, None),
        (None, "", 20.0, True),
    ],
)
def test_what_env_args_tell(
    tmp_path: Path, args: dict[str, Any] | None, instruction: str, fps: float, success: bool | None
) -> None:
    store = Hdf5Store(write_robomimic(tmp_path / "image.hdf5", [made_demo(4, 0)], env_args=args))
    (told,) = store.episodes
    assert (told.instruction, told.fps, told.success) == (instruction, fps, success)


def test_words_of_a_demonstration_and_absent_parts(tmp_path: Path) -> None:
    demo = made_demo(4, 0)
    del demo["rewards"], demo["dones"]
    demo["obs"] = {"agentview_image": demo["obs"]["agentview_image"]}
    path = write_robomimic(tmp_path / "image.hdf5", [demo])
    with h5py.File(path, "a") as file:
        file["data/demo_0"].attrs["ep_meta"] = '{"lang": "close the fridge"}'
        del file["data/demo_0"].attrs["num_samples"]
    store = Hdf5Store(path)
    assert store.episodes[0].instruction == "close the fridge"
    assert store.episodes[0].success is None
    assert store.state(0) is None
    assert store.rewards(0) is None
    assert open_dataset(path, camera="agentview_image").rewards(0) is None


def test_subsets(tmp_path: Path) -> None:
    masks = {"better": [0, 1], "valid": [1], "train": [2, 0]}
    path = write_robomimic(tmp_path / "image.hdf5", masks=masks)
    assert split_names(path) == ("train", "valid", "better")
    assert [e.length for e in open_dataset(path, split="train").episodes] == [5, 3]
    assert [e.length for e in open_dataset(path, split="valid").episodes] == [12]
    assert Hdf5Store(path).splits == {"train": (0, 2), "valid": (1,), "better": (0, 1)}
    assert open_dataset(path).fingerprint != open_dataset(path, split="train").fingerprint
    with pytest.raises(BadInputError, match="'test'"):
        open_dataset(path, split="test")


def test_subsets_that_contradict_the_data(tmp_path: Path) -> None:
    masks = {"train": [0, 1], "valid": [1, 2], "better": [0, 7], "half_train": [1, 2], "half_test": [2], "test": [1]}
    path = write_robomimic(tmp_path / "image.hdf5", masks=masks)
    assert [(finding.where, finding.found) for finding in Hdf5Store(path).findings()] == [
        (f"{path}, mask/better", "demo_7"),
        (f"{path}, mask", "demo_1 in both mask/train and mask/valid"),
        (f"{path}, mask", "demo_1 in both mask/train and mask/test"),
        (f"{path}, mask", "demo_1 in both mask/valid and mask/test"),
        (f"{path}, mask", "demo_2 in both mask/half_test and mask/half_train"),
    ]
    assert [finding.where for finding in examine(path)] == [f"{path}, mask/better", *[f"{path}, mask"] * 4]


def test_splits_that_share_episodes_are_not_converted_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_robomimic(tmp_path / "image.hdf5", masks={"train": [0, 1], "valid": [1, 2]})
    assert split_names(convert(path, tmp_path / "out", drop=[DEPTH])) == ("train",)
    assert "splits are left out, since train and valid share the episodes 1" in capsys.readouterr().out
    write_robomimic(tmp_path / "b.hdf5", masks={"train": [0, 1], "20_percent": [1]})
    assert split_names(convert(tmp_path / "b.hdf5", tmp_path / "other", drop=[DEPTH])) == ("train",)
    assert "Left out: the splits 20_percent, since" in capsys.readouterr().out


def test_demonstrations_of_several_robots_and_success_of_some(tmp_path: Path) -> None:
    path = write_isaaclab(tmp_path / "dataset.hdf5")
    with h5py.File(path, "a") as file:
        del file["data/demo_1"].attrs["success"]
    with pytest.raises(BadInputError, match=r"found next.success, which cannot be kept.*--drop next.success"):
        convert(path, tmp_path / "out")
    out = open_dataset(convert(path, tmp_path / "all", drop=["next.success"]))
    assert [episode.success for episode in out.episodes] == [None, None]
    path = write_isaaclab(tmp_path / "robots.hdf5")
    with h5py.File(path, "a") as file:
        del file["data/demo_1/actions"]
        file["data/demo_1/actions"] = np.zeros((9, 14))
    (found,) = examine(path)
    assert (found.where, found.found) == (f"{path}, episode 1, actions", "14 dimensions")
    with pytest.raises(BadInputError, match=r"episode 1, actions: found 14 dimensions.*robots of each kind"):
        convert(path, tmp_path / "other")


def test_demonstrations_of_several_sizes_are_listed_and_not_converted_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    demos = [made_demo(length, length, size=32 if length == 3 else 24) for length in (2, 3, 4)]
    path = write_robomimic(tmp_path / "lift.hdf5", demos)
    info(path)
    words = "24x24 (2 of 3 episodes) and 32x32 (1 of 3 episodes)"
    assert f"agentview_image {words}, robot0_eye_in_hand_image {words}" in capsys.readouterr().out
    monkeypatch.setattr("counterpoint.cli.data.convert.LeRobotWriter", lambda *_, **__: pytest.fail("it was written"))
    with pytest.raises(BadInputError, match=rf"agentview_image: found images of {re.escape(words)}.*--size 24"):
        convert(path, tmp_path / "out", drop=["obs/agentview_depth"])


def test_nothing_that_is_read_is_not_converted(tmp_path: Path) -> None:
    path = write_isaaclab(tmp_path / "dataset.hdf5", images=False)
    with h5py.File(path, "a") as file:
        for demo in file["data"].values():
            file.move(f"{demo.name}/obs", f"{demo.name}/own")
            demo.create_group("obs")
            file.move(f"{demo.name}/own", f"{demo.name}/obs/critic")
    with pytest.raises(BadInputError, match=r"found neither images nor a state.*data info names what is left out"):
        convert(path, tmp_path / "out")


@cache
def _shared() -> tuple[Hdf5Store, np.ndarray[Any, Any]]:
    path = Path(mkdtemp()) / "image.hdf5"
    store = Hdf5Store(write_robomimic(path, [made_demo(40, 0, size=8)], compression="gzip"))
    return store, store.frames(0, np.arange(40))


@settings(deadline=None)
@given(st.lists(st.integers(0, 39), max_size=20), st.sampled_from(CAMERAS))
def test_reading_some_images_equals_choosing_among_all(steps: list[int], camera: str) -> None:
    store, _ = _shared()
    every = store.frames(0, np.arange(40), camera)
    np.testing.assert_array_equal(store.frames(0, np.array(steps, int), camera), every[np.array(steps, int)])


class _Reads(Dataset[Any]):
    """What a loader does: images and actions of one place in one episode."""

    def __init__(self, store: Hdf5Store) -> None:
        self.store = store

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        actions = self.store.actions(index % 3)
        assert actions is not None
        return self.store.frames(index % 3, np.array([index % 3, 0])), actions[index % 3]


def test_workers_read_what_the_parent_has_read_before(tmp_path: Path) -> None:
    reads = _Reads(Hdf5Store(write_robomimic(tmp_path / "image.hdf5", compression="gzip")))
    expected = [reads[index] for index in range(len(reads))]  # the parent's file is open when workers begin
    loader = DataLoader(reads, batch_size=None, num_workers=2, multiprocessing_context="fork")
    for (frames, actions), (frames_before, actions_before) in zip(loader, expected, strict=True):
        np.testing.assert_array_equal(frames, frames_before)
        np.testing.assert_array_equal(actions, actions_before)
    np.testing.assert_array_equal(reads[5][0], expected[5][0])  # nor is the parent's file the worse for it
    sent = pickle.loads(pickle.dumps(reads.store))  # as spawned workers get it
    assert not sent._open
    np.testing.assert_array_equal(sent.frames(1, np.arange(3)), reads.store.frames(1, np.arange(3)))


def test_more_files_than_are_held_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoint.formats.hdf5.reader._OPEN", 2)
    images = [write_libero(tmp_path / f"{n}_demo.hdf5", (3,), seed=n)[1][0] for n in range(4)]
    store = Hdf5Store(tmp_path)
    for number in (0, 1, 2, 3, 0, 2):
        np.testing.assert_array_equal(store.frames(number, np.arange(2)), images[number][:2])


def _damage(path: Path, how: str) -> None:
    if how == "no HDF5":
        path.write_bytes(b"not this")
        return
    with h5py.File(path, "a") as file:
        demo = file["data/demo_1"]
        if how == "no group 'data'":
            file.move("data", "elsewhere")
        elif how == "no demonstration":
            for name in list(file["data"]):
                del file["data"][name]
        elif how == "no actions":
            del demo["actions"]
        elif how == "no obs/robot0_eef_pos":
            del demo["obs/robot0_eef_pos"]
        elif how == "num_samples 99":
            demo.attrs["num_samples"] = 99
        elif how == "agentview_image 11":
            values = demo["obs/agentview_image"][:-1]
            del demo["obs/agentview_image"]
            demo["obs/agentview_image"] = values
        elif how == "a state of texts":
            del demo["obs/robot0_eef_pos"]
            demo["obs/robot0_eef_pos"] = np.array([b"text"] * 12)
        elif how == "env_args":
            file["data"].attrs["env_args"] = "{no JSON"


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("no HDF5", "no HDF5, or a damaged file"),
        ("no group 'data'", r"found the groups \['elsewhere'\]; expected a group 'data'"),
        ("no demonstration", "found no demonstration"),
        ("no actions", "demo_1: found no actions"),
        ("no obs/robot0_eef_pos", "demo_1: found no obs/robot0_eef_pos"),
        ("num_samples 99", "demo_1: found lengths that disagree: actions 12, num_samples 99"),
        ("agentview_image 11", "lengths that disagree: actions 12, obs/agentview_image 11"),
        ("a state of texts", "obs/robot0_eef_pos: found .*; expected an array of numbers"),
        ("env_args", "attribute env_args: found '{no JSON'"),
    ],
)
def test_damage_is_told_once(tmp_path: Path, how: str, told: str) -> None:
    path = write_robomimic(tmp_path / "image.hdf5")
    _damage(path, how)
    with pytest.raises(BadInputError, match=told):
        open_dataset(path)


@pytest.mark.slow
def test_doctor_tells_of_every_damaged_demonstration(tmp_path: Path) -> None:
    path = write_robomimic(tmp_path / "a.hdf5")
    write_robomimic(tmp_path / "b.hdf5")
    _damage(path, "no actions")
    _damage(tmp_path / "b.hdf5", "num_samples 99")
    assert [finding.where for finding in examine(tmp_path)] == [f"{path}, demo_1", f"{tmp_path / 'b.hdf5'}, demo_1"]


def test_the_rest_of_a_damaged_file_is_of_use(tmp_path: Path) -> None:
    path = write_robomimic(tmp_path / "image.hdf5", masks={"train": [1, 2]})
    _damage(path, "no actions")
    findings: list[BadInputError] = []
    store = open_dataset(path, split="train", on_bad_row=findings.append)
    assert [e.length for e in store.episodes] == [3]
    assert len(findings) == 1


def test_files_with_other_cameras_are_not_mixed(tmp_path: Path) -> None:
    write_robomimic(tmp_path / "a.hdf5")
    write_libero(tmp_path / "b_demo.hdf5")
    with pytest.raises(BadInputError, match=r"b_demo.hdf5: found cameras.*as in a.hdf5"):
        open_dataset(tmp_path)


def test_a_camera_that_is_not_there_and_a_file_that_changed(tmp_path: Path) -> None:
    path = write_robomimic(tmp_path / "image.hdf5")
    store = Hdf5Store(path)
    with pytest.raises(BadInputError, match="camera: found 'side'"):
        store.frames(0, np.arange(2), "side")
    before = store.fingerprint
    with h5py.File(path, "a") as file:
        del file["data/demo_0/actions"]
    assert store.fingerprint != before
    with pytest.raises(BadInputError, match="demo_0, actions"):
        store.actions(0)


def test_without_h5py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_robomimic(tmp_path / "image.hdf5")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtraError, match=r"pip install -e '\.\[hdf5\]'"):
        open_dataset(path)


def test_info_doctor_and_convert(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    masks = {"valid": [1], "train": [0, 2], "better": [0]}
    path = write_robomimic(tmp_path / "image.hdf5", masks=masks)
    monkeypatch.setenv("COLUMNS", "160")
    info(path)
    told = capsys.readouterr().out
    for fact in ("HDF5 of robomimic", "3, of 3 to 12 frames", "agentview_image 24x24", "9 dimensions"):
        assert fact in told
    for fact in ("7 dimensions", "train (2 episodes)", "better (1 episodes)", "67% of 3", "lift the cube"):
        assert fact in told
    assert doctor(path) == 0
    assert " ".join(told.replace("│", "").split()).count(DEPTH) == 1
    with pytest.raises(BadInputError, match=f"found {DEPTH}, which cannot be kept.*--drop {DEPTH}"):
        convert(path, tmp_path / "out")
    out = open_dataset(convert(path, tmp_path / "out", drop=[DEPTH]))
    assert f"Left out: dones, next_obs, {DEPTH} (float64 [5, 24, 24, 1]), " in capsys.readouterr().out
    assert split_names(tmp_path / "out") == ("train", "valid")  # "better" overlaps them
    source = open_dataset(path)
    assert [e.length for e in out.episodes] == [5, 3, 12]  # training episodes first, as LeRobot's ranges need
    for number, before in enumerate((0, 2, 1)):
        np.testing.assert_array_equal(out.actions(number), source.actions(before))
        np.testing.assert_array_equal(out.state(number), source.state(before))
        assert out.episodes[number] == source.episodes[before]
    assert [e.length for e in open_dataset(tmp_path / "out", split="valid").episodes] == [12]


def _external_storage(path: Path, secret: Path) -> None:
    with h5py.File(path, "a") as file:
        obs = file["data/demo_0/obs"]
        shape = obs["agentview_image"].shape
        del obs["agentview_image"]
        obs.create_dataset("agentview_image", shape, "u1", external=[(str(secret), 0, h5py.h5f.UNLIMITED)])


def _external_link(path: Path, secret: Path) -> None:
    other = write_robomimic(secret.with_suffix(".other"))
    with h5py.File(path, "a") as file:
        del file["data/demo_0/obs"]
        file["data/demo_0/obs"] = h5py.ExternalLink(str(other), "/data/demo_0/obs")


def _soft_link_through_an_external_link(path: Path, secret: Path) -> None:
    other = write_robomimic(secret.with_suffix(".other"))
    with h5py.File(path, "a") as file:
        file["elsewhere"] = h5py.ExternalLink(str(other), "/data")
        del file["data/demo_0/actions"]
        file["data/demo_0/actions"] = h5py.SoftLink("/elsewhere/demo_0/actions")


def _virtual_dataset(path: Path, secret: Path) -> None:
    other = write_robomimic(secret.with_suffix(".other"))
    with h5py.File(path, "a") as file:
        shape = file["data/demo_0/actions"].shape
        del file["data/demo_0/actions"]
        layout = h5py.VirtualLayout(shape, "f8")
        layout[:] = h5py.VirtualSource(str(other), "data/demo_0/actions", shape)
        file.create_virtual_dataset("data/demo_0/actions", layout)


@pytest.mark.parametrize(
    "refer", [_external_storage, _external_link, _soft_link_through_an_external_link, _virtual_dataset]
)
def test_a_file_that_refers_to_another_is_refused(tmp_path: Path, refer: Callable[[Path, Path], None]) -> None:
    path = write_robomimic(tmp_path / "data" / "image.hdf5")
    secret = tmp_path / "secret"
    secret.write_bytes(b"x" * 100_000)
    refer(path, secret)
    for read in (Hdf5Store, split_names, env_args):
        with pytest.raises(BadInputError, match=r"external link|kept in another file"):
            read(path)
    assert [finding.expected for finding in examine(path)] == ["data inside the file"]


def test_a_soft_link_inside_the_file_is_followed(tmp_path: Path) -> None:
    path = write_robomimic(tmp_path / "image.hdf5")
    with h5py.File(path, "a") as file:
        file.move("data/demo_0/actions", "kept")
        file["data/demo_0/actions"] = h5py.SoftLink("/kept")
    actions = Hdf5Store(path).actions(0)
    assert actions is not None
    assert actions.shape == (5, 7)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("actions", np.nan),
        pytest.param("rewards", np.inf, marks=pytest.mark.slow),
        pytest.param("obs/robot0_eef_pos", np.nan, marks=pytest.mark.slow),
    ],
)
def test_numbers_that_are_not_finite_are_refused_and_found(tmp_path: Path, part: str, value: float) -> None:
    path = write_robomimic(tmp_path / "image.hdf5")
    with h5py.File(path, "a") as file:
        file[f"data/demo_1/{part}"][3] = value
    store = Hdf5Store(path)
    name = "state" if part.startswith("obs") else part
    with pytest.raises(BadInputError, match=f"demo_1, {name}: found a value that is not finite at step 3"):
        getattr(store, name)(1)
    assert [finding.where for finding in examine(path)] == [f"{path}, demo_1, {name}"]


def test_files_of_one_environment_keep_their_own_instructions(tmp_path: Path) -> None:
    write_robomimic(tmp_path / "open_the_drawer_demo.hdf5")
    write_robomimic(tmp_path / "close_the_drawer.hdf5")
    words = {**ENV_ARGS, "env_kwargs": {"lang": "wipe the table"}}
    write_robomimic(tmp_path / "z.hdf5", env_args=words)
    assert [info.instruction for info in Hdf5Store(tmp_path).episodes[::3]] == [
        "close the drawer",
        "open the drawer",
        "wipe the table",
    ]
