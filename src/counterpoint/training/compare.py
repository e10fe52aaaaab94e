"""Recipes compared on one data set: each is trained with every seed, then `counterpoint compare` looks at the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from counterpoint.errors import require
from counterpoint.evaluation.compare import check_extras, compare_command
from counterpoint.training.recipe import load_recipe
from counterpoint.training.train import train


def compare_recipes(
    recipes: Sequence[str],
    data: Path,
    out: Path,
    *,
    rewards: Mapping[str, Sequence[str]] | None = None,
    seeds: int = 3,
    overrides: Mapping[str, Any] | None = None,
    device: str | None = None,
    **options: Any,
) -> Path:
    """Train every recipe with every seed into `OUT/runs/RECIPE-SEED`, then compare them; return the page.

    The same call continues an interrupted one: finished runs are taken as they are, others go on. All are trained on
    the same episodes, and compared on those that none of them saw.

    Args:
        recipes: Names of recipes of kind `clips`, or paths of TOML files.
        data: The data set.
        out: The folder to write.
        rewards: Further rewards, as `compare_command` takes them.
        seeds: Number of training seeds: 0 to `seeds` - 1.
        overrides: Dotted keys of the recipes and their values.
        device: The device that trains and computes; a GPU by default where there is one.
        options: Options of `compare_command`.

    Raises:
        BadInputError: A recipe or data that cannot be used, or a name twice.
        MissingExtraError: The extra `report` is not installed; nothing is trained.
    """
    check_extras()
    require(seeds > 0, "--seeds", seeds, "1 or more", "train each recipe at least once")
    names = [Path(recipe).stem if recipe.endswith(".toml") else recipe for recipe in recipes]
    taken = [*names, *(rewards or {})]
    require(len(set(taken)) == len(taken), "--recipes", f"{taken}", "each name once", "drop one, or rename its folder")
    for recipe in recipes:
        kind = load_recipe(recipe, overrides, data=[data]).kind
        hint = "`counterpoint recipes` lists their kinds"
        require(kind == "clips", f"recipe {recipe!r}", f"kind {kind!r}", "a recipe of instructed clips", hint)
    runs: dict[str, list[str]] = {name: [] for name in names}
    for seed in range(seeds):
        for name, recipe in zip(names, recipes, strict=True):
            run = out / "runs" / f"{name}-{seed}"
            if not (run / "model" / "config.json").is_file():
                print(f"Training {name}, seed {seed}", flush=True)
                train(recipe, data, run, overrides={**(overrides or {}), "train.seed": seed}, device=device)
            runs[name].append(str(run))
    return compare_command({**runs, **(rewards or {})}, data, out, device=device or "cpu", **options)
