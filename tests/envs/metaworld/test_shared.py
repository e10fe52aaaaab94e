from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counterpoint.config import validate
from counterpoint.data.episode import Array
from counterpoint.envs.collect import episode_seed
from counterpoint.envs.make import make_env
from counterpoint.envs.metaworld.collect import MetaWorldCollectConfig, collect_metaworld
from counterpoint.envs.metaworld.env import CAMERAS, CONTROL_HZ, INSTRUCTIONS, MetaWorldEnv
from counterpoint.envs.metaworld.shared import (
    LOOSE,
    NEAR,
    SHARED_CAMERAS,
    TASKS,
    THINGS,
    SharedSceneEnv,
    resolve_shared,
)
from counterpoint.errors import BadInputError
from counterpoint.formats import open_dataset

pytestmark = [pytest.mark.sim, pytest.mark.usefixtures("simulator")]


def config(out: Path, **changes: Any) -> MetaWorldCollectConfig:
    settings = {"out": out, "scene": "shared", "episodes": 1, "size": 32, "workers": 1, "lossless": True}
    return validate(MetaWorldCollectConfig, {**settings, **changes}, "collect metaworld")


def solve(env: SharedSceneEnv, seed: int, limit: int = 200) -> tuple[int | None, Array]:
    """Return the step at which the expert solves the seed's scene, and the states it goes through."""
    env.look, seen = False, []
    env.reset(seed=seed)
    for step in range(limit):
        observation, *_, info = env.step(env.expert())
        seen.append(np.concatenate([observation["state"], observation["environment_state"]]))
        if info["is_success"]:
            return step + 1, np.stack(seen)
    return None, np.stack(seen)


def start(env: SharedSceneEnv, seed: int) -> Array:
    """Return the whole state at a reset: positions of all joints and places of all objects."""
    env.look = False
    env.reset(seed=seed)
    assert not env.solved
    return np.concatenate([env.data.qpos, *(env.model.body(name).pos for name in THINGS)])


@pytest.mark.parametrize("name", ["drawer-open", "door-close"])
def test_the_expert_solves_the_task_and_moves_no_other_object(name: str) -> None:
    env = SharedSceneEnv(name, cameras=[])
    env.look = False
    env.reset(seed=0)
    before = {thing: env.share(thing) for thing in THINGS}
    steps, _ = solve(env, 0)
    assert steps is not None
    moved = [thing for thing, share in before.items() if abs(env.share(thing) - share) > 0.5]
    assert moved == [name.partition("-")[0]]
    assert all(abs(env.share(thing) - share) < 1e-3 for thing, share in before.items() if thing not in moved)


@pytest.mark.slow
@pytest.mark.parametrize("name", TASKS)
def test_experts_solve_nine_of_ten_scenes_and_leave_them_solved(name: str) -> None:
    env = SharedSceneEnv(name, cameras=[])
    found = []
    for seed in range(20):
        steps, _ = solve(env, seed)
        after = [env.step(env.expert())[4]["is_success"] for _ in range(40)]
        found.append(steps is not None and steps <= 160 and all(after))
    assert np.mean(found) >= 0.9


def test_the_first_frame_leaves_one_task_of_each_object_possible() -> None:
    """An object that the task does not move is at either end, and the task moves its own object to the other end."""
    ends: dict[str, Counter[int]] = {thing: Counter() for thing in THINGS}
    env, seeds = SharedSceneEnv("window-close", cameras=[]), range(60)
    for seed in seeds:
        start(env, seed)
        shares = {thing: env.share(thing) for thing in THINGS}
        assert all(min(share, 1 - share) <= LOOSE + 1e-9 for share in shares.values())
        assert not env.data.contact  # no object reaches into another
        for thing, share in shares.items():
            ends[thing][round(share)] += 1
    assert ends.pop("window") == {1: len(seeds)}
    assert all(0.3 * len(seeds) < count[1] < 0.7 * len(seeds) for count in ends.values())


def test_one_state_begins_episodes_of_four_tasks() -> None:
    """With one seed, tasks whose objects are at the other end anyway begin in one state: one task of each object."""
    tasks: dict[bytes, list[str]] = {}
    for name, task in TASKS.items():
        tasks.setdefault(start(SharedSceneEnv(name, cameras=[]), 11).tobytes(), []).append(task.thing)
    assert max(tasks.values(), key=len) == list(THINGS)


def test_the_seed_decides_everything() -> None:
    env = SharedSceneEnv("faucet-open", cameras=[])
    first = solve(env, 3)[1]
    other = solve(env, 4)[1]
    np.testing.assert_array_equal(first, solve(env, 3)[1])
    np.testing.assert_array_equal(first, solve(SharedSceneEnv("faucet-open", cameras=[]), 3)[1])
    assert not np.array_equal(first[0], other[0])


