from __future__ import annotations

import builtins
import json
import logging
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from counterpoint.cli.data.doctor import doctor
from counterpoint.cli.data.info import info
from counterpoint.data.episode import Episode
from counterpoint.data.replay import ReplayBuffer
from counterpoint.data.spec import TRANSITION_READS, Spec
from counterpoint.data.store import MemoryStore
from counterpoint.errors import BadInputError, MissingExtraError
from counterpoint.formats.minari.files import is_minari
from counterpoint.formats.minari.reader import (
    describe_minari,
    episode_success,
    examine_minari,
    load_minari,
    read_minari,
    replay_from_store,
)
from counterpoint.formats.minari.writer import write_minari
from tests.data.sampling import sampler
from tests.formats.minari.made import goal_episodes, raw_dataset, raw_episode

minari = pytest.importorskip("minari")
pytest.importorskip("h5py")
spaces = pytest.importorskip("gymnasium.spaces")

SPEC = Spec.transitions(TRANSITION_READS)
ABOUT: dict[str, Any] = {"env_id": "PointMaze_UMaze-v3", "description": "Made by a test."}
VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float64)
UNIT = spaces.Box(-1, 1, (2,), np.float32)


def goal_space(width: int = 3) -> Any:
    pair = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    vector = spaces.Box(-np.inf, np.inf, (width,), np.float64)
    return spaces.Dict({"observation": vector, "achieved_goal": pair, "desired_goal": pair})


def goal_observations(T: int, *, inside: bool) -> dict[str, np.ndarray[Any, Any]]:
    states = np.random.default_rng(T).normal(size=(T + 1, 3))
    achieved = states[:, 1:] if inside else np.random.default_rng(T + 1).normal(size=(T + 1, 2))
    return {"observation": states, "achieved_goal": achieved, "desired_goal": np.ones((T + 1, 2))}


def drawn(buffer: ReplayBuffer, count: int = 400) -> dict[str, np.ndarray[Any, Any]]:
    return {key: value.numpy() for key, value in sampler(buffer, SPEC, batch_size=count)[0].items()}


@pytest.mark.parametrize("data_format", ["hdf5", "arrow", "parquet"])
def test_goal_environments_in_every_format(tmp_path: Path, data_format: str) -> None:
    pytest.importorskip("pyarrow")
    actions = np.zeros((5, 2), np.float32)
    episodes = [raw_episode(goal_observations(5, inside=True), actions) for _ in range(2)]
    out = raw_dataset(tmp_path / "set", goal_space(), UNIT, episodes, data_format=data_format)
    buffer = load_minari(out)
    assert (buffer.spaces.observation, buffer.spaces.goal, buffer.spaces.action) == ((3,), (2,), 2)
    assert (buffer.transitions, len(buffer)) == (10, 2)
    batch = drawn(buffer)
    np.testing.assert_array_equal(batch["next_goal"], batch["next_observation"][:, 1:])
    assert (batch["goal"] == 1).all()


def test_coordinates_missing_from_the_observation_are_put_in_front(tmp_path: Path) -> None:
    observations = goal_observations(5, inside=False)
    out = raw_dataset(tmp_path / "ant", goal_space(), UNIT, [raw_episode(observations, np.zeros((5, 2)))])
    buffer = load_minari(out)
    assert buffer.spaces.observation == (5,)
    batch = drawn(buffer)
    np.testing.assert_array_equal(batch["next_goal"], batch["next_observation"][:, :2])


def test_whole_states_as_goals(tmp_path: Path) -> None:
    states = np.random.default_rng(0).normal(size=(6, 3))
    flat = raw_dataset(tmp_path / "flat", VECTOR, UNIT, [raw_episode(states, np.zeros((5, 2)))])
    with pytest.raises(BadInputError, match="without goals"):
        load_minari(flat)
    buffer = load_minari(flat, goals="state")
    assert buffer.spaces.goal == buffer.spaces.observation == (3,)
    batch = drawn(buffer)
    np.testing.assert_array_equal(batch["next_goal"], batch["next_observation"])
    np.testing.assert_allclose(batch["goal"], np.tile(states[-1], (400, 1)), rtol=1e-6)
    assert load_minari(write_minari(tmp_path / "maze", goal_episodes(), **ABOUT), goals="state").spaces.goal == (4,)


