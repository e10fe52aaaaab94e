from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from counterpoint.errors import BadInputError
from studies.gridworld import GridWorld
from studies.occupancy import figures, run
from studies.occupancy.analysis import advantage, best_setting, data_needed
from studies.occupancy.data import count_data
from studies.occupancy.figures import FIGURES
from studies.occupancy.known import expected_batch, printed_discount, train_known
from studies.occupancy.methods import METHODS
from studies.occupancy.run import OccupancyConfig, occupancy_study
from studies.occupancy.training import SCHEDULES, Setting, checkpoints, train
from tests.marks import quick

TINY = OccupancyConfig(
    width=2,
    height=2,
    sizes=(200, 2_000),
    seeds=2,
    steps=12,
    batch=8,
    learning_rates=(0.1,),
    sr_learning_rates=(0.01,),
    episode_length=20,
    curve_size=2_000,
    known_steps=12,
    processes=1,
)


def numbers(result: dict[str, Any]) -> str:
    """What does not depend on when and where a study ran."""
    return json.dumps({k: v for k, v in result.items() if "seconds" not in k and k != "provenance"})


def no_figures(result: dict[str, Any], out: Path) -> None:
    """In the place of drawing them again."""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("study")
    return out, occupancy_study(TINY, out)


@pytest.mark.release
def test_a_study_leaves_its_numbers_and_figures(study: tuple[Path, dict[str, Any]]) -> None:
    out, result = study
    assert numbers(json.loads((out / "occupancy.json").read_text())) == numbers(result)
    assert {path.name for path in out.glob("*.png")} == {f"occupancy_{name}.png" for name in FIGURES}
    assert result["provenance"]["packages"]
    at = result["errors"]["episodes"]["decayed"]["td_infonce"]["2000"]
    assert at["mean"] == pytest.approx(np.mean(at["per_seed"]))
    assert at["low"] <= at["mean"] <= at["high"]
    assert set(result["advantages"]["episodes"]["constant"]) >= set(METHODS) - {"td_infonce"}


@pytest.mark.parametrize("method", quick(list(METHODS)[::3], METHODS))
def test_every_method_learns(method: str) -> None:
    grid, discount = GridWorld(3, 2), 0.8
    truth = grid.exact_occupancy(grid.uniform_policy(), discount).reshape(-1, grid.states)
    data = [count_data(grid, 10_000, episode_length=100, discount=discount, seed=seed) for seed in (0, 1)]
    settings = [Setting(0.003 if method == "sr" else 0.03, schedule) for schedule in SCHEDULES]
    found = train(method, data, truth, settings, discount=discount, steps=600, size=64, seed=0)
    error = np.array(found["error"])
    assert error.shape == (len(found["steps"]), 2, 2)
    assert (error[-1] < 0.4 * np.abs(truth - 1 / grid.states).mean()).all()
    assert error[-1, :, 1].mean() < error[-1, :, 0].mean()  # decay helps


