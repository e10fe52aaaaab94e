from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from numpy.typing import NDArray
from pydantic import ValidationError

from counterpoint.envs.goal.env import CorruptedObservations, EnvConfig, GoalEnv, make_goal_env, spaces_of
from counterpoint.envs.vector import Step, VectorEnv
from counterpoint.errors import BadInputError
from tests.envs.filming import in_place_of_moviepy
from tests.envs.toy_goals import Slider
from tests.marks import quick

pytestmark = [pytest.mark.sim, pytest.mark.usefixtures("slider")]


Observation = dict[str, NDArray[Any]]


TOY = "tests.envs.toy_goals:Slider"


FORMS = [
    EnvConfig(name="FetchReach-v4"),
    EnvConfig(name="FetchPush-v4", goals="state"),
    EnvConfig(name="FetchSlide-v4", goals="state_zero_padded"),
    EnvConfig(name="FetchPickAndPlace-v4", observations="image", image_size=36),
    EnvConfig(name="PointMaze_Medium-v3"),
    EnvConfig(name="PointMaze_UMaze-v3", observations="image"),
    EnvConfig(name="AntMaze_UMaze-v5", goals="state", corruption=0.5),
]


def called(config: EnvConfig) -> str:
    return f"{config.name} {config.observations} {config.goals}"


def play(env: gymnasium.Env[Any, Any], seed: int, steps: int = 8) -> list[tuple[Observation, dict[str, Any]]]:
    rng = np.random.default_rng(seed)
    seen, info = env.reset(seed=seed)
    told = [(seen, info)]
    for _ in range(steps):
        action = rng.uniform(-1, 1, env.action_space.shape or ()).astype(np.float32)
        seen, _, _, _, info = env.step(action)
        told.append((seen, info))
    return told


def same(first: list[Any], second: list[Any]) -> bool:
    return all(
        np.array_equal(one[key], other[key]) and told == again
        for (one, told), (other, again) in zip(first, second, strict=True)
        for key in one
    )


@pytest.mark.parametrize("config", quick([FORMS[1], FORMS[5]], FORMS), ids=called)
def test_every_form_is_what_it_promises_and_its_seed_decides_everything(config: EnvConfig) -> None:
    env = make_goal_env(config)
    first = play(env, seed=3)
    wanted = spaces_of(env)
    for seen, info in first:
        assert env.observation_space.contains(seen)
        assert seen["observation"].shape == wanted.observation
        assert seen["achieved_goal"].shape == seen["desired_goal"].shape == wanted.goal
        assert isinstance(info["is_success"], bool)
        assert isinstance(info["distance"], float)
        assert np.array_equal(seen["desired_goal"], first[0][0]["desired_goal"])
    assert isinstance(env.action_space, spaces.Box)
    assert env.action_space.shape == (wanted.action,)
    play(env, seed=4)
    assert same(first, play(env, seed=3))  # whatever was played in between
    assert same(first, play(make_goal_env(config), seed=3))
    assert not same(first, play(env, seed=5))
    env.close()


@pytest.mark.parametrize(("name", "distance"), [("FetchReach-v4", 0.05), ("PointMaze_UMaze-v3", 0.45)])
def test_success_is_the_tasks_own_threshold_and_reward_is_success(name: str, distance: float) -> None:
    env = make_goal_env(EnvConfig(name=name, max_episode_steps=60))
    assert spaces_of(env).success_distance == distance
    seen, info = env.reset(seed=0)
    reached = False
    for _ in range(60):
        near = float(np.linalg.norm(seen["achieved_goal"] - seen["desired_goal"]))
        assert info["distance"] == pytest.approx(near, abs=1e-6)
        assert info["is_success"] == (info["distance"] < distance)
        offset = (seen["desired_goal"] - seen["achieved_goal"]) * 10
        action = np.zeros(env.action_space.shape or (), np.float32)
        action[: len(offset)] = np.clip(offset, -1, 1)
        seen, reward, terminated, truncated, info = env.step(action)
        assert reward == float(info["is_success"])
        assert not terminated
        reached |= info["is_success"]
    assert truncated
    assert reached or name != "FetchReach-v4"


