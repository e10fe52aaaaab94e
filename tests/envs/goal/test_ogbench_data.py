from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from counterpoint.cli import main
from counterpoint.data.episode import Spaces
from counterpoint.envs.goal.env import EnvConfig, make_goal_env, spaces_of
from counterpoint.envs.goal.ogbench_data import PROTOCOLS, OGBenchCollect, collect_ogbench, cube_in_sight
from counterpoint.envs.goal.ogbench_oracles import Walker, load_walker
from counterpoint.errors import BadInputError
from counterpoint.formats import open_dataset

pytest.importorskip("ogbench")
pytestmark = pytest.mark.sim


def test_the_protocols_are_ogbench_s() -> None:
    assert len(PROTOCOLS) == 40
    said = {name: (one.episodes, one.steps, one.noise, one.random) for name, one in PROTOCOLS.items()}
    assert said["pointmaze-giant-navigate"] == (500, 2001, 0.5, 0.0)
    assert said["antmaze-giant-navigate"] == (500, 2001, 0.2, 0.0)
    assert said["antmaze-medium-stitch"] == (5000, 201, 0.2, 0.0)
    assert said["antmaze-teleport-explore"] == (10_000, 501, 1.0, 0.0)
    assert "antmaze-giant-explore" not in said
    assert said["pointmaze-large-stitch"] == (5000, 201, 0.5, 0.0)
    assert said["cube-triple-play"] == (3000, 1001, 0.1, 0.0)
    assert said["puzzle-4x6-noisy"] == (5000, 1001, 0.1, 0.2)
    assert said["powderworld-hard-play"] == (1000, 1001, 0.0, 0.5)
    config = OGBenchCollect(out=Path("out"), dataset="scene-noisy", episodes=30)
    assert (config.episodes, config.val_episodes, config.noise, config.steps) == (30, 3, 0.1, 1001)


def test_a_cube_that_leaves_the_view_is_seen() -> None:
    places = np.zeros((4, 20))
    places[:, 14:17] = [0.4, 0.0, 0.02]
    assert cube_in_sight(places)
    for y, z, seen in ((0.3, 0.02, False), (-0.31, 0.02, False), (-0.31, 0.07, True)):
        moved = places.copy()
        moved[2, 15:17] = y, z
        assert cube_in_sight(moved) == seen


def test_a_recording_is_ogbench_s_file_and_does_not_depend_on_workers(tmp_path: Path) -> None:
    settings = {"dataset": "pointmaze-medium-stitch", "episodes": 3, "val_episodes": 1, "steps": 21}
    for name, workers in (("one", 1), ("two", 2)):
        collect_ogbench(OGBenchCollect(out=tmp_path / name, workers=workers, **settings))
    file = "pointmaze-medium-stitch-v0.npz"
    with np.load(tmp_path / "one" / file) as first, np.load(tmp_path / "two" / file) as second:
        assert set(first) == {"observations", "actions", "terminals", "qpos", "qvel"}
        assert first["observations"].dtype == first["actions"].dtype == np.float32
        assert np.flatnonzero(first["terminals"]).tolist() == [20, 41, 62]
        for name in first:
            np.testing.assert_array_equal(first[name], second[name])
    store = open_dataset(tmp_path / "one" / file, split="train")
    assert [info.length for info in store.episodes] == [21, 21, 21]
    assert len(open_dataset(tmp_path / "one" / file, split="val").episodes) == 1
    about = json.loads((tmp_path / "one" / "collect.json").read_text())
    assert about["collect"]["versions"]["ogbench"]


def test_powderworld_is_recorded_and_an_agent_learns_and_acts_in_it(tmp_path: Path) -> None:
    file = tmp_path / "data" / "powderworld-easy-play-v0.npz"
    collect_ogbench(OGBenchCollect(out=file.parent, dataset="powderworld-easy-play", episodes=2, steps=31))
    with np.load(file) as arrays:
        assert (arrays["observations"].dtype, arrays["observations"].shape) == (np.uint8, (62, 32, 32, 6))
        assert (arrays["actions"].dtype, arrays["actions"].min(), arrays["actions"].max()) == (np.int32, 0, 7)
    with pytest.raises(BadInputError, match="the commands for data read states"):
        open_dataset(file)
    env = EnvConfig(name="ogbench/powderworld-easy-play")
    assert spaces_of(make_goal_env(env)) == Spaces((32, 32, 6), (32, 32, 6), 8, discrete=True)
    settings = "--agent.hidden=16 --train.steps=2 --train.batch_size=4 --train.trackers --train.eval_every=2 "
    settings += "--data.eval_envs=1 --data.eval_episodes=2 --env.max_episode_steps=9"
    run = ["--data", str(file), "--out", str(tmp_path / "run"), "--env", "ogbench/powderworld-easy-play"]
    main(["train", "gcbc-antmaze", *run, *settings.split()])
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["steps"], result["simulator_errors"]) == (2, 0)


def test_discrete_actions_take_no_noise(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="takes no --noise: leave it out"):
        OGBenchCollect(out=tmp_path, dataset="powderworld-hard-play", noise=0.1)


def test_an_unknown_data_set_is_refused_with_a_suggestion(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValidationError, match=r"did you mean .pointmaze-medium-navigate."):
        OGBenchCollect(out=tmp_path, dataset="pointmaze-medium-navigat")
    with pytest.raises(SystemExit) as ended:
        main(["collect", "ogbench", "--dataset", "cube-single", "--out", str(tmp_path / "out")])
    assert ended.value.code == 2
    assert "cube-single-play" in capsys.readouterr().err


def test_an_ant_without_a_fitting_expert_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="antmaze-medium-stitch needs an --expert"):
        OGBenchCollect(out=tmp_path, dataset="antmaze-medium-stitch")
    with pytest.raises(ValidationError, match="cube-single-play needs no --expert: leave it out"):
        OGBenchCollect(out=tmp_path, dataset="cube-single-play", expert=tmp_path)
    with pytest.raises(BadInputError, match="no file"):
        load_walker(tmp_path / "none")
    (tmp_path / "text").write_text("no layers")
    with pytest.raises(BadInputError, match="other contents"):
        load_walker(tmp_path / "text")
    Walker(((np.zeros((8, 5)), np.zeros(8)),)).save(tmp_path / "small")
    with pytest.raises(BadInputError, match="other contents"):
        load_walker(tmp_path / "small")
