from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from counterpoint.errors import BadInputError
from studies.fewshot import data
from studies.fewshot.config import FewshotConfig
from tests.studies.fewshot_world import dmc, small_benchmark, use_squares
from tests.studies.square_world import SIZE


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> FewshotConfig:
    return small_benchmark(tmp_path_factory.mktemp("squares"))


@pytest.fixture(autouse=True)
def _squares(monkeypatch: pytest.MonkeyPatch) -> None:
    use_squares(monkeypatch)


def test_seeds_have_demonstrations_of_their_own(config: FewshotConfig, tmp_path: Path) -> None:
    store = data.open_demonstrations(config, tmp_path, SIZE, "top")
    first, second, third = (data.demonstrations_of(store, "push low", seed, 3) for seed in range(3))
    assert {info.instruction for info in first.episodes} == {"push low"}
    starts = [[one.frames(e, np.array([0])).tobytes() for e in range(3)] for one in (first, second, third)]
    assert not set(starts[0]) & set(starts[1])
    assert starts[0] == starts[2]  # there are two sets of three


def test_evaluation_seeds_are_a_seed_s_own_and_are_no_demonstrations(config: FewshotConfig) -> None:
    first, second = (data.evaluation_seeds(config, "metaworld/reach", [], seed) for seed in range(2))
    assert len(first) == len(second) == 5
    assert len({*first, *second}) == 10  # so that episodes pooled over seeds begin differently
    others = data.evaluation_seeds(config, "metaworld/reach", first[:2], 0)
    assert others == [*first[2:], *second[:2]]
    assert data.evaluation_seeds(config, "metaworld/push", [], 0) != first
    more = config.model_copy(update={"seeds": 7})  # more seeds leave those there are as they are
    assert data.evaluation_seeds(more, "metaworld/reach", [], 1) == second


def test_libero_counts_through_its_initial_states(config: FewshotConfig) -> None:
    libero = config.model_copy(update={"data": config.data.model_copy(update={"suite": "libero"})})
    found = [data.evaluation_seeds(libero, "libero/libero_10/0", [], seed) for seed in range(2)]
    assert found == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def earned(config: FewshotConfig, out: Path, steps: int) -> float:
    store = data.open_demonstrations(config, out, SIZE, "top")
    rewards = [store.rewards(e) for e, info in enumerate(store.episodes) if info.instruction == "push top"]
    return float(np.mean([each[:steps].sum() for each in rewards if each is not None]))


def test_returns_are_shares_of_the_experts_over_as_many_steps(config: FewshotConfig, tmp_path: Path) -> None:
    whole, part = (data.expert_returns(dmc(config, steps=steps), tmp_path) for steps in (10, 4))
    assert whole["top"] == pytest.approx(earned(config, tmp_path, 10))
    assert part["top"] == pytest.approx(earned(config, tmp_path, 4))
    assert part["top"] < whole["top"]
    with pytest.raises(BadInputError, match="demonstrations of 10 steps; expected 12"):
        data.expert_returns(dmc(config, steps=12), tmp_path)


def test_folders_of_some_tasks_alone_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert data._folders(tmp_path, ("a",)) == [tmp_path / "a"]
    assert data._folders(tmp_path, ("b", "c")) == [tmp_path]
    with pytest.raises(BadInputError, match="no folder of b"):
        data._folders(tmp_path, ("a", "b"))


def test_pictures_of_dm_control_s_recorder_are_found_whichever_camera_took_them(
    config: FewshotConfig, tmp_path: Path
) -> None:
    named = dmc(config, camera="1")
    assert data.open_demonstrations(named, tmp_path, SIZE, "top").cameras == ("front",)
    other = config.model_copy(update={"data": config.data.model_copy(update={"camera": "1"})})
    with pytest.raises(BadInputError, match="camera"):
        data.open_demonstrations(other, tmp_path, SIZE, "top")


@pytest.mark.release
@pytest.mark.sim
def test_other_arms_of_robosuite_have_folders_of_their_own(config: FewshotConfig, tmp_path: Path) -> None:
    own = {"suite": "robosuite", "pretraining_tasks": ("Lift",), "unseen_tasks": ("Lift-Kinova3",)}
    few = {"camera": "agentview", "episodes": 1, "demonstrations": 1, "render": 32, "workers": 1}
    tree = config.model_dump() | {"data": own | few, "seeds": 1}
    robots = FewshotConfig.model_validate(tree)
    data.record_data(robots, tmp_path)
    pretraining, none = data.open_pretraining(robots, tmp_path, SIZE)
    demonstrations = data.open_demonstrations(robots, tmp_path, SIZE, "Lift-Kinova3")
    assert none is None
    assert pretraining.cameras == demonstrations.cameras == ("agentview",)
    assert pretraining.frames(0, np.array([0])).shape == (1, SIZE, SIZE, 3)
    assert len(data.demonstration_seeds(robots, tmp_path, "Lift-Kinova3")) == 1
    assert not np.array_equal(pretraining.column("state")[0], demonstrations.column("state")[0])
