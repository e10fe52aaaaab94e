from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from counterpoint.encoders import DualEncoder, EncoderConfig
from counterpoint.encoders.calibration import RewardForm
from counterpoint.envs.kitchen.dynamics import KitchenDynamics, render_pool
from counterpoint.envs.kitchen.env import TASKS, KitchenEnv
from counterpoint.errors import BadInputError
from counterpoint.evaluation.plan import (
    WITHOUT_MODEL,
    PlanConfig,
    distance_reward,
    language_reward,
    opening_actions,
    plan,
)
from counterpoint.evaluation.rollout import with_interval
from counterpoint.objectives.r3m import LanguageReward as R3MReward
from counterpoint.rewards.model import RewardModel
from counterpoint.rewards.sources import FunctionReward

pytestmark = [pytest.mark.sim, pytest.mark.usefixtures("simulator")]
SMALL: dict[str, Any] = {"samples": 3, "episodes": 1, "size": 32, "knots": 4, "prefix": 40}


@pytest.fixture
def simulator() -> None:
    pytest.importorskip("gymnasium_robotics", reason="needs the extra `sim`")


@pytest.fixture
def model() -> RewardModel:
    torch.manual_seed(0)
    return RewardModel(DualEncoder(EncoderConfig(image_size=32, embed_dim=8)))


def plans(count: int, steps: int) -> Any:
    return np.random.default_rng(0).uniform(-1, 1, (count, steps, 9))


def test_a_model_of_others_scores_the_first_and_the_final_image(model: RewardModel) -> None:
    env = KitchenEnv("micro_open", size=32)
    env.reset(seed=0)
    dynamics = KitchenDynamics(env, threads=1)
    states = dynamics.roll(plans(3, 4))[:, -1]
    theirs = FunctionReward(lambda frames, text: model.reward(frames, text, form="potential"), "theirs")
    found, expected = (language_reward(env, dynamics, one)(states) for one in (theirs, model))
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("reached", [0, 25])
def test_plans_end_where_the_environment_does(reached: int) -> None:
    """At rest, and where the hand touches a handle and solvers of contacts begin from other guesses."""
    env = KitchenEnv("micro_open", size=32)
    env.reset(seed=0)
    for _ in range(reached):
        env.step(env.expert())
    dynamics, made = KitchenDynamics(env, threads=2), plans(3, 6)
    states, before = dynamics.roll(made), env.data.qpos.copy()
    np.testing.assert_array_equal(env.data.qpos, before)  # nothing moved
    last = dynamics.images(states[:, -1])
    reward = distance_reward(env, dynamics)(states[:, -1])
    for action in made[1]:
        observation = env.step(action)[0]
    np.testing.assert_allclose(states[1, -1, 1 : 1 + env.model.nq], env.data.qpos, rtol=0, atol=1e-6)
    assert dynamics.joints(states[1, -1]) == pytest.approx(env.joint, abs=1e-6)
    assert reward[1] == pytest.approx(env.progress - env.gap(env.data), abs=1e-5)
    assert np.abs(last[1].astype(int) - observation["left"]).max() <= 1


@pytest.mark.slow
def test_processes_render_the_same_bits_in_any_order() -> None:
    """In two scenes, which differ in the kitchen's position, and with a batch that the processes share unevenly."""
    env = KitchenEnv("micro_open", cameras=["right"], size=32)
    scenes = []
    with render_pool(env, 2) as renderers:
        for seed in range(2):
            env.reset(seed=seed)
            one, several = KitchenDynamics(env), KitchenDynamics(env, renderers=renderers)
            states = one.roll(plans(9, 2))[:, -1]
            expected = one.images(states)
            np.testing.assert_array_equal(several.images(states), expected)
            np.testing.assert_array_equal(several.images(states[::-1]), expected[::-1])
            scenes.append(expected)
    assert (scenes[0] != scenes[1]).any()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["potential", "language"])
