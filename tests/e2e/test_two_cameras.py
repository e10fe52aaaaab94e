"""Two cameras and an instruction, from LIBERO's files to rollouts: Premier-TACO, Appendix C, in small."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from counterpoint.data.anchors import NearNegatives
from counterpoint.data.cache import CachedStore, cached
from counterpoint.data.episode import Array
from counterpoint.data.spec import Spec
from counterpoint.data.store import EpisodeStore
from counterpoint.encoders.dual import SentenceTower
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.errors import BadInputError
from counterpoint.evaluation import evaluate as evaluation
from counterpoint.evaluation.evaluate import evaluate
from counterpoint.evaluation.rollout import rollout
from counterpoint.formats import open_dataset
from counterpoint.policies.cloned import ClonedPolicy
from counterpoint.training.cloning import embed_store
from counterpoint.training.recipe import load_recipe
from counterpoint.training.train import train
from counterpoint.training.transitions import evenly_spaced_frames
from studies.fewshot import data, trials
from studies.fewshot.config import Evaluations, FewshotConfig
from studies.fewshot.trials import Adaptation, PretrainingRun, adapt
from studies.harness import Study, Trial, load_preset
from tests.data.sampling import sampler
from tests.policies.demos import spelled
from tests.policies.two_cameras import HORIZON, INSTRUCTIONS, OUTER, SIZE, WRIST, PairTask, record_pairs, write_pairs
from tests.training.runs import clone, cloning, pretrain

RIGHT = INSTRUCTIONS["stub/right"]
HEAD = {"history": 3, "language": True, "hidden": 16, "token": 8, "layers": 1, "heads": 2, "dropout": 0.0}
SMALL = {
    "encoder.size": SIZE,
    "encoder.embed_dim": 8,
    "objective.hidden": 16,
    "train.steps": 3,
    "train.batch_size": 4,
    "train.trackers": [],
    "train.log_every": 1,
    "train.eval_every": 0,
}


@pytest.fixture(autouse=True)
def _spelled(monkeypatch: pytest.MonkeyPatch) -> None:
    # The sentence encoder has its own tests, and takes seconds to import.
    monkeypatch.setattr(SentenceTower, "embed", spelled)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("libero_90"), 3)


@pytest.fixture(scope="module")
def run(files: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SentenceTower, "embed", spelled)
        out = files.parent / "run"
        cache = {"data.cache": str(files.parent / "cache")}
        pretrain("premier_taco-libero", [files], out, SMALL | cache)
        return out


def small_encoder(**settings: Any) -> ObservationEncoder:
    torch.manual_seed(0)
    return ObservationEncoder(
        ObservationConfig(**{"size": SIZE, "stack": 2, "cameras": 2, "width": 4, "embed_dim": 8, **settings})
    )


def test_the_recipe_is_appendix_c_s() -> None:
    config: Any = load_recipe("premier_taco-libero")
    assert (config.encoder.kind, config.encoder.cameras, config.encoder.size) == ("libero", 2, 128)
    assert config.data.camera == (OUTER, WRIST)
    benchmark = load_preset("fewshot", FewshotConfig, "libero")
    assert benchmark.encoder.model_dump() | {"embed_dim": 64} == config.encoder.model_dump()
    assert benchmark.data.camera == config.data.camera
    assert benchmark.clone["cloning"] == {"history": 10, "language": True}


def test_pretraining_reads_both_cameras_and_the_instruction(files: Path, run: Path) -> None:
    encoder = ObservationEncoder.from_pretrained(run / "model")
    assert (encoder.config.cameras, encoder.embed_dim, encoder.takes_instruction) == (2, 16, True)
    torch.manual_seed(0)
    start = {name: value.clone() for name, value in ObservationEncoder(encoder.config).state_dict().items()}
    losses = [json.loads(line)["loss"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(losses) == 3
    assert np.isfinite(losses).all()
    trained = encoder.state_dict()
    for camera in (0, 1):
        for part in ("blocks.0", "language.projection.weight"):
            names = [name for name in trained if name.startswith(f"body.{camera}.body.{part}")]
            assert names
            assert any(not torch.equal(trained[name], start[name]) for name in names)
    (store,) = map(CachedStore, [path.parent for path in (files.parent / "cache").glob("*/store.json")])
    assert store.cameras == (OUTER, WRIST)
    np.testing.assert_array_equal(
        store.frames(0, np.arange(4), WRIST), open_dataset(files).frames(0, np.arange(4), WRIST)
    )


@pytest.mark.parametrize("camera", [OUTER, (OUTER, "side"), (OUTER, OUTER)])
def test_cameras_that_the_encoder_or_the_data_have_not(files: Path, tmp_path: Path, camera: Any) -> None:
    cache = {"data.cache": str(tmp_path / "cache"), "data.camera": camera}
    with pytest.raises(BadInputError, match="camera"):
        pretrain("premier_taco-libero", [files], tmp_path / "run", SMALL | cache)
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "cache").exists()  # nothing was decoded for nothing


def test_frames_to_centre_on_are_those_of_each_camera() -> None:
    store, encoder = record_pairs(2), small_encoder(centre=True)
    frames = evenly_spaced_frames(store, 8, (WRIST, OUTER))
    assert frames.shape[1:] == (2, SIZE, SIZE, 3)
    assert torch.equal(frames[:, 1], evenly_spaced_frames(store, 8, OUTER))
    assert torch.equal(frames[:, 1], evenly_spaced_frames(store, 8))
    encoder.centre_on(frames)
    assert isinstance(encoder.body, torch.nn.ModuleList)
    for number, one in enumerate(encoder.body):
        torch.testing.assert_close(one.mean_image, (frames[:, number].float() / 255).mean(0))


class Replay:
    """Acts as the demonstration did, and keeps what it is shown."""

    def __init__(self, actions: Array) -> None:
        self.actions, self.shown = actions, []  # type: tuple[Array, list[Array]]

    def reset(self, rows: Sequence[int], seeds: Sequence[int] | None = None) -> None:
        self.shown.clear()

    def looks(self, rows: Sequence[int]) -> list[bool]:
        return [True] * len(rows)

    def act(self, observation: Mapping[str, Array], *, rows: Sequence[int], explore: bool = False) -> Array:
        self.shown.append(np.stack([observation[OUTER][0], observation[WRIST][0]]))
        step: Array = self.actions[len(self.shown) - 1 :][:1]
        return step


def test_rollouts_loader_and_features_hold_the_same_frames_in_the_same_order() -> None:
    store = record_pairs(3)  # demonstration 2 n + m was begun with seed n
    spec = Spec.steps((0, 1), 1, NearNegatives(2), stack=2, shift=2)
    batch = sampler(store, spec, batch_size=32, seed=0, camera=(OUTER, WRIST))[5]
    alone = [sampler(store, spec, batch_size=32, seed=0, camera=camera)[5] for camera in (OUTER, WRIST)]
    assert batch["frames"].shape == (32, 3, 4, SIZE, SIZE, 3)
    assert torch.equal(batch["frames"], torch.cat([one["frames"] for one in alone], 2))
    assert batch["shift"].shape == (32, 3, 2)
    actions = store.actions(4)
    assert actions is not None
    replay = Replay(actions)
    rollout(replay, PairTask, [2])
    features, encoder = embed_store(small_encoder(), store, (OUTER, WRIST)), small_encoder().eval()
    compared = 0
    for row in np.flatnonzero(batch["episode"] == 4):
        step, frames = int(batch["step"][row]), batch["frames"][row, 0]
        shown = np.stack([replay.shown[max(step - 1, 0)], replay.shown[step]], axis=1)  # [C, S, H, W, 3]
        np.testing.assert_array_equal(frames, shown.reshape(frames.shape))
        torch.testing.assert_close(features[4 * HORIZON + step], encoder(frames[None])[0].detach())
        compared += 1
    assert compared > 2


@pytest.mark.slow
def test_a_policy_needs_each_camera_in_its_place(tmp_path: Path) -> None:
    store = record_pairs(12, names=("stub/right",))
    head: dict[str, Any] = HEAD | {"history": 2, "token": 16, "hidden": 32, "shift": 0}
    policy = clone(
        small_encoder(stack=1), store, cloning(120, lr=3e-3, **head), tmp_path / "run", camera=(OUTER, WRIST)
    )
    seeds = list(range(100, 108))
    solved = rollout(policy, PairTask, seeds, envs=4, stop_at_success=True)
    assert np.mean([one.success for one in solved]) >= 0.75
    swapped = rollout(policy, partial(PairTask, cameras=(WRIST, OUTER)), seeds, envs=4, stop_at_success=True)
    assert np.mean([one.total_reward for one in swapped]) < np.mean([one.total_reward for one in solved])
    loaded = ClonedPolicy.from_pretrained(policy.save_pretrained(tmp_path / "model"))
    assert rollout(loaded, PairTask, seeds, envs=4, stop_at_success=True) == solved


@pytest.mark.slow
@pytest.mark.parametrize("freeze", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_training_and_evaluation_from_the_command_line(
    files: Path, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, freeze: bool
) -> None:
    overrides: dict[str, Any] = {f"cloning.{name}": value for name, value in HEAD.items()}
    overrides |= {"train.steps": 2, "train.batch_size": 4, "cloning.freeze": freeze}
    overrides |= {"data.instruction": RIGHT, "data.cache": str(tmp_path / "cache")}
    out = tmp_path / "cloned"
    train("cloning", files, out, overrides=overrides, start_from=run)
    policy = ClonedPolicy.from_pretrained(out)
    assert (policy.encoder.config.cameras, policy.history, policy.instruction) == (2, 3, RIGHT)
    asked: list[Any] = []

    def make(name: str, *, cameras: tuple[str, ...], size: int, **_: Any) -> PairTask:
        asked.append((name, cameras, size))
        return PairTask(name, cameras=cameras)

    monkeypatch.setattr(evaluation, "make_env", make)
    for env in ("stub/right", f"stub/right@{OUTER}"):
        with pytest.raises(BadInputError, match="expected 2, as many as the policy reads"):
            evaluate(out, env=env, episodes=3, envs=2, seed=0)
    path = evaluate(out, env=f"stub/right@{OUTER},{WRIST}", episodes=3, envs=2, seed=0)
    assert asked == [("stub/right", (OUTER, WRIST), SIZE)] * 2
    assert json.loads(path.read_text())["success"]["n"] == 3


@pytest.mark.slow
def test_the_benchmark_pretrains_clones_and_rolls_out(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def make(name: str, *, cameras: tuple[str, ...], **_: Any) -> PairTask:
        asked.append(cameras)
        return PairTask(name.replace("libero/", "stub/"), cameras=cameras)

    for module in (trials, data):
        monkeypatch.setattr(module, "make_env", make)
    config = load_preset(
        "fewshot",
        FewshotConfig,
        "libero",
        {
            "data.pretraining_path": str(files),
            "data.demonstrations_path": str(files),
            "data.unseen_tasks": ["right"],
            "data.demonstrations": 2,
            **{name: value for name, value in SMALL.items() if not name.startswith("objective")},
            "clone.steps": 2,
            "clone.batch_size": 4,
            "clone.cloning": HEAD,
        },
    )
    config = config.model_copy(update={"evaluation": Evaluations(every=2, episodes=2, envs=2)})
    small = config.pretrainings["premier_taco"].model_copy(update={"train": {"batch_size": 4}})
    config = config.model_copy(update={"pretrainings": {"premier_taco": small}})
    run = PretrainingRun("premier_taco", 0)
    Study("study", tmp_path, config).run([Trial(run.name, partial(trials.pretrain, config, tmp_path, run))])
    found = adapt(config, tmp_path, Adaptation("premier_taco/finetuned", "right", 0))
    assert [one["step"] for one in found["curve"]] == [2]
    assert set(asked) == {(OUTER, WRIST)}
    stores: list[EpisodeStore] = [data.open_demonstrations(config, tmp_path, SIZE, "right")]
    assert stores[0].cameras == (OUTER, WRIST)
    assert cached(stores[0], size=SIZE, cameras=(OUTER, WRIST)) is stores[0]
