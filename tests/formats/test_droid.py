from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counterpoint.cli.data.convert import convert
from counterpoint.cli.data.doctor import doctor, examine
from counterpoint.cli.data.info import info
from counterpoint.errors import BadInputError
from counterpoint.formats import open_dataset, recognise
from counterpoint.formats.droid import DroidStore
from counterpoint.formats.video import encode_video
from tests.data.reading import read_episode
from tests.formats.made import smooth_frames

h5py = pytest.importorskip("h5py")

SERIALS = {"22008760": 1, "18026681": 0, "24400334": 1}
"""Serial number of each camera, in no order -> 0 on the wrist, 1 beside the robot."""
NOTES = "aggregated-annotations-030724.json"


def write_numbers(path: Path, length: int, changed: Mapping[str, Any]) -> None:
    """At step t, every number is t plus a hundredth of its place; a change replaces or (`None`) removes a part."""
    steps = np.arange(length, dtype=np.float64)
    wide = {6: ("action/cartesian_position", "observation/robot_state/cartesian_position"), 7: (
        "action/joint_velocity", "observation/robot_state/joint_positions")}  # fmt: skip
    parts: dict[str, Any] = {name: steps[:, None] + np.arange(n) / 100 for n, names in wide.items() for name in names}
    parts |= {"action/gripper_position": steps / 10, "observation/robot_state/gripper_position": steps / 20}
    parts |= {f"observation/camera_type/{serial}": np.full(length, kind) for serial, kind in SERIALS.items()}
    parts |= {"observation/timestamp/control/step_start": (66 * steps).astype(np.int64)}
    with h5py.File(path, "w") as file:
        file.attrs["current_task"], file.attrs["success"] = "Move object (ex: cup)", True
        for name, values in {**parts, **changed}.items():
            if values is not None:
                file[name] = values


def write_droid_episode(
    folder: Path,
    uuid: str = "",
    *,
    length: int = 6,
    frames: Mapping[str, int] | None = None,
    metadata: Mapping[str, Any] | None = None,
    **changed: Any,
) -> Path:
    """An episode as DROID's recorder leaves it; `frames` gives the lengths of videos that differ, 0 for none."""
    recordings = folder / "recordings" / "MP4"
    recordings.mkdir(parents=True)
    write_numbers(folder / "trajectory.h5", length, {name.replace("__", "/"): part for name, part in changed.items()})
    if uuid:
        about = {"uuid": uuid, "success": True, "current_task": "Move object (ex: cup)", "trajectory_length": length}
        (folder / f"metadata_{uuid}.json").write_text(json.dumps({**about, **(metadata or {})}))
    for number, serial in enumerate(sorted(SERIALS)):
        count = (frames or {}).get(serial, length)
        if count:
            encode_video(recordings / f"{serial}.mp4", smooth_frames(count, 32, 48, seed=number), 60)
    return folder


def write_droid(root: Path, lab: str = "IRIS") -> Path:
    """A success with three annotations, one of them empty, and a failure without; returns `root`."""
    good, bad = (f"{lab}+7dfa2da3+2023-04-25-{hour}h-42m-28s" for hour in (11, 12))
    write_droid_episode(root / lab / "success" / "2023-04-25" / "Tue_Apr_25_11:42:28_2023", good)
    failed = root / lab / "failure" / "2023-04-25" / "Tue_Apr_25_12:42:28_2023"
    write_droid_episode(failed, bad, length=5, metadata={"success": False})
    notes = {"language_instruction1": " ", "language_instruction2": "Pour it out ", "language_instruction3": "Empty it"}
    (root / NOTES).write_text(json.dumps({good: notes, "IRIS+none": {"language_instruction1": "x"}}))
    return root


