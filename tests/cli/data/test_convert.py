from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from counterpoint.cli.data.convert import convert
from counterpoint.cli.data.doctor import doctor, examine
from counterpoint.data.resize import resize
from counterpoint.errors import BadInputError
from counterpoint.formats import open_dataset, split_names
from counterpoint.formats.video import encode_video
from tests.formats.hdf5.made import write_robomimic
from tests.formats.lerobot.made import edit_column, write_v30
from tests.formats.lerobot.made import episode as made_episode
from tests.formats.lerobot.test_membership import keep
from tests.formats.made import smooth_frames, write_epic, write_lerobot, write_variable_rate, write_videos


def test_convert_keeps_segments_and_numbers_episodes_anew(tmp_path: Path) -> None:
    parts = ((0, "reach"), (2, "grasp"))
    made = [replace(made_episode(n), instruction="reach; grasp", segments=parts) for n in range(3)]
    root = write_v30(tmp_path / "set", made, splits={"train": "0:1", "val": "1:3"})
    keep(root, [0, 2])
    store = open_dataset(convert(root, tmp_path / "out"))
    assert [info.segments for info in store.episodes] == [parts, parts]
    np.testing.assert_array_equal(store.actions(1), made[2].actions)
    assert len(open_dataset(tmp_path / "out", split="val").episodes) == 1
    made[0] = replace(made[0], instruction="tidy up")
    root = write_v30(tmp_path / "subtasks", made, subtasks=True)
    store = open_dataset(convert(root, tmp_path / "again"))
    assert [(info.instruction, info.segments) for info in store.episodes[:2]] == [
        ("tidy up", parts),
        ("reach; grasp", parts),
    ]


def test_convert_retimes_a_clock_that_jitters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_v30(tmp_path / "set", [made_episode(0, sizes={}), made_episode(1, sizes={})])
    edit_column(root / "data/chunk-000/file-000.parquet", "timestamp", [0, 0.104, 0.2, 0.297, 0.4] * 2)
    with pytest.raises(BadInputError, match="--retime"):
        convert(root, tmp_path / "out")
    store = open_dataset(convert(root, tmp_path / "out", retime=True))
    assert "The largest move of a timestamp was 0.004000 s" in capsys.readouterr().out
    np.testing.assert_allclose(store.timestamps(1), np.arange(5) / 10)
    with pytest.raises(BadInputError, match="--retime: found a video folder data set"):
        convert(write_videos(tmp_path / "videos"), tmp_path / "v", retime=True)


@pytest.mark.parametrize(
    ("masks", "splits"),
    [
        ({"train": (0, 2), "valid": (1,)}, {"train": 2, "valid": 1}),
        pytest.param({"train": (2,)}, {"train": 1}, marks=pytest.mark.slow),
        pytest.param({"valid": (1,)}, {"train": 3}, marks=pytest.mark.slow),
        ({"train": (0, 1), "valid": (1,)}, {"train": 3}),
    ],
)
def test_convert_puts_the_training_demonstrations_first(
    tmp_path: Path, masks: dict[str, tuple[int, ...]], splits: dict[str, int]
) -> None:
    source = write_robomimic(tmp_path / "lift.hdf5", masks=masks)
    out = convert(source, tmp_path / "out", drop=["obs/agentview_depth"])
    assert {name: len(open_dataset(out, split=name).episodes) for name in split_names(out)} == splits
    kept = [open_dataset(source).episodes[number].length for number in masks.get("train", ())]
    if "train" in masks and set(masks["train"]).isdisjoint(masks.get("valid", ())):
        assert [episode.length for episode in open_dataset(out, split="train").episodes] == kept


def test_convert_videos(tmp_path: Path) -> None:
    source = write_videos(tmp_path / "videos", fps=10)
    out = convert(source, tmp_path / "out")
    before, after = open_dataset(source), open_dataset(out)
    assert [(e.length, e.instruction) for e in after.episodes] == [(e.length, e.instruction) for e in before.episodes]
    for number, episode in enumerate(before.episodes):
        steps = np.arange(episode.length)
        change = after.frames(number, steps).astype(float) - before.frames(number, steps)
        assert np.abs(change).mean() < 3
    assert doctor(out) == 0
    told = json.loads((out / "meta" / "info.json").read_text())["counterpoint"]
    assert told["source_fps"] == [10]
    assert told["source_fingerprint"] == before.fingerprint