@pytest.mark.release
def test_what_was_interrupted_goes_on_to_the_same_numbers(
    study: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, whole = study
    trained: list[str] = []
    own = train

    def interrupted(method: str, *arguments: Any, **options: Any) -> dict[str, list[object]]:
        trained.append(method)
        if len(trained) == 5:
            raise KeyboardInterrupt
        return own(method, *arguments, **options)

    monkeypatch.setattr(run, "train", interrupted)
    monkeypatch.setattr(figures, "plot_all", no_figures)
    with pytest.raises(KeyboardInterrupt):
        occupancy_study(TINY, tmp_path)
    assert not (tmp_path / "occupancy.json").exists()
    assert len(list((tmp_path / "trials").glob("*.json"))) == 5
    assert numbers(occupancy_study(TINY, tmp_path)) == numbers(whole)
    trained.clear()
    occupancy_study(TINY, tmp_path)
    assert not trained


@pytest.mark.release
def test_two_processes_give_the_same_numbers(
    study: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, whole = study
    monkeypatch.setattr(figures, "plot_all", no_figures)
    shutil.copytree(out, tmp_path, dirs_exist_ok=True)
    for path in (tmp_path / "trials").glob("trajectory-*.json"):
        path.unlink()
    again = occupancy_study(TINY.model_copy(update={"processes": 2}), tmp_path)
    assert again["errors"] == whole["errors"]


@pytest.mark.release
def test_a_folder_of_another_study_is_refused(study: tuple[Path, dict[str, Any]]) -> None:
    out, _ = study
    with pytest.raises(BadInputError, match="another configuration"):
        occupancy_study(TINY.model_copy(update={"steps": 201}), out)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sizes": (1000, 100)}, "sizes must grow"),
        ({"sizes": (1000, 1050)}, "multiples"),
        ({"curve_size": 7}, "one of the sizes"),
        ({"no_such": 1}, "no_such"),
    ],
)
def test_bad_configurations_are_told(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        OccupancyConfig.model_validate({**OccupancyConfig().model_dump(), **change})


@pytest.mark.release
def test_expected_gradients_leave_no_error_and_the_printed_factor_leaves_the_one_foretold() -> None:
    grid, discount, size = GridWorld(3, 2), 0.7, 16
    settings = [Setting(0.03, "decayed")]
    found = train_known(grid, settings, discount=discount, steps=1_000, size=size)
    truth = grid.exact_occupancy(grid.uniform_policy(), discount)
    for name, curve in found.items():
        left = np.array(curve["error"][-1]).item()
        if name.endswith("printed"):
            wrong = grid.exact_occupancy(grid.uniform_policy(), printed_discount(discount, size))
            assert left == pytest.approx(float(np.abs(wrong - truth).mean()), rel=1e-3)
        else:
            assert left < 1e-5, name


def test_an_expected_batch_is_made_of_distributions() -> None:
    grid = GridWorld(3, 2)
    for futures in (True, False):
        batch = expected_batch(grid, 0.9, futures=futures)
        assert batch.visits.sum().item() == pytest.approx(1)
        np.testing.assert_allclose(batch.carried.sum(1), batch.visits[0])


def test_data_needed_interpolates_on_logarithmic_axes() -> None:
    sizes, errors = (100, 10_000, 1_000_000), (1.0, 0.1, 0.01)  # error = 10 / sqrt(n)
    assert data_needed(sizes, errors, 0.5) == pytest.approx(400)
    assert data_needed(sizes, errors, 0.05) == pytest.approx(40_000)
    assert data_needed(sizes, errors, 2.0) == 0
    assert data_needed(sizes, errors, 0.001) == float("inf")


def test_advantage_is_a_ratio_either_way_and_says_when_it_is_a_bound() -> None:
    sizes = (100, 10_000, 1_000_000)
    ours = np.array([[1.0, 0.1, 0.01]] * 3)
    tenfold = advantage(sizes, ours, ours * np.sqrt(10))
    assert tenfold["ratio"] == pytest.approx(10)
    assert tenfold["bound"] == ""
    assert advantage(sizes, ours * np.sqrt(10), ours)["ratio"] == pytest.approx(0.1)
    never = advantage(sizes, ours, np.full_like(ours, 3.0))
    assert (never["ratio"], never["bound"]) == (pytest.approx(10_000), "at least")
    mixed = advantage(sizes, ours, ours * np.array([[2.0], [3.0], [4.0]]))
    assert mixed["low"] < mixed["ratio"] < mixed["high"]


def test_the_best_setting_ends_nearest_to_the_limit_over_seeds_in_its_schedule() -> None:
    cell = {
        "error": [[[0.1, 0.5, 0.2], [0.1, 0.1, 0.2]]],
        "settings": [{"schedule": "constant"}, {"schedule": "decayed"}, {"schedule": "decayed"}],
    }
    assert best_setting(cell, "decayed", 0.0) == 2
    assert best_setting(cell, "constant", 0.0) == 0


def test_checkpoints_end_with_the_last_step() -> None:
    assert checkpoints(50_000)[0] == 100
    assert checkpoints(50_000)[-1] == 50_000
    assert checkpoints(1) == [1]
