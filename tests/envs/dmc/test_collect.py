from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counterpoint.config import validate
from counterpoint.envs.dmc.collect import DMCActor, DMCCollectConfig, collect_dmc, skill
from counterpoint.envs.dmc.env import DMCEnv
from counterpoint.errors import BadInputError
from counterpoint.formats import open_dataset, split_names
from counterpoint.planning.shooting import MPPIConfig
from tests.envs.killed import UNFINISHED, kill
from tests.envs.played import act

pytest.importorskip("dm_control", reason="labmaze has no wheel for Python 3.13")

PLANNER = MPPIConfig(horizon=6, samples=6, knots=3)
CALM = {"planner": PLANNER, "least_return": 0.0}
PROGRAM = """
import sys
from counterpoint.envs.dmc.collect import DMCCollectConfig, collect_dmc

if __name__ == "__main__":
    collect_dmc(DMCCollectConfig.model_validate_json(sys.argv[1]))
"""


def config(out: Path, **changes: Any) -> DMCCollectConfig:
    settings: dict[str, Any] = {"tasks": ("reacher-hard",), "kind": "random", "episodes": 2, "val_episodes": 1}
    settings |= {"steps": 8, "size": 32, "workers": 1}
    return validate(DMCCollectConfig, {"out": out, **settings, **changes}, "collect dmc")


def same_data(one: Path, two: Path) -> None:
    left, right = open_dataset(one), open_dataset(two)
    assert left.episodes == right.episodes
    for number in range(len(left.episodes)):
        steps = np.arange(left.episodes[number].length)
        for part in ("actions", "state", "rewards"):
            np.testing.assert_array_equal(getattr(left, part)(number), getattr(right, part)(number), part)
        np.testing.assert_array_equal(left.frames(number, steps), right.frames(number, steps))


def test_skills_are_spread_evenly_over_any_number_of_episodes() -> None:
    assert [skill(number) for number in range(6)] == [0, 0.5, 0.25, 0.75, 0.125, 0.625]
    for count in (10, 50, 200):
        gaps = np.diff(np.sort([skill(number) for number in range(count)]))
        assert gaps.max() <= 2 / count * 1.3
        assert gaps.min() > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": ("walker-wlak",)}, "did you mean 'walker-walk"),
        ({"episodes": -1}, "episodes = -1"),
        ({"episodes": 0, "val_episodes": 0}, "at least one a task"),
        ({"steps": 501}, "steps = 501"),
        ({"size": 8}, "size = 8"),
        ({"noise": float("nan")}, "noise = nan"),
        ({"workers": 0}, "workers = 0"),
        ({"seed": -1}, "seed = -1"),
    ],
)
def test_bad_values_are_told(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        collect_dmc(config(tmp_path / "sets", **changes))
    assert not (tmp_path / "sets").exists()


@pytest.mark.sim
def test_a_data_set_says_what_happened_and_how(tmp_path: Path) -> None:
    tasks = ("reacher-hard", "cheetah-run")
    folders = collect_dmc(config(tmp_path / "sets", tasks=tasks))
    assert folders == {task: tmp_path / "sets" / task for task in tasks}
    assert set(split_names(folders["reacher-hard"])) == {"train", "val"}
    for task, actions, state in (("reacher-hard", 2, 6), ("cheetah-run", 6, 17)):
        found = open_dataset(folders[task])
        told = json.loads((folders[task] / "meta" / "info.json").read_text())["counterpoint"]
        assert [each.length for each in found.episodes] == [8, 8, 8]
        assert {each.success for each in found.episodes} == {None}
        assert found.cameras == ("camera",)
        assert told["collect"]["action_repeat"] == 2
        assert told["collect"]["planner"] is None
        assert told["collect"]["rendering"]["camera"] in ("fixed", "side")
        assert set(told["collect"]["versions"]) == {"dm_control", "mujoco", "numpy"}
        simulation = DMCEnv(task, cameras=[])
        for number in range(3):
            done, seen, rewards = found.actions(number), found.state(number), found.rewards(number)
            assert done is not None
            assert seen is not None
            assert rewards is not None
            assert done.shape == (8, actions)
            assert seen.shape == (8, state)
            assert np.abs(done).max() <= 1
            simulation.reset(seed=told["episodes"]["seed"][number])
            np.testing.assert_array_equal(simulation.state(), seen[0])
            earned = [act(simulation, action).reward for action in done]
            np.testing.assert_allclose(rewards, earned, atol=1e-5)
            assert told["episodes"]["return"][number] == pytest.approx(sum(earned), abs=1e-3)


@pytest.mark.slow
@pytest.mark.sim
@pytest.mark.parametrize("kind", ["exploratory", "expert"])
def test_more_episodes_leave_the_first_as_they_are(tmp_path: Path, kind: str) -> None:
    few, more = (
        collect_dmc(config(tmp_path / str(count), kind=kind, episodes=count, val_episodes=0, **CALM))
        for count in (2, 3)
    )
    left, right = (open_dataset(each["reacher-hard"]) for each in (few, more))
    for number in range(2):
        np.testing.assert_array_equal(left.actions(number), right.actions(number))
    told = json.loads((few["reacher-hard"] / "meta" / "info.json").read_text())["counterpoint"]
    assert told["collect"]["planner"] == PLANNER.model_dump()


@pytest.mark.release
@pytest.mark.sim
def test_an_expert_s_episode_that_earns_too_little_gives_way_to_another_scene(tmp_path: Path) -> None:
    wanted: dict[str, Any] = {"tasks": ("walker-stand",), "kind": "expert", "val_episodes": 0, "planner": PLANNER}
    (every,) = collect_dmc(config(tmp_path / "every", episodes=6, least_return=0.0, **wanted)).values()
    first = told_of(every)["return"]
    least = float(np.median(first)) / 16  # of 8 actions of two control steps each
    (good,) = collect_dmc(config(tmp_path / "good", episodes=6, least_return=least, **wanted)).values()
    told = told_of(good)
    assert min(told["return"]) >= 16 * least
    replaced = [earned < 16 * least for earned in first]
    assert [dropped > 0 for dropped in told["dropped"]] == replaced
    assert [a != b for a, b in zip(first, told["return"], strict=True)] == replaced
    assert 0 < sum(replaced) < 6
    with pytest.raises(BadInputError, match=r"least_return.*20 scenes of walker-stand in a row"):
        collect_dmc(config(tmp_path / "none", episodes=1, least_return=1.0, **wanted))


def told_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "meta" / "info.json").read_text())["counterpoint"]["episodes"]
    return found


