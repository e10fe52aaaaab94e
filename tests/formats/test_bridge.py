from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from counterpoint.cli.data.convert import convert
from counterpoint.cli.data.doctor import doctor
from counterpoint.cli.data.info import info
from counterpoint.errors import BadInputError
from counterpoint.formats import open_dataset, recognise
from counterpoint.formats.bridge import BridgeStore
from tests.data.reading import read_episode

LANGUAGE = "put the carrot on the plate\nplace the carrot onto the plate\nconfidence: 4\n"


def write_trajectory(
    folder: Path,
    *,
    actions: int = 4,
    cameras: int = 2,
    language: str = LANGUAGE,
    protocol: int | None = None,
    bare: bool = False,
    **changed: Any,
) -> Path:
    """T actions [t, 0, ...], T + 1 states [10 + t, ...] and images of brightness 40 t; returns the folder."""
    folder.mkdir(parents=True)
    steps = np.arange(actions + 1)
    observed = {
        "full_state": np.pad((10.0 + steps)[:, None], ((0, 0), (0, 6))),
        "time_stamp": 1.6e9 + steps / 5,
        "high_bound": [np.float32(1)] * 5,
        "env_done": [False] * len(steps),
    }
    policy: list[Any] = [np.pad([float(step)], (0, 6)) for step in range(actions)]
    if not bare:
        policy = [{"actions": one, "policy_type": "VRPolicy", "delta_robot_transform": np.eye(4)} for one in policy]
    (folder / "obs_dict.pkl").write_bytes(pickle.dumps({**observed, **changed.pop("observed", {})}, protocol))
    (folder / "policy_out.pkl").write_bytes(pickle.dumps(changed.pop("policy", policy), protocol))
    assert not changed
    if language:
        (folder / "lang.txt").write_text(language)
    for camera in range(cameras):
        (folder / f"images{camera}").mkdir()
        for step in steps:
            image = np.full((24, 32, 3), 40 * step + 10 * camera, np.uint8)
            Image.fromarray(image).save(folder / f"images{camera}" / f"im_{step}.jpg", quality=95)
    return folder


def write_bridge(root: Path) -> Path:
    """Two trajectories with language and two cameras, one without and with one camera; returns `root`."""
    day = root / "datacol2_toykitchen5" / "pnp" / "05" / "2023-07-11_14-06-57" / "raw" / "traj_group0"
    write_trajectory(day / "traj2")
    write_trajectory(day / "traj10", actions=5)
    write_trajectory(day.parent / "traj_group1" / "traj0", actions=3, cameras=1, language="")
    (day / "traj2" / "depth_images0").mkdir()
    return root


def test_recognised_from_every_folder_above_a_trajectory(tmp_path: Path) -> None:
    folder = next((write_bridge(tmp_path / "bridge_data_v2")).glob("**/traj2"))
    while folder != tmp_path.parent:
        assert recognise(folder).name == "bridge"
        assert isinstance(open_dataset(folder), BridgeStore)
        folder = folder.parent
    lengths = [4, 5, 3]  # traj2 before traj10, and group 0 before group 1
    assert [episode.length for episode in open_dataset(tmp_path).episodes] == lengths


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("bare", [False, True])
def test_step_t_holds_image_state_and_action_t(tmp_path: Path, protocol: int, bare: bool) -> None:
    store = open_dataset(write_trajectory(tmp_path / "traj0", protocol=protocol, bare=bare))
    assert store.cameras == ("image_0", "image_1")
    episode = read_episode(store, 0)
    assert episode.actions is not None
    assert episode.state is not None
    np.testing.assert_array_equal(episode.actions[:, 0], np.arange(4))
    np.testing.assert_array_equal(episode.state[:, 0], 10 + np.arange(4))
    np.testing.assert_array_equal(episode.frames["image_0"].mean((1, 2, 3)).round(), 40 * np.arange(4))
    np.testing.assert_array_equal(store.frames(0, np.array([3, 1]), "image_1").mean((1, 2, 3)).round(), [130, 50])
    assert (store.episodes[0].fps, store.episodes[0].success, store.rewards(0)) == (5.0, None, None)


