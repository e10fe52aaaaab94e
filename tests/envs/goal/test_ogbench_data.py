from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.nn import functional

from counterpoint.cli import main
from counterpoint.envs.goal import ogbench_data as module
from counterpoint.envs.goal.ogbench_data import (
    PROTOCOLS,
    MazeOracle,
    OGBenchCollect,
    Walker,
    collect_ogbench,
    cube_in_sight,
    load_walker,
    recorded,
)
from counterpoint.errors import BadInputError
from counterpoint.formats import open_dataset
from tests.golden.load import golden
from tests.marks import quick

pytest.importorskip("ogbench")
pytestmark = pytest.mark.sim

WALLS = np.array([[1, 1, 1, 1, 1], [1, 0, 0, 0, 1], [1, 0, 1, 0, 1], [1, 1, 1, 1, 1]])
SEEDED = [
    "pointmaze-medium-navigate",
    "pointmaze-medium-stitch",
    "cube-single-play",
    "cube-double-noisy",
    "scene-play",
    "puzzle-3x3-play",
]


@pytest.mark.parametrize("dataset", quick(["pointmaze-medium-navigate", "cube-single-play"], SEEDED))
def test_episodes_are_to_the_bit_those_of_ogbench_s_own_scripts(dataset: str) -> None:
    arrays, about = golden("ogbench_data_a")
    config = OGBenchCollect(out=Path("out"), dataset=dataset, steps=about["rows"])
    env = module._OGBenchCollection(config).make(config.tasks[0])
    found = recorded(env, replace(config.protocol, random=0.0), about["seed"])
    env.close()
    for name, values in found.items():
        np.testing.assert_array_equal(values, arrays[f"{dataset}/{name}"].numpy())


def test_the_protocols_are_ogbench_s() -> None:
    assert len(PROTOCOLS) == 37
    said = {name: (one.episodes, one.steps, one.noise, one.random) for name, one in PROTOCOLS.items()}
    assert said["pointmaze-giant-navigate"] == (500, 2001, 0.5, 0.0)
    assert said["antmaze-giant-navigate"] == (500, 2001, 0.2, 0.0)
    assert said["antmaze-medium-stitch"] == (5000, 201, 0.2, 0.0)
    assert said["antmaze-teleport-explore"] == (10_000, 501, 1.0, 0.0)
    assert "antmaze-giant-explore" not in said
    assert said["pointmaze-large-stitch"] == (5000, 201, 0.5, 0.0)
    assert said["cube-triple-play"] == (3000, 1001, 0.1, 0.0)
    assert said["puzzle-4x6-noisy"] == (5000, 1001, 0.1, 0.2)
    config = OGBenchCollect(out=Path("out"), dataset="scene-noisy", episodes=30)
    assert (config.episodes, config.val_episodes, config.noise, config.steps) == (30, 3, 0.1, 1001)


def test_goals_are_corners_and_junctions_or_four_steps_away() -> None:
    class Env:
        maze_map = WALLS

        @property
        def unwrapped(self) -> Env:
            return self

    oracle = MazeOracle(Env(), PROTOCOLS["pointmaze-medium-navigate"])
    assert oracle.grid.free == ((1, 1), (1, 2), (1, 3), (2, 1), (2, 3))
    assert oracle.junctions == [(1, 1), (1, 3), (2, 1), (2, 3)]  # (1, 2) is a corridor
    for _ in range(20):
        task = MazeOracle(Env(), PROTOCOLS["pointmaze-medium-stitch"]).scene()["task_info"]
        ends = {(2, 1): (2, 3), (2, 3): (2, 1)}  # no other cell has one that is four steps away
        assert task["goal_ij"] == ends.get(task["init_ij"], task["init_ij"])


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


def test_an_unknown_data_set_is_refused_with_a_suggestion(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValidationError, match=r"did you mean .pointmaze-medium-navigate."):
        OGBenchCollect(out=tmp_path, dataset="pointmaze-medium-navigat")
    with pytest.raises(SystemExit) as ended:
        main(["collect", "ogbench", "--dataset", "cube-single", "--out", str(tmp_path / "out")])
    assert ended.value.code == 2
    assert "cube-single-play" in capsys.readouterr().err


def random_walker(scale: float = 1.0) -> Walker:
    rng = np.random.default_rng(0)
    sizes = [(16, 29), (16, 16), (8, 16)]
    return Walker(tuple((scale * rng.normal(size=size), rng.normal(size=size[0])) for size in sizes))


def test_a_walker_reads_posture_and_direction_and_is_kept(tmp_path: Path) -> None:
    walker, seen, direction = random_walker(0.1), np.linspace(-1, 1, 29), np.array([0.6, 0.8])
    (first, *_), layers = walker.layers, walker.layers
    x = torch.tensor(np.concatenate([seen[2:], direction]))
    for number, (weight, bias) in enumerate(layers):
        x = functional.gelu(x, approximate="tanh") if number else x
        x = functional.linear(x, torch.tensor(weight), torch.tensor(bias))
    np.testing.assert_allclose(walker(seen, direction), torch.tanh(x).numpy(), rtol=1e-12)
    assert first[0].shape == (16, 29)
    walker.save(tmp_path / "ant.safetensors")
    np.testing.assert_array_equal(load_walker(tmp_path / "ant.safetensors")(seen, direction), walker(seen, direction))


def test_an_ant_walks_by_its_expert_and_explores_in_one_direction_for_ten_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_walker().save(tmp_path / "ant.safetensors")
    directions: list[Any] = []
    called = Walker.__call__

    def watched(self: Walker, seen: Any, direction: Any) -> Any:
        assert seen.shape == (29,)
        directions.append(direction)
        return called(self, seen, direction)

    monkeypatch.setattr(Walker, "__call__", watched)
    protocol = replace(PROTOCOLS["antmaze-medium-explore"], steps=25, noise=0.0)
    config = OGBenchCollect(
        out=tmp_path / "out", dataset="antmaze-medium-explore", expert=tmp_path / "ant.safetensors", steps=25
    )
    env = module._OGBenchCollection(config).make(config.tasks[0])
    directions.clear()
    found = recorded(env, protocol, 3, load_walker(tmp_path / "ant.safetensors"))
    env.close()
    assert found["observations"].shape == (25, 29)
    assert found["actions"].shape == (25, 8)
    np.testing.assert_allclose(np.linalg.norm(directions, axis=1), 1, atol=1e-4)
    changes = [step for step in range(1, 25) if (directions[step] != directions[step - 1]).any()]
    assert changes == [10, 20]


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
