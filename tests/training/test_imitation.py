from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from counterpoint.data.store import MemoryStore
from counterpoint.errors import BadInputError
from counterpoint.objectives.crossway import CrosswayConfig
from counterpoint.objectives.icon import IConConfig
from counterpoint.policies.diffusion_policy import DiffusionPolicy
from counterpoint.policies.networks import DiffusionConfig
from counterpoint.training.imitation import AuxiliaryConfig, ImitationRecipe
from counterpoint.training.settings import TrainConfig
from tests.data.reading import read_episode
from tests.policies.masked_demos import CAMERAS, masked_demos, small_imitation
from tests.rewards.test_weighting import written
from tests.training.runs import imitate

ICON = IConConfig(agent_keys=2, environment_keys=6)


def train(steps: int = 4, **changes: Any) -> ImitationRecipe:
    loop = TrainConfig(steps=steps, batch_size=8, trackers=(), log_every=1, eval_every=2, save_every=2)
    return small_imitation(icon=ICON, train=loop, **changes)


def weights(policy: DiffusionPolicy) -> dict[str, torch.Tensor]:
    return {key: value.clone() for key, value in policy.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_from_demonstrations_to_a_saved_policy(tmp_path: Path) -> None:
    store, told = masked_demos(), []
    policy = imitate(
        train(), store, out=tmp_path, camera=CAMERAS, validation=store, on_evaluate=lambda n, p: told.append(n)
    )
    assert told == [2, 4]
    again = DiffusionPolicy.from_pretrained(tmp_path)
    assert same(weights(policy), weights(again))
    assert again.cameras == CAMERAS
    seen = {camera: store.frames(0, np.array([0]), camera) for camera in CAMERAS}
    state = store.state(0)
    assert state is not None
    for one in (policy, again):
        one.reset([0], [5])
    a, b = (one.act(seen | {"state": state[:1]}, rows=[0]) for one in (policy, again))
    np.testing.assert_array_equal(a, b)
    assert a.shape == (1, 2)
    assert np.abs(a).max() <= 1
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert {"icon/loss", "icon/qualifying", "imitation"} <= lines[0].keys()
    assert [line["step"] for line in lines if line["split"] == "val"] == [2, 4]


def test_steps_of_weight_zero_teach_nothing(tmp_path: Path) -> None:
    store = masked_demos()
    episodes = [read_episode(store, number) for number in range(2)]
    assert episodes[1].actions is not None
    swapped = episodes[1].actions[[1, 0, *range(2, 14)]]  # far from the last step, whose chunk of no steps has a weight
    other = MemoryStore([episodes[0], replace(episodes[1], actions=swapped)], fps=20)
    file = written(tmp_path / "progress.parquet", {0: np.linspace(0, 1, 20), 1: np.linspace(1, 0, 14)})
    found = {}
    for name, data in {"store": store, "other": other}.items():
        for weighted in (False, True):
            recipe = small_imitation(data={"weights": str(file)} if weighted else {})
            found[name, weighted] = imitate(recipe, data, out=tmp_path / f"{name}{weighted}", camera=CAMERAS)
    assert not same(weights(found["store", False]), weights(found["other", False]))
    assert same(weights(found["store", True]), weights(found["other", True]))


@pytest.mark.slow
def test_the_best_policies_by_validation_load_like_any_run(tmp_path: Path) -> None:
    """The folder holds as many as were asked for, each with the weights of its own step."""
    store, seen = masked_demos(), {}
    loop = TrainConfig(steps=6, batch_size=8, trackers=(), log_every=1, eval_every=2, save_every=2, keep_best=2)

    def note(step: int, policy: DiffusionPolicy) -> None:
        seen[step] = weights(policy)

    imitate(small_imitation(train=loop), store, out=tmp_path, camera=CAMERAS, validation=store, on_evaluate=note)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["action_error"] for line in lines if line["split"] == "val"}
    best = sorted(losses, key=losses.__getitem__)[:2]
    assert {path.name for path in (tmp_path / "best").glob("step-*")} == {f"step-{step:08d}" for step in best}
    for step in best:
        assert same(weights(DiffusionPolicy.from_pretrained(tmp_path / "best" / f"step-{step:08d}")), seen[step])


def test_the_policy_is_free_of_what_trained_it(tmp_path: Path) -> None:
    """No hook of an auxiliary term stays: one would keep the tokens of every pass with gradients."""
    policy = imitate(train(2), masked_demos(), out=tmp_path, camera=CAMERAS)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in policy.modules())


@pytest.mark.slow
def test_a_validation_needs_nothing_that_terms_ask_for(tmp_path: Path) -> None:
    """Neither masks nor episodes long enough for an objective's own windows."""
    config = train(2, auxiliary=AuxiliaryConfig(objective={"name": "premier_taco", "steps": 12, "hidden": 8}))
    short = masked_demos((9,), masks=())
    imitate(config, masked_demos(), out=tmp_path, camera=CAMERAS, validation=short)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["split"] for line in lines][-2:] == ["val", "seen"]


