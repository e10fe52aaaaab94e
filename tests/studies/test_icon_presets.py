from __future__ import annotations

import pytest

from counterpoint.training.imitation import ImitationRecipe
from counterpoint.training.recipe import load_recipe
from studies.harness import load_preset, presets
from studies.icon.config import ComparisonConfig, nested
from studies.icon.paper import PAPER, paper_number
from studies.icon.run import plan
from studies.icon.trials import PolicyTrial, imitation_config


def preset(name: str) -> ComparisonConfig:
    return load_preset("icon", ComparisonConfig, name)


def test_settings_are_merged_section_by_section() -> None:
    before = {"a": {"b": 1, "c": 2}, "icon": None, "x": 5}
    assert nested({"a.b": 3, "icon": {}, "x": 6}, before) == {"a": {"b": 3, "c": 2}, "icon": {}, "x": 6}
    assert nested({"icon": {"keys.n": 4}}, before)["icon"] == {"keys": {"n": 4}}
    assert before == {"a": {"b": 1, "c": 2}, "icon": None, "x": 5}


@pytest.mark.parametrize("name", presets("icon"))
def test_presets_are_whole(name: str) -> None:
    config = preset(name)
    for cells in plan(config):
        for cell in cells:
            imitation_config(config, cell)


def test_presets_are_the_paper_s_where_they_say_so() -> None:
    config = preset("transfer")
    source = imitation_config(config, PolicyTrial("ICon-Diff-C", "robosuite/Lift", 42))
    target = imitation_config(config, PolicyTrial("ICon-Diff-C", "robosuite/Lift-IIWA", 42, "transferred"))
    assert (source.train.epochs, target.train.epochs) == (600, 300)
    assert (source.train.batch_size, source.frame, source.encoder.size) == (64, 256, 224)
    assert (config.demonstrations_for("robosuite/Lift"), config.demonstrations_for("robosuite/Lift-IIWA")) == (50, 5)
    assert source.icon.weight == 1
    assert imitation_config(config, PolicyTrial("Diff-C", "robosuite/Lift", 0)).icon.weight == 0
    transformer = imitation_config(preset("paper"), PolicyTrial("ICon-Diff-T", "robosuite/Lift", 0))
    recipe = load_recipe("icon_diff_t-robosuite")
    assert isinstance(recipe, ImitationRecipe)
    assert (transformer.diffusion, transformer.icon) == (recipe.diffusion, recipe.icon)
    assert transformer.optimizer == recipe.optimizer
    unet = imitation_config(preset("paper"), PolicyTrial("Diff-C", "robosuite/Lift", 0))
    recipe = load_recipe("diff_c-robosuite")
    assert isinstance(recipe, ImitationRecipe)
    assert (unet.diffusion, unet.optimizer, unet.encoder) == (recipe.diffusion, recipe.optimizer, recipe.encoder)
    assert config.seeds == (0, 42, 100)
    assert config.evaluation.checkpoints == 600 // 50


@pytest.mark.parametrize("name", ["cpu", "lift-cpu"])
def test_small_presets_differ_from_their_baseline_in_icon_alone(name: str) -> None:
    own = preset(name)
    assert len(own.seeds) >= 4
    (task,) = own.data.tasks
    plain, icon = (imitation_config(own, PolicyTrial(method, task, 0)) for method in ("Diff-C", "ICon-Diff-C"))
    assert (plain.icon.weight, icon.icon.weight) == (0, 1)
    assert icon.model_copy(update={"icon": plain.icon}) == plain


def test_the_paper_s_numbers_and_what_it_has_none_of() -> None:
    assert str(paper_number("robosuite/Stack", "ICon-Diff-C")) == "0.220 ± 0.016 (Table 2)"
    assert paper_number("robosuite/Lift-Kinova3", "Diff-C", alone=True) is None
    assert paper_number("robosuite/Door", "Diff-T") is None
    assert {task for task in PAPER if task.startswith("rlbench")} <= set(preset("paper").data.tasks)