def test_images_beside_a_state_are_refused_by_name(tmp_path: Path) -> None:
    seen = spaces.Dict({"rgb": spaces.Box(0, 255, (4, 4, 3), np.uint8), "state": VECTOR})
    observations = {"rgb": np.zeros((6, 4, 4, 3), np.uint8), "state": np.zeros((6, 3))}
    out = raw_dataset(tmp_path / "both", seen, UNIT, [raw_episode(observations, np.zeros((5, 2)))])
    with pytest.raises(BadInputError, match=r"of which rgb are images.*LeRobotWriter"):
        load_minari(out)


def test_actions_are_scaled_by_the_bounds_of_their_space(tmp_path: Path) -> None:
    box = spaces.Box(np.array([0, -2], np.float32), np.array([4, 2], np.float32))
    actions = np.array([[0, -2], [2, 0], [4, 2]], np.float32)
    out = raw_dataset(tmp_path / "set", goal_space(), box, [raw_episode(goal_observations(3, inside=True), actions)])
    buffer = load_minari(out)
    assert {tuple(action) for action in drawn(buffer)["action"].tolist()} == {(-1, -1), (0, 0), (1, 1)}
    assert buffer.action_bounds is not None
    np.testing.assert_array_equal(buffer.action_bounds, [[0, -2], [4, 2]])


def test_discrete_actions_count_from_zero(tmp_path: Path) -> None:
    episode = raw_episode(goal_observations(3, inside=True), np.array([5, 6, 7]))
    buffer = load_minari(raw_dataset(tmp_path / "set", goal_space(), spaces.Discrete(3, start=5), [episode]))
    assert buffer.spaces.discrete
    assert set(drawn(buffer)["action"].tolist()) == {0, 1, 2}


def test_infos_of_every_state_or_of_every_step_tell_success(tmp_path: Path) -> None:
    observations, actions = goal_observations(3, inside=True), np.zeros((3, 2), np.float32)
    infos = [
        {"success": np.array([True, False, False, False])},  # the reset's own counts for nothing
        {"is_success": np.array([False, True, False])},
    ]
    episodes = [raw_episode(observations, actions, infos=info) for info in infos]
    out = raw_dataset(tmp_path / "set", goal_space(), UNIT, episodes)
    assert episode_success(out).tolist() == [False, True]


def test_a_data_set_without_success_says_so_when_asked(tmp_path: Path) -> None:
    out = write_minari(tmp_path / "maze", goal_episodes(success=False), **ABOUT)
    assert len(load_minari(out)) == 3
    assert all(episode.success is None for episode in read_minari(out))
    with pytest.raises(BadInputError, match=r"episode 0: found no infos; expected 'success'"):
        episode_success(out)


@pytest.mark.parametrize("data_format", ["hdf5", "parquet"])
def test_an_episode_with_nan_is_named(tmp_path: Path, data_format: str) -> None:
    good, bad = (raw_episode(goal_observations(4, inside=True), np.zeros((4, 2), np.float32)) for _ in range(2))
    bad["observations"]["observation"][2, 1] = np.nan
    out = raw_dataset(tmp_path / "set", goal_space(), UNIT, [good, bad], data_format=data_format)
    with pytest.raises(BadInputError, match=r"episode 1, observations: found a value that is not finite at step 2"):
        load_minari(out)


def test_an_episode_of_one_state_is_named(tmp_path: Path) -> None:
    import h5py

    episode = raw_episode(goal_observations(4, inside=True), np.zeros((4, 2), np.float32))
    out = raw_dataset(tmp_path / "set", goal_space(), UNIT, [episode, episode])
    with h5py.File(out / "data" / "main_data.hdf5", "r+") as file:  # minari itself would not write it
        second = file["episode_1"]
        for name in ("actions", "rewards", "terminations", "truncations"):
            second[name].resize(0, axis=0)
        for name in second["observations"]:
            second["observations"][name].resize(1, axis=0)
        second.attrs["total_steps"] = 0
    with pytest.raises(BadInputError, match=r"episode 1: found 1 states; expected at least 2"):
        load_minari(out)


