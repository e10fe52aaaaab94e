from __future__ import annotations

from pathlib import Path

import pytest

from counterpoint.config import FrozenConfig, override, parse_overrides, read_recipe, recipe_names, validate
from counterpoint.errors import BadInputError


class Inner(FrozenConfig):
    lr: float = 0.1
    steps: int = 3


class Outer(FrozenConfig):
    inner: Inner = Inner()
    name: str = "x"


def test_overrides_read_json_and_text() -> None:
    assert parse_overrides(["--a.b=3", "c=word", "--d.e-f=[1, 2]", "g.h=null", "--i.j=1e-4"]) == {
        "a.b": 3,
        "c": "word",
        "d.e_f": [1, 2],
        "g.h": None,
        "i.j": 1e-4,
    }


def test_override_without_value_is_refused() -> None:
    with pytest.raises(BadInputError, match="no value"):
        parse_overrides(["--train.steps"])


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
    with pytest.raises(BadInputError, match="did you mean decisionnce_t-demo"):
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
