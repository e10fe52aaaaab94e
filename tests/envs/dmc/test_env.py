from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from counterpoint.envs.dmc.env import EVALUATION, PRETRAINING, TASKS, DMCEnv, import_suite, resolve_dmc_tasks
from counterpoint.envs.make import make_env
from counterpoint.errors import BadInputError, MissingExtraError
from tests.envs.played import act

pytest.importorskip("dm_control", reason="labmaze has no wheel for Python 3.13")


def test_the_papers_tasks_are_known() -> None:
    assert len(PRETRAINING) == 6
    assert len(EVALUATION) == 10
    assert set(PRETRAINING) | set(EVALUATION) <= set(TASKS)
    assert len({task.instruction for task in TASKS.values()}) == len(TASKS)
    assert resolve_dmc_tasks(["pretraining"]) == PRETRAINING
    assert resolve_dmc_tasks(["evaluation", "walker-walk"]) == EVALUATION


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("walker_walk", "walker-walk"),
        ("Finger Turn Hard", "finger-turn_hard"),
        ("finger-turn-hard", "finger-turn_hard"),
        ("ball_in_cup-catch", "cup-catch"),
        ("ball_in_cup_catch", "cup-catch"),
        ("cup_catch", "cup-catch"),
    ],
)
def test_other_spellings_are_understood(name: str, meant: str) -> None:
    assert resolve_dmc_tasks([name]) == (meant,)


def test_an_unknown_task_is_told_with_a_near_one() -> None:
    with pytest.raises(BadInputError, match="did you mean 'walker-walk"):
        resolve_dmc_tasks(["walker-wlak"])
    with pytest.raises(BadInputError, match="tasks: found none"):
        resolve_dmc_tasks([])


def test_a_missing_suite_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dm_control.suite", None)
    with pytest.raises(MissingExtraError, match=r"\[sim\]"):
        import_suite()


@pytest.mark.sim
@pytest.mark.parametrize(
    ("task", "actions", "state", "camera"),
    [
        ("walker-walk", 6, 24, "side"),
        ("quadruped-walk", 12, 78, "y"),
        pytest.param("dog-stand", 38, 223, "y-axis", marks=pytest.mark.slow),
        ("humanoid-walk", 21, 67, "back"),
    ],
)
def test_sizes_and_cameras(task: str, actions: int, state: int, camera: str) -> None:
    made = DMCEnv(task)
    assert made.name == f"dmc/{task}"
    assert made.instruction == TASKS[task].instruction
    assert (made.action_dim, made.state_dim, *made.cameras) == (actions, state, camera)
    assert made.state().shape == (state,)
    assert made.state().dtype == np.float32
    assert made.horizon == 500


@pytest.mark.sim
@pytest.mark.parametrize("task", ["finger-spin", "reacher-hard", "cup-catch"])
def test_an_episode_follows_from_its_seed(task: str) -> None:
    made, other = DMCEnv(task, cameras=[]), DMCEnv(task, cameras=[])
    other.reset(seed=8)
    other.step(np.ones(2))
    episodes = []
    for simulation in (made, other, made):
        simulation.reset(seed=7)
        rng = np.random.default_rng(0)
        seen = [simulation.state()]
        for _ in range(15):
            simulation.step(rng.uniform(-1, 1, 2))
            seen.append(simulation.state())
        episodes.append(np.stack(seen))
    np.testing.assert_array_equal(episodes[0], episodes[1])
    np.testing.assert_array_equal(episodes[0], episodes[2])
    made.reset(seed=8)
    assert not np.array_equal(made.state(), episodes[0][0])


@pytest.mark.sim
def test_an_action_lasts_two_control_steps_and_earns_both_rewards() -> None:
    made = DMCEnv("walker-stand", cameras=[])
    made.reset(seed=5)
    suite = import_suite().load("walker", "stand", task_kwargs={"random": 5})
    suite.reset()
    rng = np.random.default_rng(1)
    for _ in range(10):
        action = rng.uniform(-1, 1, 6)
        first, second = suite.step(action), suite.step(action)
        outcome = act(made, action)
        assert outcome.reward == pytest.approx(first.reward + second.reward, abs=1e-12)
        observed = np.concatenate([np.ravel(part) for part in second.observation.values()])
        np.testing.assert_array_equal(made.state(), observed.astype(np.float32))


@pytest.mark.sim
def test_an_episode_ends_after_500_actions() -> None:
    made = DMCEnv("reacher-hard", cameras=[])
    made.reset(seed=0)
    truncated = [made.step(np.zeros(2))[3] for _ in range(500)]
    assert truncated[-1]
    assert not any(truncated[:-1])


@pytest.mark.sim
def test_actions_out_of_range_are_clipped() -> None:
    one, two = DMCEnv("reacher-hard", cameras=[]), DMCEnv("reacher-hard", cameras=[])
    for simulation, action in ((one, [3.0, -3.0]), (two, [1.0, -1.0])):
        simulation.reset(seed=0)
        simulation.step(np.array(action))
    np.testing.assert_array_equal(one.state(), two.state())


@pytest.mark.sim
def test_images_are_upright_and_show_the_moment() -> None:
    made = make_env("dmc/walker-walk", size=64)
    made.reset(seed=0)
    first = made.render()
    assert first.shape == (64, 64, 3)
    assert first.dtype == np.uint8
    # The walker is orange-brown, all else is blue; it lies on the floor, below the middle of the image.
    for _ in range(60):
        made.step(np.zeros(6))
    later = made.render().astype(int)
    rows = np.nonzero((later[..., 0] > later[..., 2] + 30).any(axis=1))[0]
    assert len(rows) > 0
    assert rows.mean() > 32
    assert not np.array_equal(first, later)
    made.reset(seed=0)
    np.testing.assert_array_equal(made.render(), first)
    made.close()


@pytest.mark.sim
@pytest.mark.parametrize(("camera", "name"), [("back", "back"), ("1", "back"), (None, "side")])
def test_a_camera_goes_by_name_or_number(camera: str | None, name: str) -> None:
    assert DMCEnv("walker-walk", cameras=camera).cameras == (name,)


@pytest.mark.sim
def test_bad_input_is_told() -> None:
    with pytest.raises(BadInputError, match="one of side, back"):
        DMCEnv("walker-walk", cameras="left")
    with pytest.raises(BadInputError, match=r"one of side, .*0, 1"):
        DMCEnv("walker-walk", cameras="2")
    with pytest.raises(BadInputError, match="at least 16"):
        DMCEnv("walker-walk", size=8)


@pytest.mark.slow
@pytest.mark.sim
def test_both_renderers_never_meet_in_one_process() -> None:
    program = (
        "from counterpoint.envs.dmc.env import DMCEnv\n"
        "from counterpoint.envs.rendering import render_settings\n"
        "task = DMCEnv('reacher-hard', size=16)\n"
        "task.reset(seed=0)\n"
        "task.render()\n"
        "import dm_control._render as render, sys\n"
        "assert render.BACKEND == 'off', render.BACKEND\n"
        "assert render_settings(16)['backend'] != 'disable'\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
