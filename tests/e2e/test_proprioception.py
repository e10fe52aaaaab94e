"""Proprioception beside images, from training to labels: noise in every image, and a state that tells the task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from torch import Tensor

import counterpoint
from counterpoint.cli import main
from counterpoint.data.episode import Episode
from counterpoint.data.store import MemoryStore, states_of
from counterpoint.encoders import DualEncoder
from counterpoint.errors import BadInputError
from counterpoint.evaluation.embedded import embed_store
from counterpoint.evaluation.report import write_report
from counterpoint.evaluation.view import Viewer
from counterpoint.formats import open_dataset
from counterpoint.formats.lerobot.writer import LeRobotWriter
from counterpoint.formats.video import encode_video
from counterpoint.objectives import ClipObjective, objective_names
from counterpoint.rewards import RewardModel
from counterpoint.rewards.embedding import STATE, observed
from counterpoint.rewards.label import label
from counterpoint.rewards.model import gains, transition_score
from counterpoint.training.train import train
from tests.evaluation.fake import INSTRUCTIONS
from tests.evaluation.fake_run import quick_words

pytest.importorskip("timm", reason="needs the extra `vision`")

FROZEN = {
    "encoder.image": "timm",
    "encoder.image_model": "test_resnet",
    "encoder.pretrained": None,
    "encoder.freeze_image": True,
    "encoder.image_size": 32,
    "encoder.fit": "stretch",
}
SMALL = {
    "encoder.image_size": 32,
    "encoder.embed_dim": 16,
    "data.size": 32,
    "data.folds": 0,
    "train.steps": 150,
    "train.batch_size": 16,
    "train.eval_every": 0,
    "train.trackers": [],
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick_words(monkeypatch)


def episode(number: int, *, length: int = 10, cameras: tuple[str, ...] = ("front",)) -> Episode:
    """An arm that moves one of two joints, one of two ways, in front of cameras that see noise."""
    rng, task = np.random.default_rng(number), number % 4
    state = rng.normal(0, 0.05, (length, 3))
    state[:, task // 2] += np.linspace(0, 1 if task % 2 == 0 else -1, length)
    state[:, 2] = 7  # never moves
    frames = {camera: rng.integers(0, 256, (length, 32, 32, 3), dtype=np.uint8) for camera in cameras}
    times = np.arange(length) / 10
    return Episode(frames, INSTRUCTIONS[task], times, state=(100 + 5 * state).astype(np.float32))


def store(count: int = 24, **settings: Any) -> MemoryStore:
    return MemoryStore([episode(number, **settings) for number in range(count)])


def trained(data: Any, out: Path, changes: dict[str, Any], recipe: str = "decisionnce_t-demo") -> Path:
    return train(recipe, data, out, overrides=SMALL | {"data.cache": str(out.parent / "cache")} | changes).folder


def accuracy(run: Path) -> float:
    """The share of new episodes whose end scores highest under their own instruction; chance is a quarter."""
    encoder = DualEncoder.from_pretrained(run / "model")
    unseen = MemoryStore([episode(1000 + number) for number in range(40)])
    videos = embed_store(encoder, unseen, instructions=INSTRUCTIONS)
    scores = transition_score(videos.frames_at(0), videos.frames_at(-1), videos.text)
    return float((scores.argmax(1) == videos.own).mean())


@pytest.mark.slow
@pytest.mark.parametrize("tower", [pytest.param({}, marks=pytest.mark.release), FROZEN], ids=["trained", "frozen"])
def test_what_only_the_state_tells_is_learned_from_it(tower: dict[str, Any], tmp_path: Path) -> None:
    assert accuracy(trained(store(), tmp_path / "with", tower | {"data.state": True})) > 0.9
    assert accuracy(trained(store(), tmp_path / "without", tower)) < 0.5


def test_the_statistics_are_those_of_the_training_episodes(tmp_path: Path) -> None:
    whole = store()
    run = trained(whole, tmp_path / "run", {"data.state": True, "data.holdout": 0.5, "train.steps": 2})
    out = json.loads((run / "config.json").read_text())["held_out"]
    seen = np.concatenate([states_of(whole, at) for at in range(24) if at not in out])
    statistics = DualEncoder.from_pretrained(run / "model").config.state
    assert statistics is not None
    np.testing.assert_allclose(statistics.mean, seen.astype(np.float64).mean(0))
    np.testing.assert_allclose(statistics.deviation, seen.astype(np.float64).std(0))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("decisionnce_t", "vip") else pytest.mark.slow)
        for name in objective_names(ClipObjective)
        if name != "directed_actol"
    ],
)
def test_every_objective_on_clips_reads_it(name: str, tmp_path: Path) -> None:
    recipe = f"{'clip' if name == 'clip_goal' else name}-videos"
    run = trained(store(8), tmp_path / "run", FROZEN | {"data.state": True, "train.steps": 2}, recipe)
    assert DualEncoder.from_pretrained(run / "model").reads_state


def test_features_that_are_stored_once_serve_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(store(8), tmp_path / "without", FROZEN | {"train.steps": 2})

    def computed(self: DualEncoder, frames: Tensor) -> Tensor:
        raise AssertionError("features are computed again")

    monkeypatch.setattr(DualEncoder, "features", computed)
    trained(store(8), tmp_path / "with", FROZEN | {"train.steps": 2, "data.state": True})


def test_an_encoder_goes_on_as_it_was_trained(tmp_path: Path) -> None:
    first = trained(store(8), tmp_path / "first", {"train.steps": 2, "data.state": True})
    start: dict[str, Any] = {"initialize_from": str(first / "model"), "train.steps": 2}
    second = trained(store(8), tmp_path / "second", start | {"data.state": True})
    assert DualEncoder.from_pretrained(second / "model").reads_state
    with pytest.raises(BadInputError, match="reads a state of 3 numbers; expected"):
        trained(store(8), tmp_path / "third", start)


def test_data_without_a_state_are_refused_before_anything_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = [episode(number) for number in range(8)]
    none = [Episode(e.frames, e.instruction, e.timestamps) for e in some]
    narrow = [Episode(e.frames, e.instruction, e.timestamps, state=e.state[:, :2]) for e in some if e.state is not None]
    monkeypatch.setattr(MemoryStore, "frames", None)
    for made, found in ((none, "episodes without a state"), ([*some, *none], "without"), ([*some, *narrow], "2, 3")):
        with pytest.raises(BadInputError, match=rf"data.state: found .*{found}.*data.state = false"):
            trained(MemoryStore(made), tmp_path / "run", {"data.state": True})
    assert not (tmp_path / "run").exists()


def write(root: Path, *, state: bool = True) -> Path:
    """A LeRobot data set of eight episodes to train on and eight others, of two cameras."""
    cameras = {"front": (32, 32), "wrist": (32, 32)}
    writer = LeRobotWriter(
        root, fps=10, cameras=cameras, action_dim=None, state_dim=3 if state else None, robot_type="arm"
    )
    for number in range(16):
        made = episode(number, cameras=tuple(cameras))
        writer.add_episode(made if state else Episode(made.frames, made.instruction, made.timestamps))
    writer.finalize({"train": "0:8", "val": "8:16"})
    return root


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "data")


@pytest.mark.slow
@pytest.mark.parametrize("tower", [pytest.param({}, marks=pytest.mark.slow), FROZEN], ids=["trained", "frozen"])
def test_labels_and_rewards_read_the_state_of_the_data(tower: dict[str, Any], data: Path, tmp_path: Path) -> None:
    settings = {"train.steps": 20, "data.state": True, "data.cameras": ("front", "wrist")}
    run = trained(data, tmp_path / "run", tower | settings)
    table = pq.read_table(label(data, model=run, batch_size=7, anyway=True))
    model, source = RewardModel.from_pretrained(run), open_dataset(data)
    rows = []
    for number, info in enumerate(source.episodes):
        seen = observed(model.encoder, source, number, np.arange(10), source.cameras)
        assert set(seen) == {"front", "wrist", STATE}
        known = model.check_calibration()
        reward = np.asarray(model.reward(seen, info.instruction, form=known.form), np.float64)
        rows.append(known.labels_of(gains(reward[None], known.form)[0]))
    np.testing.assert_allclose(table["progress_sparse"].to_numpy(), np.concatenate(rows), atol=1e-4)
    calls = [f"reward {data} --episodes 1 9 --out {tmp_path / 'curves'} --model {run}"]
    calls += [f"compare {run} --data {data} --out {tmp_path / 'compared'}", f"report {run}"]
    for call in calls:
        main(call.split())
    assert isinstance(counterpoint.load(run), DualEncoder)


@pytest.mark.slow
def test_what_has_no_state_is_refused(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(data, tmp_path / "run", {"train.steps": 2, "data.state": True})
    model, source = RewardModel.from_pretrained(run), open_dataset(data)
    seen = observed(model.encoder, source, 0, np.arange(10), ("front",))
    frames = seen["front"]
    with pytest.raises(BadInputError, match="images alone; expected the robot's state"):
        model.reward(frames, INSTRUCTIONS[0])
    with pytest.raises(BadInputError, match="9 states for 10 images"):
        model.reward(seen | {STATE: seen[STATE][:9]}, INSTRUCTIONS[0])
    with pytest.raises(BadInputError, match="goal images have none"):
        model.reward(seen, goal=frames[-1])
    bare = write(tmp_path / "bare", state=False)
    with pytest.raises(BadInputError, match="episode 0: found no state"):
        label(bare, model=run)
    with pytest.raises(BadInputError, match="episode 0: found no state"):
        write_report(run, bare)
    encode_video(tmp_path / "clip.mp4", frames, fps=10)
    call = f"reward {tmp_path / 'clip.mp4'} --instruction x --out {tmp_path / 'out'} --model {run}"
    with pytest.raises(SystemExit, match="2"):
        main(call.split())
    assert "found no state; expected the robot's state, which the model reads" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_local_page_scores_episodes_and_refuses_bare_videos(data: Path, tmp_path: Path) -> None:
    run = trained(data, tmp_path / "run", {"train.steps": 2, "data.state": True})
    viewer, source = Viewer([str(run), str(data)], tmp_path), open_dataset(data)
    clip, _ = viewer._read_episode(source, 3, "front")
    (found,) = clip.embeddings.values()
    model = RewardModel.from_pretrained(run)
    seen = observed(model.encoder, source, 3, np.arange(10))
    values = model.score(model.form, found, model.targets(INSTRUCTIONS[3])[1])
    np.testing.assert_allclose(values[0], model.reward(seen, INSTRUCTIONS[3]), atol=1e-5)
    encode_video(tmp_path / "clip.mp4", source.frames(3, np.arange(10)), fps=10)
    with pytest.raises(BadInputError, match="images alone; expected the robot's state"):
        viewer._read_video(tmp_path / "clip.mp4", "clip")


def test_a_goal_has_a_state_too(tmp_path: Path) -> None:
    run = trained(store(8), tmp_path / "run", {"train.steps": 2, "data.state": True}, "vip-demo")
    model, one = RewardModel.from_pretrained(run), episode(3)
    assert one.state is not None
    seen: Any = {"front": one.frames["front"], STATE: one.state}
    values = model.reward(seen, goal={name: part[-1] for name, part in seen.items()})
    assert values.shape == (10,)
    assert values[-1] == pytest.approx(0, abs=1e-4)
    assert (values[:-1] < -1e-3).all()