def test_recognised_from_every_folder_above_an_episode(tmp_path: Path) -> None:
    root = write_droid(tmp_path / "droid_raw" / "1.0.1")
    day = root / "IRIS" / "success" / "2023-04-25"
    found = {folder: len(open_dataset(folder).episodes) for folder in (tmp_path / "droid_raw", root, root / "IRIS")}
    assert set(found.values()) == {2}
    for folder in (day.parent, day, next(day.iterdir())):
        assert recognise(folder).name == "droid"
        store = open_dataset(folder)
        assert isinstance(store, DroidStore)
        assert store.episodes[0].instruction == "Pour it out"  # from the annotations above


def test_steps_cameras_numbers_and_outcomes(tmp_path: Path) -> None:
    store = open_dataset(write_droid(tmp_path))
    assert store.cameras == ("exterior_image_1_left", "exterior_image_2_left", "wrist_image_left")
    assert [(e.length, e.fps, e.success) for e in store.episodes] == [(5, 15.0, False), (6, 15.0, True)]
    every = np.concatenate([smooth_frames(6, 32, 48, seed=seed) for seed in range(3)])  # in the order of serial numbers
    seen = {camera: store.frames(1, np.array([4, 0]), camera) for camera in store.cameras}
    nearest = {
        camera: np.abs(frames[:, None].astype(int) - every).mean((2, 3, 4)).argmin(1) for camera, frames in seen.items()
    }
    assert {camera: found.tolist() for camera, found in nearest.items()} == {
        "wrist_image_left": [4, 0],
        "exterior_image_1_left": [10, 6],
        "exterior_image_2_left": [16, 12],
    }
    episode = read_episode(store, 1)
    assert episode.actions is not None
    assert episode.state is not None
    np.testing.assert_allclose(episode.actions[3], [3, 3.01, 3.02, 3.03, 3.04, 3.05, 0.3], rtol=1e-6)
    np.testing.assert_allclose(episode.state[2, [0, 5, 6, 7, 13]], [2, 2.05, 0.1, 2, 2.06], rtol=1e-6)
    assert store.rewards(0) is None


def test_instructions_are_chosen_by_key(tmp_path: Path) -> None:
    root = write_droid(tmp_path)
    texts = {key: [e.instruction for e in open_dataset(root, instruction_key=key).episodes] for key in (
        "language_instruction1", "language_instruction3", "current_task")}  # fmt: skip
    assert texts["language_instruction1"] == ["", ""]
    assert texts["language_instruction3"] == ["", "Empty it"]
    assert texts["current_task"] == ["Move object (ex: cup)"] * 2
    assert [e.instruction for e in open_dataset(root).episodes] == ["Move object (ex: cup)", "Pour it out"]
    prints = {open_dataset(root, instruction_key=key).fingerprint for key in (None, *texts)}
    assert len(prints) == 4
    with pytest.raises(BadInputError, match=r"expected one of .*language_instruction3"):
        open_dataset(root, instruction_key="language_instruction4")


def test_episodes_without_words_are_told(tmp_path: Path) -> None:
    root = write_droid(tmp_path)
    failed = next(root.glob("IRIS/failure/*/*"))
    about = next(failed.glob("metadata_*.json"))
    about.write_text(json.dumps(json.loads(about.read_text()) | {"current_task": " "}))
    with h5py.File(failed / "trajectory.h5", "a") as file:
        del file.attrs["current_task"]
    (found,) = examine(root)
    assert (found.where, found.found) == (str(root), "no instruction for 1 of 2 episodes: 0")


def test_folders_as_they_are_recorded(tmp_path: Path) -> None:
    """Without metadata and annotations, as before DROID's postprocessing."""
    write_droid_episode(tmp_path / "data" / "first")
    store = open_dataset(tmp_path / "data")
    assert [(e.instruction, e.success) for e in store.episodes] == [("Move object (ex: cup)", True)]


