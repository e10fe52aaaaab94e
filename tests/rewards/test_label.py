from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from torch import Tensor

from counterpoint.blocks import Block, Engine
from counterpoint.cli.data.doctor import examine
from counterpoint.data.episode import Episode
from counterpoint.data.segments import SegmentStore
from counterpoint.encoders.calibration import Calibration, ProgressMaps
from counterpoint.encoders.dual import DualEncoder
from counterpoint.encoders.hub import saved_digests
from counterpoint.errors import BadInputError
from counterpoint.folder import lock
from counterpoint.formats import open_dataset
from counterpoint.formats.lerobot.layout import read_info
from counterpoint.formats.lerobot.signals import read_signals
from counterpoint.formats.video import encode_video
from counterpoint.rewards import RewardModel
from counterpoint.rewards.label import dense_progress, label, model_name
from counterpoint.rewards.labeller import Labeller, labels_in_words
from counterpoint.rewards.model import gains
from counterpoint.workers import Foreign
from tests.data.numbered import numbered_store
from tests.evaluation.fake import INSTRUCTIONS, episode
from tests.evaluation.fake_run import quick_words, write_data
from tests.formats.lerobot.made import episode as made
from tests.formats.lerobot.made import write_v30
from tests.formats.made import TorchcodecStandIn, write_lerobot, write_videos
from tests.formats.rlds.made import made_episode, write_rlds
from tests.formats.test_zarr_replay import write_replay
from tests.rewards.labelling import save_model


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sixteen episodes of ten frames."""
    quick_words(monkeypatch)
    return write_data(tmp_path / "data")


@pytest.fixture
def model(data: Path, tmp_path: Path) -> Path:
    return save_model(tmp_path / "drawer", data)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of every batch of frames that is encoded."""
    sizes: list[int] = []
    encode = DualEncoder.encode_image

    def counted(self: DualEncoder, frames: Tensor) -> Tensor:
        sizes.append(len(frames))
        return encode(self, frames)

    monkeypatch.setattr(DualEncoder, "encode_image", counted)
    return sizes


def changed(model: Path, out: Path, **changes: Any) -> Path:
    """Return a copy of a model with another calibration."""
    encoder = DualEncoder.from_pretrained(model)
    assert encoder.config.calibration is not None
    calibration = encoder.config.calibration.model_copy(update=changes)
    encoder.config = encoder.config.model_copy(update={"calibration": calibration})
    encoder.save_pretrained(out)
    return out


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def columns(path: Path) -> dict[str, Any]:
    table = pq.read_table(path)
    return {name: table[name].to_numpy() for name in table.column_names}


