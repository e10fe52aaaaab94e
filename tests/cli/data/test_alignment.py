from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from counterpoint.cli.data.alignment import Alignment, alignment_of, measure
from counterpoint.cli.data.doctor import doctor, examine
from counterpoint.cli.data.info import info
from counterpoint.data.episode import Array, Episode
from counterpoint.data.store import MemoryStore
from counterpoint.formats import open_dataset
from counterpoint.formats.minari.writer import write_minari
from tests.formats.hdf5.made import write_libero, write_robomimic
from tests.formats.made import smooth_frames
from tests.formats.minari.made import goal_episodes


def _moved(seed: int, steps: int = 60, noise: float = 0.1) -> tuple[Array, Array]:
    """Positions [T, 3] of a point that action t [T, 3] moves from position t to position t + 1."""
    rng = np.random.default_rng(seed)
    actions = rng.uniform(-1, 1, (steps, 3))
    state = np.cumsum(np.concatenate([np.zeros((1, 3)), actions[:-1]]), 0) + noise * rng.normal(size=(steps, 3))
    return state, actions


def _measured(shift: int, **kwargs: float) -> Alignment:
    episodes = (_moved(seed, **kwargs) for seed in range(4))  # type: ignore[arg-type]
    return measure((state, np.roll(actions, shift, 0)) for state, actions in episodes)


def test_the_lag_that_explains_the_changes() -> None:
    sound = _measured(0)
    assert (sound.lag, sound.steps) == (0, 4 * 58)
    assert sound.scores[0] > 0.9
    assert max(sound.scores[-1], sound.scores[1]) < 0.1
    assert list(sound.finding("data")) == []
    for shift in (-1, 1):  # rolled by 1, action t is found in row t + 1
        shifted = _measured(shift)
        assert shifted.lag == shift
        (finding,) = shifted.finding("data")
        assert "0.00 for the action of the same step" in finding.found
        assert f"action t {'+' if shift > 0 else '-'} 1" in finding.hint


def test_what_the_data_cannot_tell() -> None:
    rng = np.random.default_rng(0)
    state, actions = _moved(0)
    cases = {
        "no states with actions": [],
        "states or actions never change": [(np.ones_like(state), actions)],
        "the state does not answer": [(rng.normal(size=state.shape), actions)],
        "too few for actions": [(state[:15], actions[:15])],
        "robots of several kinds": [(state, actions), (state[:, :2], actions)],
    }
    for reason, episodes in cases.items():
        found = measure(episodes)
        assert reason in str(found)
        assert list(found.finding("data")) == []


def test_no_alarm_for_a_controller_that_follows_the_state() -> None:
    """Its actions change slowly and depend on the state, so that neighbouring actions explain the changes too."""
    rng = np.random.default_rng(0)
    episodes = []
    for _ in range(10):
        goal, place, rows = rng.uniform(-1, 1, 3), rng.uniform(-1, 1, 3), []
        for _ in range(40):
            action = np.clip(goal - place, -0.3, 0.3) + 0.05 * rng.normal(size=3)
            rows.append((place, action))
            place = place + 0.2 * action
        episodes.append((np.array([row[0] for row in rows]), np.array([row[1] for row in rows])))
    assert measure(episodes).lag == 0


def _write_acted_first(path: Path) -> Path:
    """LIBERO's file of a point that its action moves: row t shows the state after action t."""
    write_libero(path, (40, 40))
    with h5py.File(path, "a") as file:
        for demo in file["data"].values():
            demo["actions"][:] = np.random.default_rng(0).uniform(-1, 1, (40, 7))
            demo["obs/joint_states"][:] = np.cumsum(demo["actions"], 0)
    return path


def test_libero_is_aligned_after_its_shift_and_told_without_it(tmp_path: Path) -> None:
    path = _write_acted_first(tmp_path / "move_demo.hdf5")
    assert alignment_of(open_dataset(path)).lag == 0
    assert examine(path) == []
    wrong = "libero_regenerated"
    assert alignment_of(open_dataset(path, dialect=wrong)).lag == 1
    (finding,) = examine(path, wrong)
    assert "the action one step after" in finding.found
    assert "name another --dialect" in finding.hint


def test_doctor_and_info_measure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_robomimic(tmp_path / "image.hdf5")
    info(path)
    assert "alignment" not in capsys.readouterr().out
    info(path, check_alignment=True)
    assert "cannot tell" in capsys.readouterr().out
    goals = tmp_path / "goals"
    write_minari(goals, goal_episodes(), env_id="PointMaze_UMaze-v3", description="Made.")
    info(goals, check_alignment=True)
    assert "alignment" in capsys.readouterr().out
    assert doctor(goals) == 0


def test_a_store_in_memory() -> None:
    frames = {"camera": smooth_frames(60, 8, 8, seed=0)}
    episodes = []
    for seed in range(3):
        state, actions = (values.astype(np.float32) for values in _moved(seed))
        actions = np.roll(actions, 1, 0)
        episodes.append(Episode(frames, "move", timestamps=np.arange(60) / 10, actions=actions, state=state))
    assert alignment_of(MemoryStore(episodes)).lag == 1