def test_convert_keeps_splits_vectors_success_and_lossless_cameras(tmp_path: Path) -> None:
    source = write_lerobot(tmp_path / "data", splits={"train": "0:2", "val": "2:3"}, image_cameras=["wrist"])
    out = convert(source, tmp_path / "out")
    before, after = open_dataset(source), open_dataset(out)
    assert split_names(out) == ("train", "val")
    assert before.episodes == after.episodes
    for number, episode in enumerate(before.episodes):
        steps = np.arange(episode.length)
        np.testing.assert_array_equal(after.frames(number, steps, "wrist"), before.frames(number, steps, "wrist"))
        np.testing.assert_array_equal(after.actions(number), before.actions(number))
        np.testing.assert_array_equal(after.state(number), before.state(number))


@pytest.mark.parametrize("nothing", ["None", pytest.param("", marks=pytest.mark.slow)])
def test_convert_names_the_task_of_episodes_without_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], nothing: str
) -> None:
    source = write_v30(
        tmp_path / "set", [made_episode(n, sizes={}, instruction=text) for n, text in enumerate((nothing, "lift"))]
    )
    unnamed = convert(source, tmp_path / "unnamed")
    assert "1 of 2 episodes have no instruction: give one with --instruction TEXT" in capsys.readouterr().out
    (finding,) = examine(unnamed)
    assert finding.hint == f"name their task: counterpoint data convert {unnamed} OUT --instruction TEXT"
    named = convert(unnamed, tmp_path / "named", instruction="push the T")
    assert [info.instruction for info in open_dataset(named).episodes] == ["push the T", "lift"]
    assert doctor(named) == 0
    for given, found in (("wipe", "'wipe' for 0 episodes"), (" ", "' ' for 0 episodes")):
        with pytest.raises(BadInputError, match=f"--instruction: found {found} without an instruction"):
            convert(named, tmp_path / "again", instruction=given)
    assert not (tmp_path / "again").exists()


def test_convert_resizes(tmp_path: Path) -> None:
    source = write_lerobot(tmp_path / "data", image_cameras=["top", "wrist"])
    out = convert(source, tmp_path / "out", size=16)
    steps = np.arange(3)
    np.testing.assert_array_equal(open_dataset(out).frames(2, steps), resize(open_dataset(source).frames(2, steps), 16))


def test_convert_of_videos_that_differ_in_size_needs_one(tmp_path: Path) -> None:
    source = write_videos(tmp_path / "videos")
    encode_video(source / "videos" / "1.mp4", smooth_frames(6, 48, 48), 10)
    with pytest.raises(BadInputError, match="--size"):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert [e.length for e in open_dataset(convert(source, tmp_path / "out", size=32)).episodes] == [12, 6]


def test_convert_of_one_fractional_rate_keeps_every_frame(tmp_path: Path) -> None:
    source = write_videos(tmp_path / "videos", fps=3.4)
    out = open_dataset(convert(source, tmp_path / "out"))
    assert [(e.length, e.fps) for e in out.episodes] == [(12, 3), (12, 3)]


def test_convert_of_several_rates_asks_for_one_and_takes_nearest_frames(tmp_path: Path) -> None:
    source = write_epic(tmp_path / "epic", frames=60)  # 50 and 59.94 frames a second
    with pytest.raises(BadInputError, match="--fps 50"):
        convert(source, tmp_path / "out")
    out = open_dataset(convert(source, tmp_path / "out", fps=30))
    assert [(e.length, e.fps) for e in out.episodes] == [(2, 30), (2, 30), (30, 30)]
    change = out.frames(2, np.array([20])).astype(float) - open_dataset(source).frames(2, np.arange(60))
    assert np.abs(change).mean(axis=(1, 2, 3)).argmin() == round(20 / 30 * 59.94)


@pytest.mark.slow
def test_convert_of_a_rate_that_varies_takes_frames_nearest_in_time(tmp_path: Path) -> None:
    source = tmp_path / "videos"
    source.mkdir()
    times = write_variable_rate(source / "phone.mp4")
    (source / "manifest.csv").write_text("video,instruction\nphone.mp4,open\n")
    with pytest.raises(BadInputError, match="a rate that varies"):
        convert(source, tmp_path / "out")
    out = open_dataset(convert(source, tmp_path / "out", fps=10))
    assert out.episodes[0].length == int(times[-1] * 10) + 1
    assert doctor(tmp_path / "out") == 0
    change = out.frames(0, np.array([20])).astype(float) - open_dataset(source).frames(0, np.arange(40))
    assert np.abs(change).mean(axis=(1, 2, 3)).argmin() == np.abs(times - 2.0).argmin()


def test_actions_are_never_resampled(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="actions"):
        convert(write_lerobot(tmp_path / "data"), tmp_path / "out", fps=5)


def test_convert_refuses_an_existing_folder(tmp_path: Path) -> None:
    source = write_videos(tmp_path / "videos")
    with pytest.raises(BadInputError, match="existing"):
        convert(source, tmp_path / "videos")
