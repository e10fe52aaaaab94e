from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from counterpoint.data.store import MemoryStore
from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.errors import BadInputError
from counterpoint.policies.cloned import ClonedPolicy
from counterpoint.training.train import train
from tests.training.step_data import SIZE, control_store, write_control_set, write_two_tasks

TINY = {
    "train.steps": 2,
    "train.batch_size": 4,
    "optimizer.lr": 1e-12,
    "cloning.hidden": 8,
    "cloning.shift": 1,
    "encoder.size": SIZE,
    "encoder.stack": 2,
    "encoder.width": 4,
    "encoder.embed_dim": 8,
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_two_tasks(tmp_path / "data")


def trained(data: Path, out: Path, **overrides: Any) -> ClonedPolicy:
    dotted = {key.replace("__", "."): value for key, value in overrides.items()}
    assert train("cloning", data, out, overrides=TINY | dotted).model == out / "model"
    return ClonedPolicy.from_pretrained(out)


def test_demonstrations_become_a_policy(data: Path, tmp_path: Path) -> None:
    policy = trained(data, tmp_path / "run")
    assert policy.demonstrations is not None
    assert policy.demonstrations.count == 5  # those of the training split
    assert policy.instruction == ""  # there are two
    record = json.loads((tmp_path / "run" / "config.json").read_text())
    assert record["data"]["path"] == str(data.resolve())
    assert record["identity"]["cameras"] == ["front"]
    assert (policy.demonstrations.fps, policy.demonstrations.frame) == (10, (SIZE, SIZE))
    again = trained(data, tmp_path / "run")  # which has ended, and is read
    for name, value in policy.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])


def test_one_instruction_s_demonstrations_are_chosen(data: Path, tmp_path: Path) -> None:
    policy = trained(data, tmp_path / "run", data__instruction="move the dot 1", data__split=None)
    assert policy.demonstrations is not None
    store = control_store(5)
    chosen = [store.actions(1), store.actions(3), control_store(2, seed=1).actions(1)]
    assert policy.demonstrations.count == 3
    assert policy.instruction == "move the dot 1"
    mean = np.concatenate([part for part in chosen if part is not None]).mean(0)
    np.testing.assert_allclose(policy.demonstrations.actions.mean, mean, rtol=1e-6)


def test_the_first_few_demonstrations_are_taken(data: Path, tmp_path: Path) -> None:
    policy = trained(data, tmp_path / "run", data__instruction="move the dot 0", data__episodes=2)
    assert policy.demonstrations is not None
    store = control_store(5)
    parts = [part for part in (store.actions(0), store.actions(2)) if part is not None]
    np.testing.assert_allclose(policy.demonstrations.actions.mean, np.concatenate(parts).mean(0), rtol=1e-6)


def test_a_recipe_s_values_are_used_and_overridden(data: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        f"kind = 'cloning'\n[train]\nsteps = 1\nbatch_size = 2\n[encoder]\nsize = {SIZE}\nstack = 3\nwidth = 4\n"
    )
    train(recipe, data, tmp_path / "run", overrides={"train.batch_size": 3})
    record = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (record["train"]["steps"], record["train"]["batch_size"], record["optimizer"]["lr"]) == (1, 3, 1e-4)
    assert ClonedPolicy.from_pretrained(tmp_path / "run").stack == 3


def test_a_start_of_another_kind_is_refused_with_the_command_that_makes_one(data: Path, tmp_path: Path) -> None:
    DualEncoder(EncoderConfig(image="convnet", image_size=32, embed_dim=8)).save_pretrained(tmp_path / "model")
    with pytest.raises(BadInputError) as refused:
        train("cloning", data, tmp_path / "run", overrides=TINY, start_from=tmp_path / "model")
    assert str(refused.value).startswith(f"--start-from, {tmp_path / 'model'}")
    assert "kind 'dual_encoder'; expected 'observation_encoder'" in str(refused.value)
    assert "counterpoint train premier_taco-metaworld" in refused.value.hint


def test_the_encoder_starts_from_a_pretrained_one(data: Path, tmp_path: Path) -> None:
    torch.manual_seed(3)
    given = ObservationEncoder(ObservationConfig(size=20, stack=1, width=4, embed_dim=6, centre=True))
    given.centre_on(torch.randint(0, 256, (5, 20, 20, 3), dtype=torch.uint8))
    given.save_pretrained(tmp_path / "model")
    train("cloning", data, tmp_path / "run", overrides=TINY, start_from=tmp_path / "model")
    policy = ClonedPolicy.from_pretrained(tmp_path / "run")
    assert (policy.encoder.config.size, policy.stack) == (20, 1)
    for name, value in policy.encoder.state_dict().items():
        torch.testing.assert_close(value, given.state_dict()[name])  # at a learning rate of next to nothing