@pytest.mark.sim
def test_an_exploring_actor_grows_calmer_with_its_skill() -> None:
    task = DMCEnv("reacher-hard", cameras=[])
    spread = []
    for number in (0, 31):  # skills 0 and 31/32
        actor = DMCActor(task, "exploratory", number, planner=PLANNER)
        task.reset(seed=0)
        actor.reset(0)
        quiet = DMCActor(task, "exploratory", number, planner=PLANNER, noise_first=0, noise_last=0)
        quiet.reset(0)
        spread.append(np.mean([np.abs(actor.act() - quiet.act()).mean() for _ in range(12)]))
    assert spread[1] < 0.5 * spread[0]


@pytest.mark.sim
def test_asking_again_changes_nothing_and_asking_otherwise_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "sets"
    (folder,) = collect_dmc(config(out)).values()
    before = (folder / "meta" / "info.json").stat().st_mtime_ns
    collect_dmc(config(out, workers=2))
    assert (folder / "meta" / "info.json").stat().st_mtime_ns == before
    with pytest.raises(BadInputError, match=r"config\.steps = 8"):
        collect_dmc(config(out, steps=9))
    (tmp_path / "other" / "reacher-hard").mkdir(parents=True)
    with pytest.raises(BadInputError, match="no data set of counterpoint collect"):
        collect_dmc(config(tmp_path / "other"))


@pytest.mark.release
@pytest.mark.slow
@pytest.mark.sim
def test_a_killed_collection_goes_on_and_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    """Each call in a process of its own: nothing that other tests left in this one has a say in the pixels."""
    wanted = {"kind": "exploratory", "planner": PLANNER, "episodes": 6, "steps": 12}
    whole, out = tmp_path / "whole", tmp_path / "killed"
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "unfinished.py").write_text(UNFINISHED + PROGRAM)

    def command(folder: Path, workers: int, script: str = "program.py") -> list[str]:
        asked = config(folder, workers=workers, **wanted)
        return [sys.executable, str(tmp_path / script), asked.model_dump_json()]

    subprocess.run(command(whole, 1), check=True)
    staged = out / "reacher-hard.partial"
    kill(subprocess.Popen(command(out, 2, "unfinished.py")), staged)
    assert not (out / "reacher-hard").exists()
    kept = {path: path.stat().st_mtime_ns for path in staged.glob("0*/episode.json")}
    assert len(kept) >= 2
    subprocess.run(command(out, 1), check=True)
    same_data(whole / "reacher-hard", out / "reacher-hard")
    assert not staged.exists()
