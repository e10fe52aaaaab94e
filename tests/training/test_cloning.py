from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from counterpoint.data.store import EpisodeStore, MemoryStore
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.errors import BadInputError
from counterpoint.policies.cloned import ClonedPolicy
from counterpoint.training.cloning import CloningRecipe
from counterpoint.training.run import list_checkpoints
from tests.data.reading import read_episode
from tests.marks import quick
from tests.policies.demos import demonstrations, observed
from tests.rewards.test_weighting import written
from tests.training.runs import clone, cloning


def encoder(size: int = 24) -> ObservationEncoder:
    torch.manual_seed(0)
    made = ObservationEncoder(ObservationConfig(size=size, width=6, embed_dim=24, stack=2, centre=True))
    made.centre_on(torch.from_numpy(demonstrations(1, size=size).frames(0, np.arange(12))))
    return made


def config(steps: int, **settings: Any) -> CloningRecipe:
    small = {"hidden": 48, "token": 16, "layers": 1, "heads": 2, "dropout": 0.0, "shift": 0}
    return cloning(steps, **{**small, **settings})


def weights(policy: ClonedPolicy) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in policy.state_dict().items()}


def error(policy: ClonedPolicy, store: EpisodeStore) -> tuple[float, float]:
    """Mean squared error of replaying all demonstrations side by side, and that of their mean action."""
    actions = np.stack([read_episode(store, row).actions for row in range(len(store.episodes))])  # type: ignore[misc]
    rows, squared = range(len(actions)), []
    policy.reset(rows)
    for step in range(actions.shape[1]):
        frames = np.stack([store.frames(row, np.array([step])) for row in rows])
        state = np.stack([store.state(row)[step] for row in rows])  # type: ignore[index]
        squared.append((policy.act(observed(frames, state), rows=rows) - actions[:, step]) ** 2)
    return float(np.mean(squared)), float(((actions - actions.mean((0, 1))) ** 2).mean())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "settings"),
    [
        (120, {}),
        pytest.param(400, {"freeze": True}, marks=pytest.mark.slow),
        pytest.param(100, {"history": 3}, marks=pytest.mark.slow),
        pytest.param(200, {"freeze": True, "history": 3, "use_state": True}, marks=pytest.mark.slow),
    ],
)
def test_learns_a_few_demonstrations_by_heart(steps: int, settings: dict[str, Any], tmp_path: Path) -> None:
    """What the policy does in their place is theirs, however it was trained: frames, stack and history agree."""
    store, start = demonstrations(4), encoder()
    before = {name: value.clone() for name, value in start.state_dict().items()}
    policy = clone(start, store, config(steps, **settings), tmp_path / "run")
    mine, constant = error(policy, store)
    assert mine < 0.2 * constant
    assert not policy.training
    same = [torch.equal(value, before[name]) for name, value in policy.encoder.named_parameters()]
    assert all(same) if settings.get("freeze") else not any(same)


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("history", quick([3], [1, 3]))
def test_seeds_alone_decide(freeze: bool, history: int, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"freeze": freeze, "history": history, "dropout": 0.1}
    store, start = demonstrations(2), encoder()
    first = weights(clone(start, store, config(4, **settings), tmp_path / "first"))
    torch.manual_seed(17)
    again = weights(clone(start, store, config(4, **settings), tmp_path / "again"))
    assert all(torch.equal(first[name], again[name]) for name in first)
    other = weights(clone(start, store, config(4, seed=1, **settings), tmp_path / "other"))
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("freeze", [False, True])
def test_steps_of_weight_zero_teach_nothing(freeze: bool, tmp_path: Path) -> None:
    store, found = demonstrations(2), []
    episodes = [read_episode(store, number) for number in range(2)]
    assert episodes[1].actions is not None
    swapped = episodes[1].actions[[1, 0, *range(2, len(episodes[1].actions))]]
    other = MemoryStore([episodes[0], replace(episodes[1], actions=swapped)])
    progress = {number: np.linspace(number, 1 - number, len(one)) for number, one in enumerate(episodes)}
    file = written(tmp_path / "progress.parquet", progress)
    for name, data in {"store": store, "other": other}.items():
        for weighted in (True, False):
            recipe = config(3, freeze=freeze)
            chosen = recipe.data.model_copy(update={"weights": str(file) if weighted else None})
            policy = clone(encoder(), data, recipe.model_copy(update={"data": chosen}), tmp_path / f"{name}{weighted}")
            found.append(weights(policy))
    pairs = zip(found[:2], found[2:], strict=True)
    agree = [all(torch.equal(value, other[key]) for key, value in one.items()) for one, other in pairs]
    assert agree == [True, False]