@pytest.mark.slow
def test_half_precision(tmp_path: Path) -> None:
    """With every term; it begins where full precision does."""
    found = []
    for precision in ("no", "bf16"):
        loop = TrainConfig(steps=2, batch_size=8, trackers=(), log_every=1, precision=precision)
        config = small_imitation(
            icon=ICON,
            crossway=CrosswayConfig(widths=(16,)),
            auxiliary=AuxiliaryConfig(objective={"name": "curl"}),
            train=loop,
        )
        imitate(config, masked_demos(), out=tmp_path / precision, camera=CAMERAS)
        lines = (tmp_path / precision / "metrics.jsonl").read_text().splitlines()
        found.append(json.loads(lines[0]))
    for name in ("imitation", "icon/loss", "crossway/loss", "curl/loss"):
        assert found[1][name] == pytest.approx(found[0][name], rel=0.05)
        assert found[1][name] != found[0][name]


@pytest.mark.slow
def test_an_interrupted_run_ends_like_one_without_a_stop(tmp_path: Path) -> None:
    """Bit for bit, moving average and its count included, whatever is evaluated in between."""

    class StopError(Exception):
        pass

    def stop(done: int, policy: DiffusionPolicy) -> None:
        torch.randn(3)
        if done == 4:
            raise StopError

    store, config = masked_demos(), train(6)
    whole = imitate(config, store, out=tmp_path / "whole", camera=CAMERAS)
    with pytest.raises(StopError):
        imitate(config, store, out=tmp_path / "cut", camera=CAMERAS, validation=store, on_evaluate=stop)
    resumed = imitate(config, store, out=tmp_path / "cut", camera=CAMERAS)
    assert same(weights(whole), weights(resumed))


@pytest.mark.slow
def test_a_policy_is_fine_tuned(tmp_path: Path) -> None:
    first = imitate(train(), masked_demos(), out=tmp_path / "first", camera=CAMERAS)
    before = weights(first)
    config = train(2).model_copy(update={"optimizer": train().optimizer.model_copy(update={"lr": 1e-12})})
    tuned = imitate(config, masked_demos((12,)), out=tmp_path / "tuned", camera=CAMERAS, start_from=tmp_path / "first")
    found = weights(tuned)
    for key in found:
        if "normalizer" not in key:
            torch.testing.assert_close(found[key], before[key])
    assert same(before, weights(first))
    # Actions and proprioception are normalised by what the policy is tuned on, as in ICon's code.
    alone = imitate(train(2), masked_demos((12,)), out=tmp_path / "alone", camera=CAMERAS)
    for part in ("head.normalizer", "state_normalizer"):
        own, others = (policy.get_submodule(part).state_dict() for policy in (alone, first))
        torch.testing.assert_close(tuned.get_submodule(part).state_dict(), own)
        assert not same(own, others)


@pytest.mark.slow
def test_fine_tuning_another_network_is_one_message(tmp_path: Path) -> None:
    first, other = tmp_path / "first", train(use_state=False)
    imitate(train(), masked_demos(), out=first, camera=CAMERAS)
    with pytest.raises(BadInputError, match="start_from: found a policy whose"):
        imitate(other, masked_demos(), out=tmp_path / "other", camera=CAMERAS, start_from=first)


def changed(**parts: Any) -> MemoryStore:
    """The demonstrations with another last episode."""
    store = masked_demos()
    return MemoryStore([read_episode(store, 0), replace(read_episode(store, 1), **parts)], fps=20)


def test_demonstrations_that_cannot_be_imitated_are_one_message(tmp_path: Path) -> None:
    store = masked_demos()
    no_state = MemoryStore([replace(read_episode(store, 0), state=None)], fps=20)
    for number, (data, message) in enumerate(
        (
            (no_state, "demonstrations: found no state"),
            (masked_demos(masks=()), "expected a mask of one of"),
            (masked_demos(size=34), "frames: found 34 x 34; expected 36 x 36"),
            (changed(actions=None), "demonstration 1"),
        )
    ):
        with pytest.raises(BadInputError, match=message):
            imitate(train(), data, out=tmp_path / str(number), camera=CAMERAS)


def test_a_camera_that_is_not_there_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="camera: found 'side'"):
        imitate(train(), masked_demos(), out=tmp_path, camera=("top", "side"))


def test_another_configuration_does_not_touch_the_run(tmp_path: Path) -> None:
    imitate(train(2), masked_demos(), out=tmp_path, camera=CAMERAS)
    before = (tmp_path / "config.json").read_bytes()
    other = train(2).model_copy(update={"icon": IConConfig(agent_keys=1, environment_keys=6)})
    with pytest.raises(BadInputError, match="another \\[icon\\]"):
        imitate(other, masked_demos(), out=tmp_path, camera=CAMERAS)
    assert (tmp_path / "config.json").read_bytes() == before


def test_settings_that_do_not_fit_are_refused() -> None:
    transformer = DiffusionConfig(network="transformer", layers=2, width=32, train_steps=20)
    for changes, message in (
        ({"frame": 30}, "smaller than the encoder"),
        ({"crossway": CrosswayConfig(), "diffusion": transformer}, "bottleneck of a U-Net"),
    ):
        with pytest.raises(ValueError, match=message):
            small_imitation(**changes)
    with pytest.raises(ValueError, match="icon needs an encoder with tokens"):
        ImitationRecipe.model_validate(
            {
                "icon": IConConfig(agent_keys=2, environment_keys=6),
                "encoder": {"kind": "drq", "stack": 1, "size": 84},
                "frame": 84,
            }
        )