def test_goals_that_are_states_or_images_are_reached_only_by_equality() -> None:
    for config in (
        EnvConfig(name="FetchReach-v4", goals="state"),
        EnvConfig(name="FetchReach-v4", observations="image"),
    ):
        assert spaces_of(make_goal_env(config)).success_distance == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        EnvConfig(name="FetchReach-v4", corruption=0.3),
        pytest.param(EnvConfig(name="FetchReach-v4", observations="image"), marks=pytest.mark.release),
    ],
    ids=called,
)
def test_workers_see_what_one_process_sees(config: EnvConfig) -> None:
    makers = [partial(make_goal_env, config) for _ in range(2)]
    assert pickle.loads(pickle.dumps(makers[0])).args == (config,)
    here, there = SyncVectorEnv(makers), AsyncVectorEnv(makers, context="forkserver")
    try:
        both = [env.reset(seed=[5, 6]) for env in (here, there)]
        for _ in range(4):
            assert all(np.array_equal(both[0][0][key], both[1][0][key]) for key in both[0][0])
            assert np.array_equal(both[0][1]["is_success"], both[1][1]["is_success"])
            assert np.array_equal(both[0][1]["distance"], both[1][1]["distance"])
            action = np.full((2, 4), 0.5, np.float32)
            both = [(told[0], told[4]) for told in (env.step(action) for env in (here, there))]
    finally:
        there.close()
        here.close()


def test_own_environments_do_and_their_actions_are_rescaled() -> None:
    env = make_goal_env(EnvConfig(name="Slider-v0", success_distance=1.0))
    assert spaces_of(env).observation == (2,)
    env.reset(seed=0)
    seen, reward, _, _, info = env.step(np.ones(1, np.float32))
    assert seen["achieved_goal"] == 10
    assert (reward, info["distance"], info["is_success"]) == (0.0, 2.0, False)
    seen, reward, _, _, info = env.step(np.full(1, -0.7, np.float32))
    assert seen["achieved_goal"] == pytest.approx(11.5)
    assert (reward, info["is_success"]) == (1.0, True)


def test_an_environment_s_own_success_decides_unless_a_distance_is_given() -> None:
    own, near = (make_goal_env(EnvConfig(name="Slider-v0", success_distance=given)) for given in (None, 1.0))
    assert spaces_of(own).success_distance == 0
    for env, expected in ((own, [False, True]), (near, [False, False])):
        env.reset(seed=0)
        found = [env.step(np.full(1, action, np.float32)) for action in (-0.2, -0.4)]  # 4, then 3 more: 5 from the goal
        assert [info["is_success"] for *_, info in found] == expected
        assert [reward for _, reward, *_ in found] == [float(one) for one in expected]


def test_environments_and_functions_that_make_them_are_taken() -> None:
    config = EnvConfig(name="mine", success_distance=1.0)
    for given in (gymnasium.make("Slider-v0"), partial(gymnasium.make, "Slider-v0")):
        env = make_goal_env(config, given)
        env.reset(seed=0)
        assert env.step(np.ones(1, np.float32))[4] == {"is_success": False, "distance": 2.0}
    with pytest.raises(BadInputError, match="env mine: found observations without goals"):
        make_goal_env(config, partial(gymnasium.make, "CartPole-v1"))