def test_a_video_that_lacks_the_last_frame_cuts_its_episode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    write_droid_episode(tmp_path / "data" / "first", frames={"18026681": 5, "22008760": 7})
    store = open_dataset(tmp_path / "data")
    assert store.episodes[0].length == 5
    assert read_episode(store, 0).frames["wrist_image_left"].shape == (5, 32, 48, 3)
    info(tmp_path / "data")
    assert "1 by 1 step" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ({"frames": {"18026681": 3}}, "3 frames for 6 steps"),
        ({"frames": {"18026681": 24}}, "24 frames for 6 steps"),
        ({"frames": dict.fromkeys(SERIALS, 0)}, "svo_to_mp4"),
        ({"action__gripper_position": np.zeros(5)}, "gripper_position 5"),
        ({"action__cartesian_position": np.zeros((6, 7))}, r"the shape \[6, 7\]"),
        ({"action__gripper_position": None}, "no array of numbers at action/gripper_position"),
        ({"observation__camera_type__22008760": np.zeros(6, int)}, "2 cameras on the wrist"),
        ({"observation__camera_type__22008760": np.array(["a"] * 6, "S1")}, "camera_type/22008760"),
        ({"observation__camera_type__22008760": np.zeros((6, 2), int)}, "cannot reshape"),
        ({"observation__camera_type__22008760": np.full(6, np.inf)}, "infinity"),
        ({"uuid": "a", "metadata": {"trajectory_length": 7}}, "trajectory_length 7"),
        ({"uuid": "a", "metadata": {"trajectory_length": "x"}}, "metadata as DROID"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, made: dict[str, Any], words: str) -> None:
    told: list[BadInputError] = []
    assert not open_dataset(write_droid_episode(tmp_path / "a", **made), on_bad_row=told.append).episodes
    assert [bool(re.search(words, str(error))) for error in told] == [True]


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    write_droid_episode(tmp_path / "a", action__gripper_position=np.full(6, np.nan))
    with pytest.raises(BadInputError, match="not finite"):
        open_dataset(tmp_path).actions(0)


def test_episodes_with_other_videos_are_told(tmp_path: Path) -> None:
    write_droid_episode(tmp_path / "a")
    write_droid_episode(tmp_path / "b", frames={"22008760": 0})
    with pytest.raises(BadInputError, match="as in a"):
        open_dataset(tmp_path)
    assert len(open_dataset(tmp_path, on_bad_row=lambda error: None).episodes) == 1
    shutil.rmtree(tmp_path / "a")
    assert open_dataset(tmp_path).cameras == ("exterior_image_2_left", "wrist_image_left")


def test_two_files_of_metadata_or_annotations_are_refused(tmp_path: Path) -> None:
    root = write_droid(tmp_path)
    (root / "droid_language_annotations.json").write_text("{}")
    with pytest.raises(BadInputError, match="several files of annotations"):
        open_dataset(root)
    (root / "droid_language_annotations.json").unlink()
    (next((root / "IRIS" / "success" / "2023-04-25").iterdir()) / "metadata_x.json").write_text("{}")
    with pytest.raises(BadInputError, match="2 files metadata"):
        open_dataset(root)


def test_info_doctor_and_convert(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    root = write_droid(tmp_path / "raw")
    episode = next((root / "IRIS" / "success" / "2023-04-25").iterdir())
    shutil.copy(episode / "recordings" / "MP4" / "22008760.mp4", episode / "recordings" / "MP4" / "22008760-stereo.mp4")
    info(root)
    told = " ".join(capsys.readouterr().out.split())
    for fact in ("DROID", "2, of 5 to 6 frames", f"{NOTES}, of 1 episodes", "stereo views", "15 (assumed"):
        assert fact in told
    assert "language_instruction1 (empty in 2 of 2 episodes)" in told
    assert doctor(root) == 0
    written = open_dataset(convert(root, tmp_path / "out", instruction_key="language_instruction3"))
    assert [e.instruction for e in written.episodes] == ["", "Empty it"]
    metadata = next(episode.glob("metadata_*.json"))
    metadata.write_text(json.dumps({"success": False}))
    assert doctor(root) == 2
