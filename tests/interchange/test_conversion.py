"""What `counterpoint data convert` writes from every readable format: `lerobot` opens it and trains on it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("lerobot.policies", reason="run by `make interchange`, in an environment of its own")

from lerobot.configs import PreTrainedConfig
from lerobot.configs.default import DatasetConfig
from lerobot.configs.train import TrainPipelineConfig
from lerobot.policies import ACTConfig
from lerobot.scripts import lerobot_train
from lerobot.utils.feature_utils import dataset_to_policy_features

from counterpoint.cli.main import main
from counterpoint.data.store import EpisodeStore
from counterpoint.formats import open_dataset
from counterpoint.formats.base import Column
from counterpoint.formats.lerobot.reader import LeRobotStore
from counterpoint.formats.lerobot.writer import LeRobotWriter
from tests.formats.fuzzing.sources import SOURCES
from tests.formats.lerobot.made import episode, write_v30
from tests.formats.rlds.test_reader import write_droid_instructions
from tests.interchange.test_lerobot_package import assert_same_data, image_of, opened

pytestmark = pytest.mark.filterwarnings("ignore")

TASK = "push it onto its mark"
OPTIONS = {
    **dict.fromkeys(("frames", "zarr", "ogbench"), ("--instruction", TASK)),  # they record none
    "epic": ("--fps", "50"),  # videos at 50 and at 59.94
    **dict.fromkeys(("robomimic", "robocasa"), ("--drop", "obs/agentview_depth")),
    "rlds": ("--drop", "observation.depth"),
    "bridge": ("--drop", "depth_images0", "--instruction", TASK),  # one trajectory of three has no words
}
"""What `data convert` asks for, by source."""
NO_ACTIONS = {
    *("videos, csv", "videos, jsonl", "videos by task", "frames, csv", "frames", "epic"),
    *("webdataset, videos", "webdataset, images"),
}
"""Sources without actions, from which no policy can learn."""
NOT_TRAINED = {
    "ogbench": "at least one image or the environment state",  # it records proprioception alone
    "drq": "observation.state",  # it records images alone
}
"""Sources with actions from which LeRobot's ACT does not learn, and its error."""
NO_CAMERAS = {"robomimic, low_dim", "ogbench"}
TOLERANCE, COLOUR = 6.0, 3.0
"""Largest mean error of the grey values of a frame that went through video, and of its mean colour, of 255."""


def run(*arguments: object) -> int:
    """Run the command line; return its exit code."""
    try:
        main(list(map(str, arguments)))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def act(**settings: Any) -> ACTConfig:
    sizes = {"dim_model": 16, "n_heads": 2, "dim_feedforward": 16, "n_encoder_layers": 1, "n_vae_encoder_layers": 1}
    chunk = {"chunk_size": 2, "n_action_steps": 2}
    return ACTConfig(**sizes, **chunk, pretrained_backbone_weights=None, device="cpu", push_to_hub=False, **settings)


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let LeRobot's own script take one step on a data set; return what the policy says of its losses."""
    update, said = lerobot_train.update_policy, list[Mapping[str, float]]()

    def updated(*arguments: Any, **options: Any) -> Any:
        tracker, losses = update(*arguments, **options)
        said.append({"loss": tracker.loss.val, **(losses or {})})
        return tracker, losses

    monkeypatch.setattr(lerobot_train, "update_policy", updated)
    monkeypatch.setattr(lerobot_train, "init_logging", lambda **_: None)

    def trained(root: Path, policy: PreTrainedConfig) -> Mapping[str, float]:
        data = DatasetConfig("made/set", root=str(root), video_backend="pyav")
        quick = {"batch_size": 2, "num_workers": 0, "steps": 1, "log_freq": 0, "save_checkpoint": False}
        lerobot_train.train(TrainPipelineConfig(data, policy=policy, output_dir=tmp_path / "run", **quick))
        return said.pop()

    return trained


def seen_by_act(dataset: Any) -> dict[str, Any]:
    """Return the features of observations without depth, which LeRobot's ACT takes for RGB."""
    depth = dataset.meta.depth_keys
    return {k: entry for k, entry in dataset.features.items() if k.startswith("observation.") and k not in depth}


def assert_trains(losses: Mapping[str, float]) -> None:
    assert losses
    assert all(map(math.isfinite, losses.values()))