def test_other_spaces_are_refused(tmp_path: Path) -> None:
    unbounded = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    episode = raw_episode(goal_observations(3, inside=True), np.zeros((3, 2), np.float32))
    with pytest.raises(BadInputError, match="bounded vector"):
        load_minari(raw_dataset(tmp_path / "unbounded", goal_space(), unbounded, [episode]))
    keyed = raw_episode({"position": np.zeros((4, 3))}, np.zeros((3, 2), np.float32))
    with pytest.raises(BadInputError, match=r"keys \['position'\]"):
        load_minari(raw_dataset(tmp_path / "keyed", spaces.Dict({"position": VECTOR}), UNIT, [keyed]))
    with pytest.raises(BadInputError, match="no episode"):
        load_minari(raw_dataset(tmp_path / "none", goal_space(), UNIT, []))


def test_a_damaged_data_set_is_refused(tmp_path: Path) -> None:
    out = write_minari(tmp_path / "maze", goal_episodes(), **ABOUT)
    metadata, rows = out / "data" / "metadata.json", out / "data" / "main_data.hdf5"
    about = json.loads(metadata.read_text())
    for change in ({"total_episodes": 4}, {"minari_version": "99.0"}, {"data_format": "of tomorrow"}):
        metadata.write_text(json.dumps(about | change))
        with pytest.raises(BadInputError, match="damaged content"):
            load_minari(out)
    metadata.write_text(json.dumps(about))
    for content in (rows.read_bytes()[:5000], b"not hdf5"):
        rows.write_bytes(content)
        with pytest.raises(BadInputError, match="no HDF5, or a damaged file"):
            load_minari(out)


def test_an_id_is_looked_for_below_the_local_root_and_then_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "root"))
    made = write_minari(tmp_path / "made", goal_episodes(), dataset_id="D4RL/maze/made-v1", **ABOUT)

    def download(name: str) -> None:
        shutil.copytree(made, tmp_path / "root" / name)

    monkeypatch.setattr(minari, "download_dataset", download)
    assert len(load_minari("D4RL/maze/made-v1")) == 3
    monkeypatch.delattr(minari, "download_dataset")
    assert len(load_minari("D4RL/maze/made-v1")) == 3


def test_without_a_network_the_message_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def download(name: str) -> None:
        logging.getLogger("huggingface_hub.utils._http").warning("Retrying in 8s [Retry 5/5].")
        raise ConnectionError("no route to host")

    monkeypatch.setattr(logging.getLogger("huggingface_hub"), "handlers", [caplog.handler])
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    monkeypatch.setattr(minari, "download_dataset", download)
    with pytest.raises(BadInputError, match=r"no route to host.*minari download D4RL/antmaze/umaze-v1") as caught:
        load_minari("D4RL/antmaze/umaze-v1")
    assert str(tmp_path) in str(caught.value)
    assert not caplog.records


def test_what_is_no_data_set_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"without data/metadata.json"):
        load_minari(tmp_path)
    with pytest.raises(BadInputError, match="nothing there"):
        load_minari(tmp_path / "missing")
    assert not is_minari(tmp_path)


def test_without_minari_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any, **more: Any) -> ModuleType:
        if name.partition(".")[0] == "minari":
            raise ModuleNotFoundError(name=name)
        return real(name, *rest, **more)

    for name in [name for name in sys.modules if name.partition(".")[0] == "minari"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingExtraError, match=r"\[minari\]"):
        load_minari("D4RL/antmaze/umaze-v1")


def robot_store(*, actions: bool = True) -> MemoryStore:
    rng = np.random.default_rng(0)
    episodes = [
        Episode(
            frames={},
            instruction="",
            timestamps=np.arange(T) / 10,
            actions=(10 * rng.normal(size=(T, 2)) * [1, 0]).astype(np.float32) if actions else None,
            state=rng.normal(size=(T, 3)).astype(np.float32),
        )
        for T in (2, 5, 9)
    ]
    return MemoryStore(episodes)