def test_images_that_were_recorded_late_go_with_the_action_before_them(tmp_path: Path) -> None:
    for day, late in (("2021-07-22_23-59-59", 1), ("2021-07-23_00-00-00", 0)):
        store = open_dataset(write_trajectory(tmp_path / day / "raw" / "traj_group0" / "traj0"))
        episode = read_episode(store, 0)
        assert episode.actions is not None
        assert episode.state is not None
        np.testing.assert_array_equal(episode.actions[:, 0], np.arange(4 - late))
        np.testing.assert_array_equal(episode.state[:, 0], 10 + np.arange(late, 4))
        seen = episode.frames["image_0"].mean((1, 2, 3)).round()
        np.testing.assert_array_equal(seen, 40 * np.arange(late, 4))


def test_instructions_of_several_people(tmp_path: Path) -> None:
    root = write_bridge(tmp_path)
    assert [e.instruction for e in open_dataset(root).episodes] == ["put the carrot on the plate"] * 2 + [""]
    whole, second = open_dataset(root), open_dataset(root, instruction_key="line_2")
    assert isinstance(whole, BridgeStore)
    assert list(whole.instructions) == ["line_1", "line_2"]  # not the confidence
    assert [e.instruction for e in second.episodes] == ["place the carrot onto the plate"] * 2 + [""]


def test_info_doctor_and_convert(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    root = write_bridge(tmp_path / "raw")
    info(root)
    told = " ".join(capsys.readouterr().out.split())
    for fact in ("BridgeData", "5 (assumed", "image_0 32x24", "image_1 (in 2 of 3 trajectories)", "depth images"):
        assert fact in told
    assert "line_2 (empty in 1 of 3 episodes)" in told
    assert doctor(root) == 2
    assert "no instruction for 1 of 3 episodes: 2" in capsys.readouterr().out
    with pytest.raises(BadInputError, match="--drop depth_images0"):
        convert(root, tmp_path / "out")
    written = open_dataset(convert(root, tmp_path / "out", drop=["depth_images0"]))
    np.testing.assert_array_equal(written.actions(1), open_dataset(root).actions(1))
    assert "Of several instructions an episode, the first that is not empty were written" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({"observed": {"full_state": None}}, "no such full_state"),
        ({"observed": {"full_state": np.zeros((5, 6))}}, "7 numbers"),
        ({"observed": {"full_state": np.full((5, 7), np.nan)}}, "not finite"),
        ({"observed": {"full_state": np.zeros((4, 7))}}, "full_state 4, image_0 5, image_1 5, for 4 actions"),
        ({"policy": [{"actions": np.zeros(7)}] * 5}, "for 5 actions; expected 6 of each"),
        ({"policy": [{"actions": np.zeros(7)}, {}]}, "no such actions"),
        ({"policy": {"actions": []}}, "a list of actions"),
        ({"policy": []}, "no such actions"),
        ({"cameras": 0}, "images0"),
    ],
)
def test_what_cannot_be_used_is_refused_or_left_out(tmp_path: Path, made: dict[str, Any], words: str) -> None:
    write_trajectory(tmp_path / "raw" / "traj_group0" / "traj0", **made)
    write_trajectory(tmp_path / "raw" / "traj_group0" / "traj1")
    with pytest.raises(BadInputError, match=words):
        open_dataset(tmp_path)
    told: list[BadInputError] = []
    assert len(open_dataset(tmp_path, on_bad_row=told.append).episodes) == 1
    assert len(told) == 1


def test_a_pickle_that_runs_something_is_refused(tmp_path: Path) -> None:
    folder = write_trajectory(tmp_path / "traj0")
    (folder / "policy_out.pkl").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(BadInputError, match=r"a pickle that needs os.system"):
        open_dataset(folder)


def test_missing_images_are_named(tmp_path: Path) -> None:
    folder = write_trajectory(tmp_path / "traj0")
    (folder / "images1" / "im_2.jpg").unlink()
    with pytest.raises(BadInputError, match=r"images1: found no im_2.jpg"):
        open_dataset(folder)
    shutil.rmtree(folder / "images1")
    (folder / "images0" / "im_1.jpg").write_bytes(b"\xff\xd8")
    with pytest.raises(BadInputError, match=r"im_1.jpg"):
        open_dataset(folder).frames(0, np.array([1]))


def test_trajectories_without_a_common_camera_are_refused(tmp_path: Path) -> None:
    write_trajectory(tmp_path / "raw" / "traj_group0" / "traj0", cameras=1)
    other = write_trajectory(tmp_path / "raw" / "traj_group0" / "traj1", cameras=1)
    (other / "images0").rename(other / "images1")
    with pytest.raises(BadInputError, match="image_0 in 1 of 2, image_1 in 1 of 2"):
        open_dataset(tmp_path)