@pytest.mark.parametrize("config", quick([FORMS[5]], FORMS), ids=called)
def test_every_form_passes_gymnasium_s_checks_and_is_filmed(
    config: EnvConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clip = in_place_of_moviepy(monkeypatch)
    env = make_goal_env(config.model_copy(update={"max_episode_steps": 4}))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(np.inf|infinity|precision|spec|different from the unwrapped).*")
        check_env(env, skip_render_check=True)
    filmed = gymnasium.wrappers.RecordVideo(env, str(tmp_path / "videos"), disable_logger=True)
    play(filmed, seed=1, steps=4)
    filmed.close()  # type: ignore[no-untyped-call]
    ((_, fps, images),) = clip.written
    size = config.image_size if config.observations == "image" else 240
    assert fps == env.metadata["render_fps"]
    assert images.dtype == np.uint8
    assert images.shape == (5, size, size, 3)
    assert not np.array_equal(images[0], images[-1])


def test_discrete_actions_pass_as_they_are() -> None:
    env = make_goal_env(EnvConfig(name="DiscreteSlider-v0", success_distance=1.0, corruption=0.1))
    assert (spaces_of(env).action, spaces_of(env).discrete) == (3, True)
    env.reset(seed=0)
    assert env.step(2)[4]["distance"] == 10.0


def test_discrete_actions_are_counted_from_zero() -> None:
    env = make_goal_env(EnvConfig(name="FromFiveSlider-v0", success_distance=1.0))
    assert env.action_space == spaces.Discrete(3)
    assert spaces_of(env).action == 3
    env.reset(seed=0)
    assert env.step(2)[4]["distance"] == 12.0 - (5 + 2)


@pytest.mark.slow
def test_a_module_before_the_name_is_imported_here_and_in_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_sliders.py").write_text(
        f"import gymnasium\ngymnasium.register('OwnSlider-v0', {TOY!r}, max_episode_steps=5)\n"
    )
    (tmp_path / "broken_sliders.py").write_text("import a_module_that_is_not_there\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    config = EnvConfig(name="own_sliders:OwnSlider-v0", success_distance=1.0)
    assert spaces_of(make_goal_env(config)).observation == (2,)
    with VectorEnv(partial(make_goal_env, config), 2, processes=True) as envs:
        envs.reset([0, 1], [0, 1])
        assert all(isinstance(answer, Step) for answer in envs.receive().values())
    with pytest.raises(BadInputError, match=r"own_sliders:OwnSlider-v1'.*did you mean 'OwnSlider-v0"):
        make_goal_env(EnvConfig(name="own_sliders:OwnSlider-v1"))
    for name, word in (("no_sliders", "no_sliders"), ("broken_sliders", "a_module_that_is_not_there")):
        with pytest.raises(BadInputError, match=f"import failed .*{word}"):
            make_goal_env(EnvConfig(name=f"{name}:OwnSlider-v0"))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (EnvConfig(name="CartPole-v1"), ["env CartPole-v1", "observations without goals (Box)", "desired_goal"]),
        (EnvConfig(name="FetchRech-v4"), ["'FetchRech-v4'", "no such environment", "FetchReach-v4"]),
        (EnvConfig(name="UnboundedSlider-v0", success_distance=1), ["actions Box", "bounds"]),
        (EnvConfig(name="LongGoalSlider-v0"), ["achieved_goal (1,), desired_goal (2,)", "of one shape"]),
        (EnvConfig(name="SquareGoalSlider-v0"), ["desired_goal (1, 1)", "vectors"]),
        pytest.param(EnvConfig(name="FrankaKitchen-v1"), ["achieved_goal Dict", "vectors"], marks=pytest.mark.slow),
        (EnvConfig(name="FetchReach-v1"), ["out of date", "mujoco_py", "choose FetchReach-v4"]),
        (EnvConfig(name="HalfCheetah-v2"), ["out of date", "mujoco_py", "choose HalfCheetah-v5"]),
        (EnvConfig(name="AntMaze_UMaze-v3"), ["out of date", "choose AntMaze_UMaze-v5"]),
    ],
    ids=lambda value: value.name if isinstance(value, EnvConfig) else "",
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_cannot_be_is_said_in_one_message(config: EnvConfig, words: list[str]) -> None:
    with pytest.raises(BadInputError) as told:
        make_goal_env(config)
    assert all(word in str(told.value) for word in words), told.value


@pytest.mark.parametrize(
    "action", [np.array([1.5, 0, 0, 0]), np.array([np.nan, 0, 0, 0]), np.zeros(3)], ids=["out", "NaN", "short"]
)
def test_actions_outside_the_box_are_refused(action: NDArray[np.float64]) -> None:
    env = make_goal_env(EnvConfig(name="FetchReach-v4"))
    env.reset(seed=0)
    with pytest.raises(BadInputError, match=r"4 numbers in \[-1, 1\]"):
        env.step(action)


def test_a_simulation_that_blew_up_is_told() -> None:
    env = make_goal_env(EnvConfig(name="BreakingSlider-v0", success_distance=1.0))
    env.reset(seed=0)
    with pytest.raises(BadInputError, match="NaN or infinity"):
        env.step(np.ones(1, np.float32))


def test_spaces_of_asks_for_a_goal_environment() -> None:
    with pytest.raises(BadInputError, match="make_goal_env"):
        spaces_of(Slider())


@pytest.mark.slow
def test_images_without_a_backend_are_told_of(tmp_path: Path) -> None:
    script = tmp_path / "late.py"
    script.write_text(
        "import mujoco\n"
        "from counterpoint.envs.goal.env import EnvConfig, make_goal_env\n"
        "make_goal_env(EnvConfig(name='FetchReach-v4'))\n"
        "make_goal_env(EnvConfig(name='FetchReach-v4', observations='image'))\n"
    )
    environment = {"PATH": "", "PYTHONPATH": ":".join(sys.path)}
    told = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert "MUJOCO_GL: found not set when mujoco was imported" in told.stderr
    assert "Adroit" not in told.stderr + told.stdout  # gymnasium-robotics' note at its import