def test_evaluations_change_nothing(tmp_path: Path) -> None:
    store, start, seen = demonstrations(2), encoder(), []
    plain = weights(clone(start, store, config(7, history=3, dropout=0.1), tmp_path / "plain"))

    def watch(done: int, policy: ClonedPolicy) -> None:
        torch.rand(3)
        seen.append((done, error(policy, store)[0]))

    own = config(7, history=3, dropout=0.1)
    watched = clone(start, store, own, tmp_path / "watched", every=3, on_evaluate=watch)
    assert [done for done, _ in seen] == [3, 6, 7]
    assert all(torch.equal(value, plain[name]) for name, value in watched.state_dict().items())
    assert error(watched, store)[0] == seen[-1][1]


@pytest.mark.parametrize(
    "settings", [pytest.param({}, marks=pytest.mark.slow), {"freeze": True, "history": 3, "dropout": 0.1}]
)
def test_a_killed_run_goes_on_as_if_nothing_had_been(settings: dict[str, Any], tmp_path: Path) -> None:
    store, start, told = demonstrations(2), encoder(), []
    chosen = config(9, **settings)
    whole = weights(clone(start, store, chosen, tmp_path / "whole"))

    def kill(done: int, policy: ClonedPolicy) -> None:
        told.append(done)
        if done == 6 and told.count(6) == 1:
            raise KeyboardInterrupt

    common: dict[str, Any] = {"every": 3, "on_evaluate": kill, "out": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        clone(start, store, chosen, **common)
    policy = clone(start, store, chosen, **common)
    assert told == [3, 6, 6, 9]
    assert all(torch.equal(value, whole[name]) for name, value in policy.state_dict().items())
    saved = ClonedPolicy.from_pretrained(tmp_path / "run")
    assert all(torch.equal(value, whole[name]) for name, value in saved.state_dict().items())
    assert saved.demonstrations is not None
    assert saved.demonstrations.count == 2
    assert len(list_checkpoints(tmp_path / "run" / "checkpoints")) == 1
    # A run that has ended is read and not repeated.
    again = clone(start, store, chosen, **common)
    assert told == [3, 6, 6, 9]
    assert all(torch.equal(value, whole[name]) for name, value in again.state_dict().items())


def test_a_run_belongs_to_its_settings_encoder_and_data(tmp_path: Path) -> None:
    store, start = demonstrations(2), encoder()
    clone(start, store, config(2), tmp_path / "run")
    record = json.loads((tmp_path / "run" / "config.json").read_text())
    assert record["train"]["steps"] == 2
    assert record["provenance"]["packages"]["torch"]
    with torch.no_grad():
        next(start.parameters()).add_(1)
    for other in (
        {"encoder": start, "store": store, "recipe": config(2)},
        {"encoder": encoder(), "store": store, "recipe": config(2, seed=1)},
        {"encoder": encoder(), "store": demonstrations(2, seed=1), "recipe": config(2)},
    ):
        with pytest.raises(BadInputError, match="a run with another"):
            clone(**other, out=tmp_path / "run")  # type: ignore[arg-type]


def test_bad_demonstrations(tmp_path: Path) -> None:
    store = demonstrations(2)
    with pytest.raises(BadInputError, match="frames: found 24 x 24; expected 32 x 32"):
        clone(encoder(32), store, config(1), tmp_path / "a")
    with pytest.raises(BadInputError, match="camera"):
        clone(encoder(), store, config(1), tmp_path / "b", camera="back")
    with pytest.raises(BadInputError, match="no proprioception"):
        clone(encoder(), demonstrations(2, state_dim=0), config(1, use_state=True), tmp_path / "c")


def test_a_loss_that_is_not_finite_is_named(tmp_path: Path) -> None:
    start = encoder()
    with torch.no_grad():
        next(start.parameters()).fill_(float("nan"))
    with pytest.raises(BadInputError, match="finite"):
        clone(start, demonstrations(2), config(3), tmp_path / "run")
