from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from counterpoint.config import validate
from counterpoint.data.store import EpisodeStore
from counterpoint.envs.collect import episode_seed
from counterpoint.envs.metaworld.collect import MetaWorldCollectConfig, collect_metaworld
from counterpoint.envs.metaworld.env import MetaWorldEnv
from counterpoint.envs.recording import NoisyExpert, Recording, record
from counterpoint.errors import BadInputError
from counterpoint.formats import open_dataset
from tests.envs.killed import UNFINISHED, kill

QUICK = ("handle-press", "coffee-button")


def config(out: Path, **changes: Any) -> MetaWorldCollectConfig:
    settings: dict[str, Any] = {"tasks": QUICK, "episodes": 2, "val_episodes": 1, "size": 32, "workers": 1}
    return validate(MetaWorldCollectConfig, {"out": out, **settings, **changes}, "collect metaworld")


PROGRAM = """
import sys
from pathlib import Path
from counterpoint.envs.metaworld.collect import MetaWorldCollectConfig, collect_metaworld
if __name__ == "__main__":
    collect_metaworld(MetaWorldCollectConfig.model_validate_json(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def collected(simulator: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an undisturbed process of its own records: nothing that other tests left in this one has a say."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "program.py").write_text(PROGRAM)
    wanted = config(folder / "set" / "set")
    subprocess.run([sys.executable, str(folder / "program.py"), wanted.model_dump_json()], check=True)
    return wanted.out


def same_data(one: Path, two: Path) -> None:
    left, right = open_dataset(one), open_dataset(two)
    assert left.episodes == right.episodes
    for number in range(len(left.episodes)):
        np.testing.assert_array_equal(left.actions(number), right.actions(number), f"actions of {number}")
        np.testing.assert_array_equal(left.state(number), right.state(number), f"state of {number}")
        np.testing.assert_array_equal(left.rewards(number), right.rewards(number), f"rewards of {number}")
    for table in sorted((one / "data").rglob("*.parquet")):
        assert table.read_bytes() == (two / table.relative_to(one)).read_bytes()
    for number, episode in enumerate(left.episodes):  # last: pixels follow from states
        steps = np.arange(episode.length)
        pixels = left.frames(number, steps), right.frames(number, steps)
        np.testing.assert_array_equal(*pixels, f"pixels of {number}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": ("door-opn",)}, "did you mean 'door-open-v3"),
        ({"cameras": ("side",)}, "'side'"),
        ({"cameras": ()}, r"cameras = \(\)"),
        ({"size": 15}, "size = 15.*16"),
        ({"episodes": -1}, "episodes = -1"),
        ({"episodes": 0, "val_episodes": 0}, "at least one"),
        ({"noise": float("nan")}, "noise = nan"),
        ({"stride": 3}, "divisor of 80"),
        ({"stride": 0}, "divisor of 80"),
        ({"max_steps": 501}, "max_steps = 501.*500"),
        ({"workers": 0}, "workers = 0"),
        ({"seed": -1}, "seed = -1"),
    ],
)
def test_bad_configurations(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        collect_metaworld(config(tmp_path / "set", **changes))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.sim
@pytest.mark.usefixtures("simulator")
def test_what_is_written(collected: Path) -> None:
    store: EpisodeStore = open_dataset(collected)
    assert [episode.instruction for episode in store.episodes] == [
        *["press the handle down"] * 2,
        *["start the coffee machine"] * 2,
        "press the handle down",
        "start the coffee machine",
    ]
    assert all(episode.success and episode.fps == 80 for episode in store.episodes)
    assert all(15 < episode.length < 60 for episode in store.episodes)
    assert store.cameras == ("corner2",)
    actions, state = store.actions(0), store.state(0)
    assert actions is not None
    assert state is not None
    assert actions.shape == state.shape == (store.episodes[0].length, 4)
    assert np.abs(actions).max() <= 1
    rewards = store.rewards(0)
    assert rewards is not None
    assert rewards.shape == (store.episodes[0].length,)
    assert 0 <= rewards.min() < rewards.max() <= 10
    frames = store.frames(0, np.array([0, 10]))
    assert frames.shape == (2, 32, 32, 3)
    assert frames.std() > 20

    info = json.loads((collected / "meta" / "info.json").read_text())
    assert info["splits"] == {"train": "0:4", "val": "4:6"}
    told = info["counterpoint"]
    assert "scene" not in told["collect"]["config"]  # recordings of earlier versions do not name it
    assert set(told["collect"]["versions"]) == {"metaworld", "mujoco", "gymnasium", "numpy"}
    assert told["collect"]["rendering"]["shadows"] is False
    assert len(told["collect"]["rendering"]["canary"]["sha256"]) == 64
    assert told["episodes"]["seed"][0] == episode_seed(0, "handle-press-v3", "train", 0)
    assert told["episodes"]["success"] == [True] * 6
    assert [path.name for path in collected.parent.iterdir()] == ["set"]


@pytest.mark.slow
@pytest.mark.sim
@pytest.mark.usefixtures("simulator")
def test_asking_again_changes_nothing_and_asking_otherwise_is_an_error(collected: Path) -> None:
    before = (collected / "meta" / "info.json").stat().st_mtime_ns
    assert collect_metaworld(config(collected, workers=2)) == collected
    assert (collected / "meta" / "info.json").stat().st_mtime_ns == before
    with pytest.raises(BadInputError, match=r"config\.noise = 0\.0.*config\.noise = 0\.5"):
        collect_metaworld(config(collected, noise=0.5))


@pytest.mark.release
@pytest.mark.sim
@pytest.mark.usefixtures("simulator")
def test_a_killed_collection_goes_on_with_two_workers_and_ends_as_an_undisturbed_one_with_one(
    collected: Path, tmp_path: Path
) -> None:
    out, script = tmp_path / "set", tmp_path / "program.py"
    script.write_text(UNFINISHED + PROGRAM)
    wanted = config(out, workers=2)
    staged = out.with_name("set.partial")
    kill(subprocess.Popen([sys.executable, str(script), wanted.model_dump_json()]), staged)
    assert not out.exists()
    kept = {path: path.stat().st_mtime_ns for path in staged.glob("0*/corner2.mp4")}
    assert 2 <= len(kept) < 6
    with pytest.raises(BadInputError, match=r"config\.size = 32.*config\.size = 48"):
        collect_metaworld(config(out, size=48))
    assert {path: path.stat().st_mtime_ns for path in kept} == kept

    same_data(collected, collect_metaworld(wanted))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["program.py", "set"]


@pytest.fixture(scope="module")
def handle(simulator: None) -> MetaWorldEnv:
    return MetaWorldEnv("handle-press", cameras=("corner2", "topview"), size=16, steps=500)


def recorded(env: MetaWorldEnv, noise: float, **settings: Any) -> Recording:
    return record(env, NoisyExpert(env.expert, noise), 7, **settings)


@pytest.mark.sim
@pytest.mark.usefixtures("simulator")
def test_recorded_actions_are_those_carried_out(handle: MetaWorldEnv) -> None:
    noisy = recorded(handle, 0.4, stride=1, after_success=5, steps=200)
    handle.reset(seed=7)
    solved_at = None
    for step, (action, state) in enumerate(zip(noisy.actions, noisy.state, strict=True)):
        np.testing.assert_array_equal(handle.state(), state)
        _, reward, _, _, info = handle.step(action)
        assert noisy.rewards[step] == np.float32(reward)
        if info["is_success"] and solved_at is None:
            solved_at = step
    assert noisy.success
    assert solved_at is not None
    assert len(noisy.actions) == solved_at + 1 + 5
    clean = recorded(handle, 0.0, stride=1, after_success=5, steps=200)
    np.testing.assert_array_equal(clean.state[0], noisy.state[0])
    assert np.abs(noisy.actions).max() <= 1
    assert not np.array_equal(clean.actions[0], noisy.actions[0])
    intended = recorded(handle, 0.4, stride=1, after_success=5, steps=200, intended=True)
    np.testing.assert_array_equal(intended.state, noisy.state)  # the noise was carried out
    np.testing.assert_array_equal(intended.actions[0], clean.actions[0])
    assert not np.array_equal(intended.actions, noisy.actions)


@pytest.mark.sim
@pytest.mark.usefixtures("simulator")
def test_stride_keeps_every_kth_frame(handle: MetaWorldEnv) -> None:
    every = recorded(handle, 0.0, stride=1, after_success=20, steps=24)
    third = recorded(handle, 0.0, stride=4, after_success=20, steps=23)
    assert len(third.actions) == 6
    assert third.frames["topview"].shape == (6, 16, 16, 3)
    np.testing.assert_array_equal(third.state, every.state[::4])
    np.testing.assert_array_equal(third.frames["corner2"], every.frames["corner2"][::4])
    np.testing.assert_allclose(third.actions[:5], every.actions[:20].reshape(5, 4, 4).mean(axis=1), atol=1e-6)
    np.testing.assert_allclose(third.actions[5], every.actions[20:23].mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(third.rewards[:5], every.rewards[:20].reshape(5, 4).sum(axis=1), rtol=1e-6)


@pytest.mark.sim
@pytest.mark.usefixtures("simulator")
def test_an_unsolved_episode_ends_and_says_so(handle: MetaWorldEnv) -> None:
    short = recorded(handle, 0.0, stride=1, after_success=5, steps=4)
    assert len(short.actions) == 4
    assert not short.success