def test_a_task_is_solved_within_a_tenth_of_the_way() -> None:
    for name, task in TASKS.items():
        env, thing = SharedSceneEnv(name, cameras=[]), THINGS[task.thing]
        low, high = env.model.joint(thing.joint).range
        stops = (low, high) if thing.ends[0] < thing.ends[1] else (high, low)
        goal, away = stops[task.end], stops[1 - task.end]
        for beyond in (0.99, 1.01):
            env.data.joint(thing.joint).qpos[0] = goal + beyond * NEAR * (away - goal)
            assert env.solved == (beyond < 1)


def test_what_a_policy_sees() -> None:
    env: Any = make_env("metaworld/shared/door-open", size=24, repeat=2, steps=5)
    assert (env.name, env.instruction) == ("metaworld/shared/door-open", "open the door")
    assert (env.horizon, env.control_hz, env.cameras) == (3, CONTROL_HZ / 2, ("left",))
    observation, _ = env.reset(seed=1)
    assert observation["left"].std() > 20
    assert observation["state"].shape == (4,)
    np.testing.assert_allclose(observation["environment_state"][3:6], env.handle("door"), rtol=1e-6)
    assert observation["environment_state"][13] == pytest.approx(env.share("door"))
    own = MetaWorldEnv("door-open", cameras=[])
    own.look = False
    np.testing.assert_array_equal(own.reset(seed=0)[0]["state"].shape, observation["state"].shape)
    assert own.action_space == env.action_space
    names = {env.model.camera(number).name for number in range(env.model.ncam)}
    assert names == set(SHARED_CAMERAS) == {"left", *CAMERAS}
    assert make_env("metaworld/shared/door-open@topview", size=24).cameras == ("topview",)
    env.close()


def test_rewards_of_repeated_steps_add_up() -> None:
    env = SharedSceneEnv("drawer-close", cameras=[], repeat=4)
    env.look = False
    env.reset(seed=0)
    env.data.joint("goal_slidey").qpos[0] = 0.0
    _, reward, *_, info = env.step(np.zeros(4))
    assert (reward, info["is_success"]) == (4.0, True)


def test_names() -> None:
    assert resolve_shared(["default"]) == resolve_shared(["all"]) == tuple(TASKS)
    assert resolve_shared(["door-open", "door-open-v3"]) == ("door-open-v3",)
    assert set(TASKS) <= set(INSTRUCTIONS)
    with pytest.raises(BadInputError, match=r"metaworld/shared/door-opn: .*did you mean 'door-open"):
        make_env("metaworld/shared/door-opn")
    with pytest.raises(BadInputError, match="metaworld/other/door-open"):
        make_env("metaworld/other/door-open")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": ["hammer"]}, r"tasks: found 'hammer', no task of the shared scene; .*drawer-open-v3, .*--scene own"),
        ({"tasks": ["door-opn"]}, "did you mean 'door-open-v3'"),
        ({"cameras": ["front"]}, "'front'.*left, corner2"),
        ({"scene": "kitchen"}, "scene = 'kitchen'"),
        ({"scene": "own", "cameras": ["left"]}, "'left'.*corner2"),
    ],
)
def test_bad_configurations(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        collect_metaworld(config(tmp_path / "set", **changes))
    assert not list(tmp_path.iterdir())


def test_a_collection_holds_what_was_carried_out(tmp_path: Path) -> None:
    wanted = config(tmp_path / "set", tasks=["faucet-close", "drawer-open"], stride=4)
    store = open_dataset(collect_metaworld(wanted))
    assert [info.instruction for info in store.episodes] == ["turn off the faucet", "open the drawer"]
    assert all(info.success and info.fps == 20 for info in store.episodes)
    assert store.cameras == ("left",)
    told = json.loads((wanted.out / "meta" / "info.json").read_text())["counterpoint"]["collect"]
    assert told["config"]["scene"] == "shared"
    assert told["rendering"]["canary"]["task"] == "shared/drawer-open-v3"

    state, frame = store.state(1), store.frames(1, np.array([0]))[0]
    assert state is not None
    env = SharedSceneEnv("drawer-open", size=32, repeat=4)
    observation, _ = env.reset(seed=episode_seed(0, "drawer-open-v3", "train", 0))
    np.testing.assert_array_equal(observation["state"], state[0])
    np.testing.assert_array_equal(observation["left"], frame)
    rewards = store.rewards(1)
    assert rewards is not None
    assert rewards[0] == 0
    assert rewards[-1] == 4
