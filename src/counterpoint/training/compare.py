"""`counterpoint compare`: train recipes on a data set with every seed, then compare all rewards on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from counterpoint.errors import require, require_extras
from counterpoint.evaluation.compare import NEEDED, compare_command
from counterpoint.parameter_types import Computes, Name, Names, PythonOnly
from counterpoint.progress import ProgressBar
from counterpoint.training.recipe import load_recipe
from counterpoint.training.train import train
from counterpoint.workers import IN_PROCESS, Foreign


def compare(
    runs: Positional[Annotated[Sequence[str], arg(metavar="RUN...")]] = (),
    *,
    data: Path,
    out: Path,
    recipes: Annotated[Sequence[str], arg(metavar="RECIPE...")] = (),
    seeds: int = 3,
    split: Name = None,
    cameras: Names = (),
    max_videos: int = 100,
    device: Computes = "cpu",
    foreign: Foreign = IN_PROCESS,
    dialect: Name = None,
    overrides: PythonOnly[Mapping[str, Any] | None] = None,
) -> Path:
    """Compare rewards and controls on the same videos: OUT/compare.html and OUT/compare.json with intervals.

    Recipes are trained first, with every seed, into OUT/runs/RECIPE-SEED. Repeating a call continues it if it was
    interrupted: finished runs are used as they are, and other runs are resumed. All recipes are trained on the same
    episodes, and all rewards are compared on episodes that none of the recipes was trained on.

    Time on two cores: the training runs, then for each reward one pass over the videos, at 2,600 frames a second with
    the demo's encoder and 87 with EfficientNet-Lite0. Disk: about three megabytes, and a run's folder for each training
    run.

    Args:
        runs: Rewards to compare: runs, names of released models such as liv, folders of LeRobot reward models, or
            module:function, a function that is called with frames and an instruction.
        data: The data set.
        out: The folder to write.
        recipes: Recipes of kind `clips`, or paths of TOML files, that are trained on the data first.
        seeds: Number of training runs of each recipe, with seeds 0 to SEEDS - 1.
        split: Split of the data; by default `test`, or `val` where there is no `test`.
        cameras: Cameras whose rewards are averaged; by default the cameras that the runs were trained on.
        max_videos: Maximum number of videos; larger sets are sampled at random.
        device: The device that trains and computes, such as cuda.
        foreign: How models of others run. One that fails costs its own row, and the reason is printed.
        dialect: The dialect of HDF5 files, if the files do not identify it: see `counterpoint data info`.
        overrides: Values that replace settings of the recipes, by dotted key.

    Returns:
        The path of the page.

    Raises:
        BadInputError: If a reward, a recipe or the data cannot be used, or a name is given twice.
        MissingExtraError: If the extra `report` is not installed; nothing is trained.
    """
    require(runs or recipes, "compare", "nothing", "RUN... or --recipes RECIPE...", "name what to compare")
    require_extras(NEEDED)
    foreign.check()
    require(seeds > 0, "--seeds", seeds, "1 or more", "train each recipe at least once")
    names = [Path(recipe).stem if recipe.endswith(".toml") else recipe for recipe in recipes]
    rewards = {(run if ":" in run else Path(run).resolve().name): [run] for run in runs}
    require(len(rewards) == len(runs), "runs", "two of one name", "different names", "rename a folder")
    taken = [*names, *rewards]
    require(len(set(taken)) == len(taken), "--recipes", f"{taken}", "each name once", "drop one, or rename its folder")
    for recipe in recipes:
        kind = load_recipe(recipe, overrides, data=[data]).kind
        hint = "`counterpoint recipes` lists their kinds"
        require(kind == "clips", f"recipe {recipe!r}", f"kind {kind!r}", "a recipe of instructed clips", hint)
    own = dict(overrides or {}) | ({} if dialect is None else {"data.dialect": dialect})
    trained: dict[str, list[str]] = {name: [] for name in names}
    with ProgressBar("Comparing", seeds * len(names), "runs", shorten="--seeds", shown=bool(names)) as bar:
        for seed, (name, recipe) in product(range(seeds), zip(names, recipes, strict=True)):
            run = out / "runs" / f"{name}-{seed}"
            if not (run / "model" / "config.json").is_file():
                print(f"Training {name}, seed {seed}", flush=True)
                train(recipe, data, run, overrides={**own, "train.seed": seed}, device=device)
            trained[name].append(str(run))
            bar.advance()
    options: dict[str, Any] = {"split": split, "cameras": cameras, "max_videos": max_videos, "device": device}
    return compare_command({**trained, **rewards}, data, out, foreign=foreign, dialect=dialect, **options)