@pytest.mark.parametrize("centre", [False, True])
def test_an_encoder_from_scratch_is_centred_where_that_is_asked_for(data: Path, tmp_path: Path, centre: bool) -> None:
    """On the demonstrations it is trained on, and no others."""
    policy = trained(data, tmp_path / "run", encoder__centre=centre, data__episodes=3)
    store = control_store(5)
    images = np.concatenate([store.frames(e, np.arange(14)) for e in range(3)])
    mean = torch.from_numpy(images).float().mean(0) / 255
    expected = mean if centre else torch.full_like(mean, 0.5)
    torch.testing.assert_close(policy.encoder.mean_image, expected)


def test_seeds_decide_the_encoder_from_scratch(data: Path, tmp_path: Path) -> None:
    first, again, other = (
        trained(data, tmp_path / name, train__seed=seed).encoder.state_dict()
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    assert any(not torch.equal(value, other[name]) for name, value in first.items())


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"data.episodes": 6}, "5 demonstrations; expected 6 or more"),
        ({"data.instruction": "move the dot 1", "data.episodes": 3}, "2 demonstrations of 'move the dot 1'"),
        ({"data.instruction": "sing"}, "its instructions are ['move the dot 0', 'move the dot 1']"),
        ({"data.split": "test"}, "test"),
        ({"data.camera": "back"}, "back"),
        ({"encoder.cameras": 2}, "camera"),
        ({"train.step": 3}, "did you mean 'steps'"),
        ({"data.episodes": 0}, "data.episodes = 0"),
    ],
)
def test_bad_demonstrations_are_one_message(data: Path, tmp_path: Path, overrides: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInputError) as refused:
        train("cloning", data, tmp_path / "run", overrides=TINY | overrides)
    assert words in str(refused.value)
    assert "None" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_missing_demonstrations_or_actions_are_one_message(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="--data: found none"):
        train("cloning", None, tmp_path / "run", overrides=TINY)
    with pytest.raises(BadInputError, match="nothing there"):
        train("cloning", tmp_path / "nowhere", tmp_path / "run", overrides=TINY)
    videos = write_control_set(tmp_path / "videos", {"train": control_store(action_dim=None)})
    with pytest.raises(BadInputError, match="no actions"):
        train("cloning", videos, tmp_path / "run", overrides=TINY)
    assert not (tmp_path / "run").exists()


def test_an_instruction_that_would_be_cut_is_refused_before_frames_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sentence_transformers", reason="needs the extra `text`")
    data = write_control_set(tmp_path / "data", {"train": control_store(2, instruction="move the dot and " * 80)})
    overrides = {key: value for key, value in TINY.items() if key != "encoder.width"}
    monkeypatch.setattr("counterpoint.training.cloning.prepared", lambda *_, **__: pytest.fail("frames were decoded"))
    with pytest.raises(BadInputError, match=r"321 words.*expected at most 256 word pieces"):
        train("cloning", data, tmp_path / "run", overrides=overrides | {"encoder.kind": "resnet18_film"})


@pytest.mark.parametrize("reads", [True, False])
def test_placeholders_are_told_where_the_policy_reads_them(
    reads: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sentence_transformers", reason="needs the extra `text`")
    store = MemoryStore([replace(episode, instruction="N/A") for episode in control_store(2)._episodes])
    data = write_control_set(tmp_path / "data", {"train": store})
    trained(data, tmp_path / "run", cloning__language=reads)
    told = "Placeholders, which name no task: 'N/A'; to replace them: counterpoint data convert"
    assert capsys.readouterr().out.count(told) == int(reads)


@pytest.mark.sim
@pytest.mark.parametrize(
    ("env", "words"),
    [("kitchen/light_on", "found actions of 9 dimensions; expected 2"), ("kitchen/ligt_on", "light_on")],
)
def test_an_environment_that_does_not_fit_is_refused_before_frames_are_decoded(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: str, words: str
) -> None:
    pytest.importorskip("gymnasium_robotics", reason="needs the extra `sim`")
    monkeypatch.setattr("counterpoint.training.cloning.prepared", lambda *_, **__: pytest.fail("frames were decoded"))
    with pytest.raises(BadInputError, match=words):
        train("cloning", data, tmp_path / "run", overrides=TINY | {"evaluation.env": env})
    assert not (tmp_path / "run").exists()