def test_a_placeholder_is_told_once(data: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    label(data, model=model, instruction="none")
    assert capsys.readouterr().out.count("Placeholders, which name no task: 'none'; to replace them") == 1


def test_the_file_is_the_one_that_lerobot_reads(data: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = label(data, model=model)
    assert capsys.readouterr().out.count("instructions: cosines of their embeddings") == 1
    assert path == data / "drawer_progress.parquet"
    schema = pq.read_metadata(path).schema.to_arrow_schema()
    assert schema.metadata[b"reward_model_path"] == b"drawer"
    assert not any(str(model.parent).encode() in value for value in schema.metadata.values())
    kinds = {"index": "int64", "episode_index": "int64", "frame_index": "int64", "progress_sparse": "float"}
    assert {name: str(schema.field(name).type) for name in kinds} == kinds
    found = columns(path)
    np.testing.assert_array_equal(found["index"], np.arange(160))
    np.testing.assert_array_equal(found["episode_index"], np.arange(160) // 10)
    np.testing.assert_array_equal(found["frame_index"], np.arange(160) % 10)
    times = [open_dataset(data).timestamps(number) for number in range(16)]
    np.testing.assert_allclose(found["timestamp"], np.concatenate(times), atol=1e-6)
    about = json.loads(schema.metadata[b"counterpoint"])
    assert about["calibration"]["success_from"] == "quantile of successes (uncalibrated)"
    assert about["cameras"] == ["front"]
    assert about["model"] == saved_digests(model)


def test_a_model_is_named_without_the_place_of_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runs" / "drawer" / "model").mkdir(parents=True)
    (tmp_path / "runs" / "drawer" / "config.json").touch()
    monkeypatch.chdir(tmp_path / "runs" / "drawer")
    assert model_name(str(tmp_path / "runs" / "drawer")) == model_name("model") == model_name(".") == "drawer"
    assert model_name("you/drawer-encoder") == "you/drawer-encoder"


def test_labels_are_the_model_s_under_each_episode_s_own_instruction(data: Path, model: Path) -> None:
    found, rewards, store = columns(label(data, model=model)), RewardModel.from_pretrained(model), open_dataset(data)
    for number, info in enumerate(store.episodes):
        rows = slice(10 * number, 10 * number + 10)
        frames = store.frames(number, np.arange(10))
        known = rewards.check_calibration()
        reward = rewards.reward(frames, info.instruction, form=known.form)
        gained = gains(np.asarray(reward, np.float64)[None], known.form)[0]
        np.testing.assert_allclose(found["progress_sparse"][rows], known.labels_of(gained), atol=1e-4)
        np.testing.assert_allclose(found["reward"][rows], reward, atol=1e-5)
        np.testing.assert_allclose(found["gain"][rows], reward - reward[0], atol=1e-5)
        np.testing.assert_array_equal(found["unlike_training"][rows], rewards.novelty(frames) > 1)
    assert "success" not in found  # no failures fixed a threshold


@pytest.mark.parametrize("monotone", [False, True])
def test_a_stage_with_its_own_maps_is_labelled_by_them(
    data: Path, model: Path, tmp_path: Path, monotone: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_dataset(data)
    stage = store.episodes[0].instruction
    kinds = ("", "averaged_", "monotone_")
    half = ProgressMaps(**{f"{kind}{name}": (0.5,) for kind in kinds for name in ("rewards", "progress")})
    graded: dict[str, Any] = {"success": 0.5, "success_from": "F1 on unseen episodes"}
    own = changed(model, tmp_path / "own", stages={stage: half}, error_of_one_map=0.25, **graded)
    options: dict[str, Any] = {"anyway": True, "monotone": monotone}
    found = columns(label(data, model=own, out=tmp_path / "own.parquet", **options))
    assert "by 1 stage (0.250 with one map for all)" in capsys.readouterr().out
    shared = changed(model, tmp_path / "shared", **graded)
    expected = columns(label(data, model=shared, out=tmp_path / "shared.parquet", **options))
    inside = np.repeat([info.instruction == stage for info in store.episodes], 10)
    assert (found["progress_sparse"][inside] == 0.5).all()
    assert found["success"][inside].all()
    for name in ("progress_sparse", "success"):
        np.testing.assert_array_equal(found[name][~inside], expected[name][~inside])


def test_labels_that_a_constant_would_beat_are_refused(data: Path, model: Path, tmp_path: Path) -> None:
    bad = changed(model, tmp_path / "bad", averaged_error=0.3, monotone_error=0.2, error_of_a_constant=0.25)
    with pytest.raises(BadInputError, match=r"0\.300 on .* less than the 0\.250 of a constant.*0\.200: --monotone"):
        label(data, model=bad, out=tmp_path / "labels.parquet")
    assert not (tmp_path / "labels.parquet").exists()
    rising = columns(label(data, model=bad, out=tmp_path / "rising.parquet", monotone=True))["progress_sparse"]
    assert (np.diff(rising.reshape(16, 10), axis=1) >= 0).all()
    assert len(columns(label(data, model=bad, out=tmp_path / "any.parquet", anyway=True))["index"]) == 160


def test_success_begins_at_the_threshold_and_does_not_flicker(data: Path, model: Path, tmp_path: Path) -> None:
    """Success reads the progress of single frames, on which the threshold was chosen, not the averaged one."""
    graded = changed(model, tmp_path / "graded", success=0.5, success_from="F1 on unseen episodes")
    found = columns(label(data, model=graded, out=tmp_path / "labels.parquet", anyway=True))
    calibration = RewardModel.from_pretrained(graded).check_calibration()
    progress = calibration.progress_of(found["gain"].reshape(16, 10).astype(np.float64))
    np.testing.assert_array_equal(found["success"].reshape(16, 10), [calibration.success_of(one) for one in progress])
    np.testing.assert_array_equal(
        calibration.success_of(np.array([0.45, 0.5, 0.45, 0.41, 0.39, 0.45, 0.6, 0.2])),
        [False, True, True, True, False, False, True, False],
    )


def test_every_frame_is_encoded_once_in_full_batches_across_episodes(
    data: Path, model: Path, batches: list[int]
) -> None:
    with torch_threads(1):
        label(data, model=model, batch_size=64)
    assert batches == [64, 64, 32]


def test_bfloat16_moves_labels_little(data: Path, model: Path, tmp_path: Path) -> None:
    whole = columns(label(data, model=model, out=tmp_path / "whole.parquet"))["progress_sparse"]
    half = pq.read_table(label(data, model=model, out=tmp_path / "half.parquet", precision="bf16"))
    assert 0 < np.abs(half["progress_sparse"].to_numpy() - whole).max() < 0.05
    assert json.loads(half.schema.metadata[b"counterpoint"])["precision"] == "bf16"


def test_torchcodec_decodes_on_the_device(
    data: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = TorchcodecStandIn.install(monkeypatch).opened
    label(data, model=model, out=tmp_path / "pyav.parquet")
    assert not opened
    table = pq.read_table(label(data, model=model, out=tmp_path / "torchcodec.parquet", video_backend="torchcodec"))
    assert {device for _, _, device in opened} == {"cpu"}
    assert json.loads(table.schema.metadata[b"counterpoint"])["video_backend"] == "torchcodec"


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of two episodes."""
    monkeypatch.setattr("counterpoint.blocks.SMALLEST", 20)


@pytest.mark.usefixtures("small_blocks")
def test_threads_share_the_episodes(data: Path, model: Path, batches: list[int], tmp_path: Path) -> None:
    with torch_threads(1):
        one = pq.read_table(label(data, model=model, out=tmp_path / "one.parquet"))
    batches.clear()
    with torch_threads(3):
        several = pq.read_table(label(data, model=model, out=tmp_path / "several.parquet"))
        assert torch.get_num_threads() == 3
    assert batches == [20] * 8
    assert several.equals(one)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_killed_call_continues_and_computes_nothing_twice(
    threads: int, data: Path, model: Path, tmp_path: Path, batches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, out = label(data, model=model, out=tmp_path / "whole.parquet"), tmp_path / "cut.parquet"
    work = Labeller.work

    def killed(self: Labeller, block: Block) -> bytes:
        if block.number == 5:
            raise KeyboardInterrupt
        return work(self, block)

    with monkeypatch.context() as patch, torch_threads(threads):
        patch.setattr(Labeller, "work", killed)
        with pytest.raises(KeyboardInterrupt):
            label(data, model=model, out=out, batch_size=10)
    assert not out.exists()
    there = len(list(tmp_path.glob(".cut.parquet.parts/blocks/*.npy")))
    assert there == 5 if threads == 1 else 0 < there < 8
    batches.clear()
    label(data, model=model, out=out, batch_size=10)
    assert sum(batches) == 160 - 20 * there
    again, before = columns(out), columns(whole)
    assert again.keys() == before.keys()
    for name in again:
        np.testing.assert_allclose(again[name], before[name], atol=1e-5)
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".parts")] == []


def test_another_process_that_has_just_begun_is_left_alone(data: Path, model: Path, tmp_path: Path) -> None:
    begun = tmp_path / ".out.parquet.parts"
    begun.mkdir()  # its notes are not written yet
    with lock(begun / ".lock", "labels"), pytest.raises(BadInputError, match=r"found a run that process \d+ labels"):
        label(data, model=model, out=tmp_path / "out.parquet")
    assert begun.exists()


def test_finished_episodes_of_another_model_are_not_taken(
    data: Path, model: Path, tmp_path: Path, batches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "labels.parquet"

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("counterpoint.rewards.label._table", killed)
        with pytest.raises(KeyboardInterrupt):
            label(data, model=model, out=out)
    other = save_model(tmp_path / "other", data, seed=1)
    batches.clear()
    label(data, model=other, out=out)
    assert sum(batches) == 160


def test_labels_that_are_there_are_replaced_when_asked(data: Path, model: Path, batches: list[int]) -> None:
    path = label(data, model=model)
    with pytest.raises(BadInputError, match="--overwrite"):
        label(data, model=model)
    batches.clear()
    label(data, model=model, overwrite=True)
    assert sum(batches) == 160
    assert path.is_file()


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks")
def test_several_processes_give_the_same_labels_and_goals_need_no_words(data: Path, tmp_path: Path) -> None:
    model = save_model(tmp_path / "goals", data, reward_form="goal")
    Image.fromarray(episode(INSTRUCTIONS[0], 10, seed=5, size=48).frames["front"][-1]).save(tmp_path / "goal.png")
    options: dict[str, Any] = {"model": model, "goal": tmp_path / "goal.png"}
    one = pq.read_table(label(data, out=tmp_path / "one.parquet", **options))
    two = pq.read_table(label(data, out=tmp_path / "two.parquet", engine=Engine(workers=2), **options))
    assert two.equals(one)
    assert one["reward"].to_numpy().max() <= 0


def test_rewards_of_several_cameras_are_averaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_words(monkeypatch)
    data = write_lerobot(tmp_path / "data")
    model = save_model(tmp_path / "model", data)
    found = {
        names: columns(label(data, model=model, out=tmp_path / f"{'-'.join(names)}.parquet", cameras=names))
        for names in (("top",), ("wrist",), ("top", "wrist"))
    }
    mean = (found["top",]["reward"] + found["wrist",]["reward"]) / 2
    np.testing.assert_allclose(found["top", "wrist"]["reward"], mean, atol=1e-6)
    assert np.abs(found["top",]["reward"] - found["wrist",]["reward"]).max() > 1e-3
    with pytest.raises(BadInputError, match="side"):
        label(data, model=model, out=tmp_path / "labels.parquet", cameras=("side",))


@pytest.mark.slow
def test_a_copy_has_progress_as_a_feature_and_the_same_media(data: Path, model: Path, tmp_path: Path) -> None:
    expected = columns(label(data, model=model))["progress_sparse"]
    copy = label(data, model=model, feature="next.progress", out=tmp_path / "copy")
    assert examine(copy) == []
    entry = read_info(copy).raw["features"]["next.progress"]
    assert entry == {"dtype": "float32", "shape": [1], "names": None}
    for path in sorted((data / "videos").rglob("*.mp4")):
        assert (copy / path.relative_to(data)).read_bytes() == path.read_bytes()
    rows = [pq.read_table(path) for path in sorted((copy / "data").rglob("*.parquet"))]
    found = np.concatenate([table["next.progress"].to_numpy() for table in rows])
    np.testing.assert_allclose(found, expected, atol=1e-6)
    described = json.loads(rows[0].schema.metadata[b"huggingface"])["info"]["features"]["next.progress"]
    assert described == {"dtype": "float32", "_type": "Value"}
    stats = json.loads((copy / "meta" / "stats.json").read_text())["next.progress"]
    assert stats["count"] == [160]
    assert stats["mean"] == pytest.approx([expected.mean()], abs=1e-5)
    (meta,) = (copy / "meta" / "episodes").rglob("*.parquet")
    each = pq.read_table(meta)["stats/next.progress/max"].to_pylist()
    np.testing.assert_allclose(np.ravel(each), expected.reshape(16, 10).max(axis=1), atol=1e-6)
    ours, theirs = open_dataset(copy), open_dataset(data)
    np.testing.assert_array_equal(ours.frames(3, np.arange(10)), theirs.frames(3, np.arange(10)))
    with pytest.raises(BadInputError, match="--overwrite"):
        label(copy, model=model, feature="next.progress", out=tmp_path / "again")
    label(copy, model=model, feature="next.progress", out=tmp_path / "again", overwrite=True)
    assert examine(tmp_path / "again") == []


def test_any_other_format_is_labelled_into_a_file(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    videos = write_videos(tmp_path / "videos", count=2, frames=12)
    still = np.repeat(episode(INSTRUCTIONS[0], 3, seed=0, size=64).frames["front"][:1], 9, axis=0)
    encode_video(videos / "videos" / "still.mp4", still, 10)
    with (videos / "manifest.csv").open("a") as manifest:
        manifest.write("videos/still.mp4,wait\n")
    with pytest.raises(BadInputError, match=r"--out labels\.parquet"):
        label(videos, model=model)
    found = columns(label(videos, model=model, out=tmp_path / "labels.parquet"))
    assert found["episode_index"].tolist() == [0] * 12 + [1] * 12 + [2] * 9
    said = capsys.readouterr().out
    assert "Nothing changes in episode 2:" in said
    assert "No column of success" in said


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"averaged_error": 0.08}, "5 held-out videos: 0.080; of a constant 0.259, of a clock 0.070\n"),
        (
            {"averaged_error": 0.343},
            "0.343; of a constant 0.259, of a clock 0.070 (labels no better than a constant)\n",
        ),
        ({"measured_on": "training"}, "Mean error of progress on 5 training videos: "),
        ({}, "Success from progress 0.500: 1 of 2 episodes at their end, 2 of 5 frames"),
        ({"success_from": "quantile of successes (uncalibrated)"}, "No column of success: too few failures"),
    ],
)
def test_the_end_says_how_good_the_labels_are(changes: dict[str, Any], expected: str) -> None:
    known = Calibration(
        form="potential", rewards=(0, 1), progress=(0, 1), success=0.5, success_from="F1 on unseen episodes",
        success_quantile=0.1, centre=(0,), scale=(1,), distance=1, distance_quantile=0.99, measured_on="validation",
        episodes=9, measured_episodes=5, error=0.2, memory=1, averaged_rewards=(0, 1), averaged_progress=(0, 1),
        averaged_error=0.1, monotone_rewards=(0, 1), monotone_progress=(0, 1), monotone_error=0.05,
        error_of_a_ramp=0.07, error_of_a_constant=0.259,
    )  # fmt: skip
    columns = {"success": np.array([True, False, False, False, True])}
    last = np.array([False, False, True, False, True])
    assert expected in labels_in_words(known.model_copy(update=changes), columns, last, "episodes")


def test_labels_are_lerobot_s_proposed_signals(data: Path, model: Path, tmp_path: Path) -> None:
    plain = pq.read_table(label(data, model=model, out=tmp_path / "x.parquet", anyway=True))
    path = label(data, model=model, signals=True, anyway=True)
    assert path == data / "reward_signals" / "drawer.parquet"
    file = pq.ParquetFile(path)
    table = file.read()
    names = sorted(f"reward.counterpoint.{name}" for name in ("progress", "reward", "gain", "unlike_training"))
    assert table.column_names[:3] == ["index", "episode_index", "frame_index"]
    assert set(names) <= set(table.column_names[3:])
    assert table.column_names[3:] == sorted(table.column_names[3:])
    assert table["reward.counterpoint.progress"].to_pylist() == plain["progress_sparse"].to_pylist()
    assert file.num_row_groups == 16
    lengths = np.bincount(table["episode_index"].to_numpy()).tolist()
    read = read_signals(path, range(16), lengths)
    np.testing.assert_array_equal(
        np.concatenate(list(read["reward.counterpoint.progress"].values())), plain["progress_sparse"].to_numpy()
    )
    assert file.read_row_group(3)["episode_index"].unique().to_pylist() == [3]
    about = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
    assert about["lerobot.scores.format"] == "lerobot.frame_signals"
    assert about["lerobot.scores.schema_version"] == "1"
    described = json.loads(about["lerobot.scores.descriptors"])
    assert sorted(described) == table.column_names[3:]
    assert described["reward.counterpoint.progress"] == {
        "description": "progress of the episode's task", "direction": "higher", "bounds": [0.0, 1.0], "unit": None,
        "allow_nan": False,
    }  # fmt: skip
    origin = json.loads(about["lerobot.scores.provenance"])
    assert origin["dataset"] == {"repo_id": "data", "revision": None, "total_episodes": 16, "total_frames": 160}
    assert origin["scoring"]["model"]["id"] == "drawer"
    assert about["lerobot.scores.provenance"] == json.dumps(origin, sort_keys=True, separators=(",", ":"))
    with pytest.raises(BadInputError, match="labels already there"):
        label(data, model=model, signals=True, anyway=True)
    with pytest.raises(BadInputError, match="--signals"):
        label(data, model=model, signals=True, feature="next.progress", out=tmp_path / "copy")


MODULE = """
import numpy as np

def counting(frames, text):
    if text.startswith("never"):
        raise RuntimeError("boom")
    T = len(frames)
    return {"progress": np.linspace(0.2, 1, T), "success": np.arange(T) == T - 1, "stage": np.arange(T) // 5}

counting.progress = True

def level(frames, text):
    return frames.mean(axis=(1, 2, 3))
"""


@pytest.mark.parametrize("workers", [None, 2])
def test_a_model_of_others_labels_from_its_own_python(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], workers: int | None
) -> None:
    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Path("a_labeller_of_others.py").write_text(MODULE)
    own: dict[str, Any] = {"foreign": Foreign(python=Path(sys.executable)), "out": tmp_path / "x.parquet"}
    own["engine"] = Engine(workers=workers)
    table = pq.read_table(label(data, model="a_labeller_of_others:counting", **own))
    assert table.column_names == [
        "index", "episode_index", "frame_index", "timestamp", "progress_sparse", "success", "stage"
    ]  # fmt: skip
    np.testing.assert_allclose(table["progress_sparse"].to_numpy(), np.tile(np.linspace(0.2, 1, 10), 16), atol=1e-6)
    assert table["success"].to_numpy().sum() == 16
    assert table["stage"].to_numpy()[:10].tolist() == [0] * 5 + [1] * 5
    said = capsys.readouterr().out
    assert "Progress of 16 episodes: mean 0.20 in their first frames, 1.00 in their last" in said
    assert table.schema.metadata[b"reward_model_path"] == b"a_labeller_of_others:counting"
    with pytest.raises(BadInputError, match="values that are not progress"):
        label(data, model="a_labeller_of_others:level", **own | {"out": tmp_path / "y.parquet"})
    with pytest.raises(BadInputError, match="RuntimeError: boom"):
        label(data, model="a_labeller_of_others:counting", instruction="never", **own | {"out": tmp_path / "y.parquet"})
    with pytest.raises(BadInputError, match="--precision: found bf16; expected no, for a model of others"):
        label(data, model="a_labeller_of_others:counting", precision="bf16", **own | {"out": tmp_path / "y.parquet"})
    assert not (tmp_path / "y.parquet").exists()


def test_segments_are_labelled_under_their_own_tasks(data: Path, model: Path, tmp_path: Path) -> None:
    """Where the run was trained on segments; the labels are those of two data sets with a segment each."""
    first, second = INSTRUCTIONS[:2]
    parts = ((0, first), (2, second))
    long = replace(made(0), instruction=f"{first}; {second}", segments=parts)
    run = tmp_path / "run"
    shutil.copytree(model, run / "model")
    (run / "config.json").write_text(json.dumps({"data": {"segments": "task"}}))
    found = columns(
        label(write_v30(tmp_path / "long", [long], image_cameras=["top"]), model=run, out=tmp_path / "long.parquet")
    )
    assert found["segment"].tolist() == [0, 0, 1, 1, 1]
    assert found["episode_index"].tolist() == [0] * 5
    assert found["frame_index"].tolist() == list(range(5))
    shares = np.array([2, 2, 3, 3, 3]) / 5
    before = np.array([0, 0, 2, 2, 2]) / 5
    np.testing.assert_allclose(found["progress_dense"], before + shares * found["progress_sparse"], atol=1e-6)
    for text, rows in ((first, slice(0, 2)), (second, slice(2, 5))):
        frames = {name: images[rows] for name, images in long.frames.items()}
        short = Episode(frames, text, np.arange(rows.stop - rows.start) / 10)
        root = write_v30(tmp_path / text, [short], image_cameras=["top"])
        alone = columns(label(root, model=run, out=tmp_path / f"{text}.parquet"))
        np.testing.assert_allclose(found["reward"][rows], alone["reward"], atol=0.02)


def test_segments_add_their_mean_share_to_the_progress_of_an_episode() -> None:
    whole = numbered_store([10, 10, 4])
    parts = [((0, "reach"), (4, "grasp")), ((0, "reach"), (2, "grasp"), (6, "place")), ()]
    whole.episodes = tuple(replace(info, segments=own) for info, own in zip(whole.episodes, parts, strict=True))
    store = SegmentStore(whole)
    progress = np.concatenate([np.linspace(0, 1, length) for length in store.lengths])
    dense = np.split(dense_progress(store, progress), [10, 20])
    reach, grasp, place = np.mean([0.4, 0.2]), np.mean([0.6, 0.4]), 0.4
    assert dense[0][[3, 9]] == pytest.approx([reach / (reach + grasp), 1])
    total = reach + grasp + place
    assert dense[1][[1, 5, 9]] == pytest.approx([reach / total, (reach + grasp) / total, 1])
    assert dense[1][2] == pytest.approx(reach / total)  # the second segment begins where the first one ended
    np.testing.assert_allclose(dense[2], np.linspace(0, 1, 4), atol=1e-6)
    assert all((np.diff(one) >= -1e-7).all() for one in dense)


def test_instructions_may_come_from_the_call_or_a_file(data: Path, model: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("push\n" * 16)
    by_call = columns(label(data, model=model, instruction="push", out=tmp_path / "a.parquet"))
    by_file = columns(label(data, model=model, text_file=texts, out=tmp_path / "b.parquet"))
    np.testing.assert_allclose(by_call["reward"], by_file["reward"], atol=1e-5)


def unnamed(data: Path, tmp_path: Path) -> dict[str, Any]:
    (path,) = (data / "meta" / "episodes").rglob("*.parquet")
    table = pq.read_table(path)
    at = table.schema.get_field_index("tasks")
    pq.write_table(table.set_column(at, "tasks", [[[""]] * len(table)]), path)
    table = pq.read_table(data / "meta/tasks.parquet")
    pq.write_table(table.set_column(1, "task", [[""] * len(table)]), data / "meta/tasks.parquet")
    return {}


def short_file(data: Path, tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "texts.txt").write_text("push\n")
    return {"text_file": tmp_path / "texts.txt"}


def without_calibration(data: Path, tmp_path: Path) -> dict[str, Any]:
    encoder = DualEncoder.from_pretrained(tmp_path / "drawer")
    encoder.config = encoder.config.model_copy(update={"calibration": None})
    encoder.save_pretrained(tmp_path / "old")
    return {"model": tmp_path / "old"}


def for_goals(data: Path, tmp_path: Path) -> dict[str, Any]:
    return {"model": save_model(tmp_path / "goals", data, reward_form="goal")}


def no_image(data: Path, tmp_path: Path) -> dict[str, Any]:
    return {"goal": data / "meta" / "info.json"}


def given(**options: Any) -> Callable[[Path, Path], dict[str, Any]]:
    return lambda data, tmp_path: options


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (unnamed, "episode 0: found no instruction.*--instruction TEXT.*--text-file FILE"),
        (short_file, "1 lines; expected 16"),
        (given(instruction=" \u200b"), "instruction"),
        (given(instruction="push", text_file=Path("texts")), "leave one out"),
        (without_calibration, "no calibration.*counterpoint train"),
        (for_goals, "found an instruction; expected a goal image"),
        (no_image, "info.json"),
        (given(feature="next.progress"), "--out: found nothing"),
        (given(out=Path("labels.csv")), "a .parquet file"),
        (given(batch_size=0), "--batch-size: found 0"),
        (given(engine=Engine(workers=0)), "--workers: found 0"),
        (given(precision="fp8"), "--precision: found 'fp8'; expected no or bf16"),
        (given(video_backend="opencv"), "--video-backend: found 'opencv'; expected pyav or torchcodec"),
    ],
)
def test_bad_input_is_refused_before_anything_is_computed(
    spoil: Callable[[Path, Path], dict[str, Any]],
    words: str,
    data: Path,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"model": model} | spoil(data, tmp_path)
    with pytest.raises(BadInputError, match=words):
        label(data, **options)
    assert not list(tmp_path.rglob("*.parts"))
    assert not list(tmp_path.rglob("*_progress.parquet"))


def test_rlds_and_replay_buffers_are_labelled(model: Path, tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr", reason="needs the extra `zarr`")
    episodes = [made_episode(length, seed, INSTRUCTIONS[0]) for seed, length in enumerate((4, 7))]
    root = write_rlds(tmp_path / "toys", {"train": [episodes]})
    found = columns(label(root, model=model, out=tmp_path / "rlds.parquet"))
    assert found["frame_index"].tolist() == [*range(4), *range(7)]
    assert np.isfinite(found["progress_sparse"]).all()
    frames = np.concatenate([one.frames for one in episodes])
    ends, action = np.array([4, 11]), np.concatenate([one.actions for one in episodes])
    write_replay(tmp_path / "a.zarr", {"img": frames, "action": action}, ends=ends.tolist())
    zarr.open_group(str(tmp_path / "a.zarr"), mode="a").attrs["instruction"] = INSTRUCTIONS[0]
    same = columns(label(tmp_path / "a.zarr", model=model, out=tmp_path / "zarr.parquet"))
    np.testing.assert_array_equal(same["progress_sparse"], found["progress_sparse"])