def assert_holds(root: Path, source: EpisodeStore, *, fps: int, task: str = "", tolerance: float = TOLERANCE) -> Any:
    """Compare what `lerobot` opens with the source, and every frame and number with what we read; return it."""
    dataset, written = opened(root), LeRobotStore(root)
    lengths = written.lengths.tolist()
    assert (dataset.num_episodes, dataset.num_frames) == (len(source.episodes), sum(lengths))
    assert dataset.fps == fps
    assert_same_data(dataset, written, range(len(lengths)))
    first = 0
    for number, info in enumerate(source.episodes):
        if not info.segments:
            assert dataset[first]["task"] == (info.instruction or task)
        for camera in source.cameras:
            frames = source.frames(number, np.arange(info.length), camera).astype(float)
            found = image_of(dataset[first], camera)
            if written.is_lossless(camera):
                np.testing.assert_array_equal(found, frames[0])
            errors = np.abs((found - frames).mean(-1)).mean((1, 2))  # video has colours at half the resolution
            assert errors[0] == errors.min() <= tolerance
            assert np.abs((found - frames[0]).mean((0, 1))).max() <= COLOUR
        first += lengths[number]
    return dataset


@pytest.mark.parametrize("name", SOURCES)
def test_every_format(name: str, tmp_path: Path, train: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = SOURCES[name](tmp_path / "set"), tmp_path / "out"
    options = OPTIONS.get(name, ())
    if name == "minari":
        assert run("data", "convert", path, out) == 2
        assert "Minari is read by `data info`, `data doctor` and agents" in capsys.readouterr().err
        assert not out.exists()
        return
    if options:
        assert run("data", "convert", path, out) == (2 if options[0] != "--instruction" else 0)
        assert " ".join(options[:2]).replace(TASK, "TEXT") in "".join(capsys.readouterr())
        out = tmp_path / "again"
    assert run("data", "convert", path, out, *options) == 0
    assert run("data", "doctor", out) == 0, capsys.readouterr().out
    source = open_dataset(path)
    fps = 50 if name == "epic" else round(source.episodes[0].fps)
    tolerance = 20.0 if name in ("zarr", "rlds") else TOLERANCE  # their images are noise
    dataset = assert_holds(out, source, fps=fps, task=TASK, tolerance=tolerance)
    assert bool(dataset.meta.camera_keys) == (name not in NO_CAMERAS)
    assert ("action" in dataset.features) == (name not in NO_ACTIONS)
    if name in NO_ACTIONS:
        return
    policy = act(input_features=dataset_to_policy_features(seen_by_act(dataset)))
    if name in NOT_TRAINED:
        with pytest.raises((KeyError, ValueError), match=NOT_TRAINED[name]):
            train(out, policy)
    else:
        assert_trains(train(out, policy))


@pytest.mark.parametrize("metres", [False, True])
def test_depth(metres: bool, tmp_path: Path, train: Any) -> None:
    millimetres = np.arange(5 * 48, dtype=np.uint16).reshape(5, 6, 8) * 100
    deep = (millimetres / 1000).astype(np.float32) if metres else millimetres
    made = [replace(episode(number), depth={"deep": deep}) for number in range(2)]
    root = write_v30(tmp_path / "set", made, depth={"deep": (6, 8)})
    assert run("data", "convert", root, tmp_path / "out") == 0
    assert run("data", "doctor", tmp_path / "out") == 0
    dataset = assert_holds(tmp_path / "out", open_dataset(root), fps=10)
    assert dataset.meta.depth_keys == ["observation.images.deep"]
    found = dataset[7]["observation.images.deep"]  # step 2 of episode 1, in millimetres
    np.testing.assert_allclose(found.numpy().squeeze(), millimetres[2], rtol=1e-6)
    with pytest.raises(RuntimeError, match="3 channels"):
        train(tmp_path / "out", act())
    policy = act(input_features=dataset_to_policy_features(seen_by_act(dataset)))
    assert_trains(train(tmp_path / "out", policy))
    assert run("data", "convert", root, tmp_path / "colour", "--drop", "deep") == 0
    assert run("data", "doctor", tmp_path / "colour") == 0
    assert opened(tmp_path / "colour").meta.depth_keys == []
    assert_trains(train(tmp_path / "colour", act()))


@pytest.mark.parametrize("key", ["", "language_instruction_3"])
def test_several_instructions(key: str, tmp_path: Path, train: Any) -> None:
    root, options = write_droid_instructions(tmp_path / "set"), ("--instruction-key", key) if key else ()
    assert run("data", "convert", root, tmp_path / "out", "--drop", "observation.depth", *options) == 0
    assert run("data", "doctor", tmp_path / "out") == 0
    dataset = assert_holds(tmp_path / "out", open_dataset(root, instruction_key=key or None), fps=5, tolerance=20)
    assert list(dataset.meta.tasks.index) == (["tip the jug", "shut it"] if key else ["pour", "close it"])
    assert_trains(train(tmp_path / "out", act()))


@pytest.mark.parametrize("task", ["reach; grasp", "tidy up"])
def test_segments(task: str, tmp_path: Path, train: Any) -> None:
    """Segments that make up the task are the steps' tasks; under another task they are subtasks, a further column."""
    parts = ((0, "reach"), (2, "grasp"))
    made = [replace(episode(number), instruction=task, segments=parts) for number in range(2)]
    root = write_v30(tmp_path / "set", made, subtasks=task == "tidy up")
    assert run("data", "convert", root, tmp_path / "out") == 0
    assert run("data", "doctor", tmp_path / "out") == 0
    dataset = assert_holds(tmp_path / "out", open_dataset(root), fps=10)
    words = ["reach"] * 2 + ["grasp"] * 3
    assert [dataset[step]["task"] for step in range(5)] == (words if task == "reach; grasp" else [task] * 5)
    if task == "tidy up":
        assert [dataset[step]["subtask_index"].item() for step in range(5)] == [0, 0, 1, 1, 1]
    assert_trains(train(tmp_path / "out", act()))


def test_further_columns(tmp_path: Path, train: Any) -> None:
    columns = {
        "observation.force": Column("float64", (2,)),
        "observation.touch": Column("float32", (2, 3)),
        "note": Column("string", (1,)),
        "contact": Column("bool", (1,)),
        "action.raw": Column("int64", (4,)),
    }
    rng, made = np.random.default_rng(0), episode(0)
    values: dict[str, Any] = {
        "observation.force": rng.normal(size=(5, 2)),
        "observation.touch": rng.normal(size=(5, 2, 3)).astype(np.float32),
        "note": np.array([[f"step {step}"] for step in range(5)], object),
        "contact": rng.random((5, 1)) < 0.5,
        "action.raw": rng.integers(0, 9, (5, 4)),
    }
    sizes = {name: frames.shape[1:3] for name, frames in made.frames.items()}
    writer = LeRobotWriter(
        tmp_path / "set", fps=10, cameras=sizes, action_dim=4, state_dim=3, robot_type="made", columns=columns
    )
    writer.add_episode(made, columns=values)
    writer.finalize()
    assert run("data", "convert", tmp_path / "set", tmp_path / "out", "--drop", "contact") == 0
    assert run("data", "doctor", tmp_path / "out") == 0
    dataset = assert_holds(tmp_path / "out", open_dataset(tmp_path / "set"), fps=10)
    assert "contact" not in dataset.features
    for step in range(5):
        item = dataset[step]
        assert item["note"] == f"step {step}"
        for name in columns.keys() - {"note", "contact"}:
            np.testing.assert_array_equal(item[name].numpy(), values[name][step].astype(item[name].numpy().dtype))
    assert_trains(train(tmp_path / "out", act()))


def test_words_that_are_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_v30(tmp_path / "set", [episode(0), episode(1, instruction="")])
    assert run("data", "convert", root, tmp_path / "out") == 0
    assert "1 of 2 episodes have no instruction: give one with --instruction TEXT" in capsys.readouterr().out
    assert run("data", "doctor", tmp_path / "out") == 2
    assert "OUT --instruction TEXT" in " ".join(capsys.readouterr().out.split())
    assert run("data", "convert", tmp_path / "out", tmp_path / "named", "--instruction", TASK) == 0
    assert run("data", "doctor", tmp_path / "named") == 0
    assert list(opened(tmp_path / "named").meta.tasks.index) == ["task 0", TASK]