def test_nothing_here_loads_torch_into_a_worker() -> None:
    script = "import sys, counterpoint.envs.goal.env; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (EnvConfig(name="MuteSlider-v0"), ["no distance", "give success_distance"]),
        (EnvConfig(name="Slider-v0", success_distance=1, observations="image"), ["FetchReach", "state"]),
        (EnvConfig(name="Slider-v0", success_distance=1, goals="state"), ["coordinates"]),
        (EnvConfig(name="Slider-v0", success_distance=1, goals="state_zero_padded"), ["coordinates"]),
        (EnvConfig(name="EndlessSlider-v0", success_distance=1), ["without an end", "max_episode_steps"]),
        (EnvConfig(name="FetchReach-v4", goal_cells=((1, 1),)), ["no maze", "PointMaze"]),
        (EnvConfig(name="PointMaze_UMaze-v3", start_cells=((1, 1), (2, 2))), ["in a wall: [(2, 2)]"]),
    ],
    ids=lambda value: value.name if isinstance(value, EnvConfig) else "",
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_form_that_a_simulation_cannot_take_is_told(config: EnvConfig, words: list[str]) -> None:
    with pytest.raises(BadInputError) as told:
        make_goal_env(config)
    assert all(word in str(told.value) for word in words), told.value


def test_an_impossible_configuration_is_refused() -> None:
    with pytest.raises(ValidationError, match="goals are images"):
        EnvConfig(name="FetchReach-v4", observations="image", goals="state_zero_padded")
    with pytest.raises(ValidationError, match="greater than or equal to 36"):
        EnvConfig(name="FetchReach-v4", observations="image", image_size=35)


PLAIN = EnvConfig(name="PointMaze_UMaze-v3", max_episode_steps=200)


def test_an_action_that_repeats_is_the_same_action_taken_again() -> None:
    config = PLAIN.model_copy(update={"max_episode_steps": 10, "repeat": 4})
    env, plain = make_goal_env(config), make_goal_env(PLAIN)
    assert env.get_wrapper_attr("episode_steps") == 3
    env.reset(seed=3)
    plain.reset(seed=3)
    rng, lasts = np.random.default_rng(0), [4, 4, 2]  # the episode ends within the last action
    for number, times in enumerate(lasts):
        action = rng.uniform(-1, 1, 2).astype(np.float32)
        seen, *_, over, info = env.step(action)
        for _ in range(times):
            truth, *_, known = plain.step(action)
        np.testing.assert_array_equal(seen["observation"], truth["observation"])
        assert info == known
        assert over is (number == len(lasts) - 1)


def corrupted(probability: float) -> CorruptedObservations:
    env = make_goal_env(PLAIN.model_copy(update={"corruption": probability}))
    assert isinstance(env, CorruptedObservations)
    return env


@pytest.mark.slow
def test_so_many_observations_are_replaced_by_ones_that_were_seen() -> None:
    env, plain = corrupted(0.1), make_goal_env(PLAIN)
    replaced = total = first = 0
    for seed in range(40):
        for number, ((seen, info), (truth, known)) in enumerate(
            zip(play(env, seed, 100), play(plain, seed, 100), strict=True)
        ):
            total += 1
            replaced += info["corrupted"]
            first += info["corrupted"] and number == 0
            changed = not np.array_equal(seen["observation"], truth["observation"])
            assert changed == info["corrupted"]
            np.testing.assert_array_equal(seen["desired_goal"], truth["desired_goal"])
            assert {key: info[key] for key in known} == known  # success and distance of the true state
            if info["corrupted"]:
                assert any(
                    np.array_equal(seen["observation"], one["observation"])
                    and np.array_equal(seen["achieved_goal"], one["achieved_goal"])
                    for one in env.pool
                )
    spread = np.sqrt(0.1 * 0.9 / total)
    assert abs(replaced / total - 0.1) < 4 * spread
    assert first > 0


def test_the_pool_holds_what_random_actions_showed() -> None:
    env = corrupted(0.5)
    env.reset(seed=0)
    assert len(env.pool) == 20 * 50
    assert len({one["observation"].tobytes() for one in env.pool}) == len(env.pool)
    again = corrupted(0.5)
    play(again, 7, 3)
    assert all(
        np.array_equal(one["observation"], other["observation"])
        for one, other in zip(env.pool, again.pool, strict=True)
    )


def test_the_seed_decides_which_whatever_went_before() -> None:
    env, fresh = corrupted(0.3), corrupted(0.3)
    play(env, 1, 30)
    for (seen, info), (again, told) in zip(play(env, 2, 50), play(fresh, 2, 50), strict=True):
        np.testing.assert_array_equal(seen["observation"], again["observation"])
        assert info == told


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_never_and_always(probability: float) -> None:
    env = make_goal_env(PLAIN.model_copy(update={"corruption": probability}))
    if probability == 0:
        assert isinstance(env, GoalEnv)
    else:
        assert all(info["corrupted"] for _, info in play(env, 0, 20))
        assert spaces_of(env) == spaces_of(make_goal_env(PLAIN))
