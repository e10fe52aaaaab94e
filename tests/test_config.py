from __future__ import annotations

from pathlib import Path

import pytest

from counterpoint.config import FrozenConfig, bound, free, override, read_recipe, recipe_names, validate
from counterpoint.errors import BadInputError


class Inner(FrozenConfig):
    lr: float = 0.1
    steps: int = 3


class Outer(FrozenConfig):
    inner: Inner = Inner()
    name: str = "x"


def test_numbers_must_be_finite() -> None:
    for value in (float("nan"), float("inf"), "1e999"):
        with pytest.raises(BadInputError, match=r"inner.lr = .*finite"):
            validate(Outer, {"inner": {"lr": value}}, "recipe r")


def test_settings_that_are_free_are_not_bound() -> None:
    class Loop(FrozenConfig):
        steps: int = free(3, ge=1)
        seed: int = 0

    class Whole(FrozenConfig):
        loop: Loop = Loop()
        name: str = "x"

    assert bound(Whole()) == {"loop": {"seed": 0}, "name": "x"}


def test_override_sets_nested_keys_and_leaves_the_original() -> None:
    tree = {"inner": {"lr": 1.0}}
    assert override(tree, {"inner.lr": 2.0, "name": "y"}) == {"inner": {"lr": 2.0}, "name": "y"}
    assert tree == {"inner": {"lr": 1.0}}


def test_override_through_a_value_is_refused() -> None:
    with pytest.raises(BadInputError, match="expected a section"):
        override({"name": "x"}, {"name.first": "y"})


def test_unknown_key_names_the_nearest_known_one() -> None:
    with pytest.raises(BadInputError, match=r"unknown key 'inner.stepz'.*did you mean 'steps'"):
        validate(Outer, {"inner": {"stepz": 3}}, "recipe r")


def test_ill_typed_key_says_what_was_expected() -> None:
    with pytest.raises(BadInputError, match=r"inner.steps = 'many'; expected .*integer"):
        validate(Outer, {"inner": {"steps": "many"}}, "recipe r")


def test_unknown_recipe_lists_the_known() -> None:
    with pytest.raises(BadInputError, match="did you mean 'decisionnce_t-demo'"):
        read_recipe("decisionnce_t-dem")


def test_missing_and_broken_recipe_files(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no file"):
        read_recipe(str(tmp_path / "none.toml"))
    broken = tmp_path / "broken.toml"
    broken.write_text("[train\nsteps = 3")
    with pytest.raises(BadInputError, match="broken TOML"):
        read_recipe(str(broken))


def test_recipes_are_found() -> None:
    assert {"decisionnce_t-demo", "decisionnce_t-epic100", "decisionnce_p-epic100", "actol-epic100"} <= set(
        recipe_names()
    )
