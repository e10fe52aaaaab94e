from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from counterpoint.training.clips import ClipsRecipe
from counterpoint.training.recipe import load_recipe
from studies.harness import load_preset, read_rows
from studies.rewards import searched as module
from studies.rewards.searched import searched, summary, table
from studies.tune import TuneConfig, tune_study
from tests.conftest import write_robot_set
from tests.evaluation.fake_run import quick_words

METHODS: dict[str, Any] = {
    "clip": {"recipe": "clip-demo", "settings": [{"objective.temperature": 0.01}, {"objective.temperature": 0.1}]},
    "late": {
        "recipe": "decisionnce_t-demo",
        "start": "clip",
        "settings": [{"objective.temperature": 0.01}, {"objective.temperature": 0.1}],
    },
}


def rows(margins: dict[tuple[str, float, int, int], float]) -> list[dict[str, Any]]:
    """Rows of a search with these margins by method, learning rate, set of settings and steps."""
    found: dict[tuple[str, float, int], list[dict[str, float]]] = {}
    for (name, rate, which, steps), margin in margins.items():
        scores = found.setdefault((name, rate, which), [])
        scores.append({"steps": steps, "margin": margin, "voc": margin, "voc_wrong": 0.0, "accuracy": 1.0})
    return [
        {"row": name, "learning_rate": rate, "setting": which, "seed": 100, "scores": scores}
        for (name, rate, which), scores in found.items()
    ]


def config() -> dict[str, Any]:
    return TuneConfig(data="d", methods=METHODS, learning_rates=(1e-5, 1e-3)).model_dump(mode="json")


def test_the_best_mean_margin_is_chosen_and_the_authors_settings_keep_their_rate() -> None:
    margins = {
        (name, rate, which, steps): 0.1 * which + (0.5 if rate == 1e-3 else 0.0) + (0.2 if steps == 600 else 0.0)
        for name in METHODS
        for rate in (1e-5, 1e-3)
        for which in (0, 1)
        for steps in (150, 600, 1200)
    }
    found = summary(rows(margins), {"config": config()})["methods"]["clip"]
    best, own = found["chosen"], found["authors"]
    assert (best["learning_rate"], best["values"], best["steps"]) == (1e-3, {"objective.temperature": 0.1}, 600)
    assert (own["learning_rate"], own["values"], own["steps"]) == (1e-5, {"objective.temperature": 0.01}, 600)
    assert len(found["every"]) == 12
    assert "| clip | 0.001 | temperature 0.1 | 600 | 0.80 |" in table({"methods": {"clip": found}})


def test_searches_on_several_data_sets_are_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    one = {("clip", 1e-5, 0, 150): 0.1, ("clip", 1e-3, 1, 150): 0.9}
    two = {("clip", 1e-5, 0, 150): 0.9, ("clip", 1e-3, 1, 150): 0.3}
    about = {"config": {**config(), "methods": {"clip": config()["methods"]["clip"]}}}
    stored = {"one": summary(rows(one), about), "two": summary(rows(two), about)}
    monkeypatch.setattr(module, "kept", lambda name, _: stored[name])
    assert searched("clip", ["one"])["optimizer.lr"] == 1e-3
    assert searched("clip", ["two"])["optimizer.lr"] == 1e-5
    both = searched("clip", ["one", "two"])
    assert both == {"optimizer.lr": 1e-3, "train.steps": 150, "objective.temperature": 0.1}
    assert searched("clip", ["one", "two"], authors=True)["optimizer.lr"] == 1e-5


def test_a_search_is_the_same_for_all_methods() -> None:
    uneven = {**METHODS, "more": {"recipe": "clip-demo", "settings": [{}]}}
    with pytest.raises(ValidationError, match="different numbers of sets of settings"):
        TuneConfig.model_validate({"data": "d", "methods": uneven})
    with pytest.raises(ValidationError, match="the authors' learning rate is not searched for clip"):
        TuneConfig.model_validate({"data": "d", "methods": METHODS, "learning_rates": [1e-3]})


@pytest.mark.parametrize("name", ["kitchen", "bridge"])
def test_presets_search_the_authors_values_too_on_other_seeds_than_tests(name: str) -> None:
    config = load_preset("tune", TuneConfig, name, {"data": "DATA"})
    for method in config.methods.values():
        assert isinstance(load_recipe(method.recipe), ClipsRecipe)
        assert method.learning_rate in config.learning_rates
    assert min(config.seeds) >= 100


@pytest.mark.slow
def test_a_search_runs_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_words(monkeypatch)
    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path / "cache"))
    write_robot_set(tmp_path / "data", 12, 24, {"train": "0:6", "test": "6:12"})
    small = {"encoder.image_size": 24, "encoder.embed_dim": 8, "data.size": 24, "train.batch_size": 4}
    given: dict[str, Any] = {
        "data": str(tmp_path / "data"),
        "methods": METHODS,
        "overrides": small,
        "start": {"train.steps": 1},
    }
    given |= {"learning_rates": [1e-5, 1e-3], "steps": [1, 2], "processes": 1}
    found = tune_study(TuneConfig.model_validate(given), tmp_path / "out")
    assert found["methods"]["late"]["authors"]["learning_rate"] == 1e-5
    stored, _ = read_rows(tmp_path / "out" / "results.parquet")
    assert len(stored) == 2 * 2 * 2
    assert [one["steps"] for one in stored[0]["scores"]] == [1, 2]
    again = tune_study(TuneConfig.model_validate(given), tmp_path / "out")
    assert again["methods"] == found["methods"]


SEARCHED = {
    "clip-videos": "clip",
    "decisionnce_t-videos": "decisionnce_t with CLIP's loss",
    "decisionnce_p-videos": "decisionnce_p with CLIP's loss",
    "actol-videos": "actol",
    "liv-videos": "liv",
    "r3m-videos": "r3m",
    "vip-videos": "vip",
    "tcn-videos": "tcn",
}


@pytest.mark.parametrize("recipe", sorted(SEARCHED))
def test_recipes_have_the_values_that_were_searched(recipe: str) -> None:
    found = load_recipe(recipe).model_dump()
    for key, value in searched(SEARCHED[recipe], ("tune_kitchen", "tune_bridge")).items():
        section, _, name = key.partition(".")
        assert found[section][name] == value, key