def test_a_robot_data_set_becomes_a_replay_buffer() -> None:
    store = robot_store()
    buffer = replay_from_store(store)
    assert (len(buffer), buffer.transitions) == (3, 1 + 4 + 8)
    assert buffer.spaces.goal == buffer.spaces.observation == (3,)
    batch = drawn(buffer)
    np.testing.assert_array_equal(batch["next_goal"], batch["next_observation"])
    assert np.abs(batch["action"]).max() <= 1
    assert not batch["action"][:, 1].any()  # a dimension that never moves
    assert buffer.action_bounds is not None
    states = [store.state(index) for index in range(3)]
    actions = [store.actions(index) for index in range(3)]
    state, action = (
        np.concatenate([s for s in states if s is not None]),
        np.concatenate([a for a in actions if a is not None]),
    )
    low, high = buffer.action_bounds
    for seen, done in zip(batch["observation"], batch["action"], strict=True):
        place = int(np.flatnonzero((state == seen).all(axis=1))[0])
        np.testing.assert_allclose((done[0] + 1) / 2 * (high - low)[0] + low[0], action[place, 0], rtol=1e-4)


def test_a_store_without_actions_is_refused() -> None:
    with pytest.raises(BadInputError, match="without actions"):
        replay_from_store(robot_store(actions=False))


pytest.importorskip("minari")
pytest.importorskip("h5py")


def _written(out: Path, *, success: bool = True) -> Path:
    return write_minari(
        out, goal_episodes((4, 2, 7), success=success), env_id="PointMaze_UMaze-v3", description="Made by a test."
    )


def test_info_and_doctor_know_minari(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _written(tmp_path / "maze")
    info(path)
    told = capsys.readouterr().out
    for fact in ("PointMaze_UMaze-v3", "3, of 2 to 7 transitions", "13", "2 dimensions", "67% of 3 episodes"):
        assert fact in told
    assert doctor(path) == 0
    assert "nothing wrong" in " ".join(capsys.readouterr().out.split())


def test_success_that_nobody_recorded_is_said(tmp_path: Path) -> None:
    assert describe_minari(_written(tmp_path / "maze", success=False))["success"] == "not recorded"


def test_a_damaged_file_is_a_finding(tmp_path: Path) -> None:
    path = _written(tmp_path / "maze")
    file = path / "data" / "main_data.hdf5"
    file.write_bytes(file.read_bytes()[:500])
    assert len(examine_minari(path)) == 1
    assert doctor(path) == 2


def test_flat_observations_have_whole_states_as_goals(tmp_path: Path) -> None:
    spaces = pytest.importorskip("gymnasium").spaces
    seen, acted = spaces.Box(-1, 1, (4,), np.float64), spaces.Box(-1, 1, (2,), np.float32)
    episode = raw_episode(np.zeros((6, 4)), np.zeros((5, 2), np.float32))
    path = raw_dataset(tmp_path / "flat", seen, acted, [episode])
    assert describe_minari(path)["goals"] == "4 (whole states)"
    assert examine_minari(path) == []
    assert doctor(path) == 0
    assert describe_minari(_written(tmp_path / "maze"))["goals"] == "2"


def test_flat_observations_do_not_hide_what_else_is_wrong(tmp_path: Path) -> None:
    spaces = pytest.importorskip("gymnasium").spaces
    seen, acted = spaces.Box(-1, 1, (4,), np.float64), spaces.Box(-np.inf, np.inf, (2,), np.float32)
    episode = raw_episode(np.zeros((6, 4)), np.zeros((5, 2), np.float32))
    (wrong,) = examine_minari(raw_dataset(tmp_path / "flat", seen, acted, [episode]))
    assert "bounded" in str(wrong)


def test_as_many_observations_as_actions_are_a_finding(tmp_path: Path) -> None:
    spaces = pytest.importorskip("gymnasium").spaces
    seen, acted = spaces.Box(-1, 1, (4,), np.float64), spaces.Box(-1, 1, (2,), np.float32)
    episode = raw_episode(np.zeros((5, 4)), np.zeros((5, 2), np.float32))
    (wrong,) = examine_minari(raw_dataset(tmp_path / "flat", seen, acted, [episode]))
    assert "episode 0" in wrong.where
    assert (wrong.found, wrong.expected) == ("5 for 5 actions", "6")