def test_the_sum_of_step_rewards_is_that_of_the_plan_s_end(form: RewardForm) -> None:
    """DecisionNCE's rewards of steps are S(o_n+1, l) - S(o_n, l), R3M's R(o_0, o_n+1, l) - R(o_0, o_n, l)."""
    torch.manual_seed(0)
    own = DualEncoder(EncoderConfig(image_size=32, embed_dim=8, reward_form=form))
    model = RewardModel(own, language_reward=R3MReward(8, 8, 16).eval() if form == "language" else None)
    env = KitchenEnv("sdoor_open", size=32)
    env.reset(seed=0)
    dynamics, first = KitchenDynamics(env), env.images()["left"]
    states = dynamics.roll(plans(2, 5))
    ends = language_reward(env, dynamics, model)(states[:, -1])
    for number in range(2):
        frames = np.concatenate([first[None], dynamics.images(states[number])])
        curve = model.reward(frames, env.instruction, form=form)
        steps = [float(after - before) for before, after in pairwise(curve)]
        assert ends[number] - curve[0] == pytest.approx(sum(steps), abs=1e-5)


@pytest.mark.slow
def test_an_episode_is_planned_and_written(
    tmp_path: Path, model: RewardModel, capsys: pytest.CaptureFixture[str]
) -> None:
    model.encoder.save_pretrained(tmp_path / "model")  # type: ignore[attr-defined]
    for reward in ("distance", "constant", str(tmp_path / "model")):
        config = PlanConfig(env="kitchen/light_on@right", reward=reward, **SMALL)
        found = plan(config, tmp_path / "plan.json")
        read = json.loads((tmp_path / "plan.json").read_text())
        assert read["episodes"] == found["episodes"]
        assert found["episodes"][0]["planned"] == 3 * sum(range(1, 11))
        progress, success = (with_interval(found[key]) for key in ("progress", "success"))
        assert f"plan.json: progress {progress}, success {success}, " in (said := capsys.readouterr()).out
        assert "Planning: 165/165 simulated actions, " in said.err
        assert said.err.rstrip().endswith(", episode 1")
        if reward not in WITHOUT_MODEL:
            (tmp_path / "plan.json").unlink()
            again = plan(config.model_copy(update={"workers": 2}), tmp_path / "plan.json")["episodes"][0]
            assert again == found["episodes"][0] | {"seconds": again["seconds"]}
        if reward != "constant":
            (tmp_path / "plan.json").unlink()
            continue  # what follows is alike for all
        assert plan(config, tmp_path / "2.json")["episodes"][0]["progress"] == found["episodes"][0]["progress"]
        (tmp_path / "2.json").unlink()
        more = plan(config.model_copy(update={"episodes": 2}), tmp_path / "plan.json")["episodes"]
        assert (more[0], len(more)) == (found["episodes"][0], 2)
        assert "Planning: 330/330 simulated actions, " in capsys.readouterr().err
        with pytest.raises(BadInputError, match="other settings"):
            plan(config.model_copy(update={"samples": 5}), tmp_path / "plan.json")
        (tmp_path / "other.json").write_text('{"identity": {}}')
        with pytest.raises(BadInputError, match="other settings"):
            plan(config, tmp_path / "other.json")
        (tmp_path / "plan.json").unlink()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "ldoor_open" else pytest.mark.release) for name in TASKS]
)
def test_the_opening_brings_the_hand_near_and_does_not_solve_the_task(name: str) -> None:
    """DecisionNCE, Appendix E.6."""
    env = KitchenEnv(name, cameras=[])
    for seed in range(3):
        opening = opening_actions(env, PlanConfig(seed=seed))
        for scene in range(3):
            env.look = False
            env.reset(seed=scene)
            for action in opening:
                env.step(action)
            assert env.gap(env.data) < (0.5 if name == "ldoor_open" else 0.25)  # which is half open then
            assert not env.solved


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env": "metaworld/hammer"}, "kitchen/TASK"),
        ({"env": "kitchen/oven"}, "no such task"),
        ({"reward": "runs/nothing"}, "runs/nothing"),
        ({"reward": "distanc"}, "--reward: found 'distanc'.*did you mean 'distance'"),
        ({"horizon": 51}, "at most the episode's 50"),
        ({"prefix": 50}, "fewer than the episode's 50"),
    ],
)
def test_bad_input_is_refused_before_planning(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=message):
        plan(PlanConfig(**(SMALL | changes)), tmp_path / "plan.json")
