"""Choose the settings of reward objectives by the same search for each, on videos that no test uses.

    python -m studies.tune --preset kitchen --data=DATA --out runs/tune --keep tune

Each method is trained with three learning rates and three sets of settings of its own, and measured after several
numbers of steps. Its authors' rate and settings are among them. The score is the mean over validation
videos of the VOC under the right instruction minus the VOC under wrong instructions, by the method's own reward.
`studies.rewards` then compares the methods, at these settings, on videos of other seeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, PositiveInt, model_validator

from counterpoint.config import FrozenConfig
from counterpoint.data.store import EpisodeStore
from counterpoint.evaluation.embedded import embed_store
from studies.harness import Rows, Study, Tree, Trial, file_name, kept, main, markdown, number
from studies.rewards.config import RewardsConfig, Row
from studies.rewards.run import WHOLE, checkpoints, fit, parts, reader_of, related, row_recipe, stores_of

Setting = dict[str, Any]
"""Dotted keys of a recipe and their values."""


class Method(FrozenConfig):
    """A method and what is searched for it.

    Attributes:
        recipe: The recipe.
        overrides: Changes to the recipe that are not searched.
        start: The method with whose recipe's weights training starts; random weights by default.
        learning_rate: The authors' learning rate, one of those that are searched.
        settings: Sets of settings, the authors' first.
    """

    recipe: str
    overrides: Setting = Field(default={})
    start: str | None = None
    learning_rate: float = 1e-5
    settings: tuple[Setting, ...] = Field(min_length=1)


class TuneConfig(FrozenConfig):
    """The methods and the search, which is the same for all.

    Attributes:
        data: Videos with the splits `train` and `test`; the second is for validation.
        per_task: Number of training videos of each instruction; all by default.
        methods: Methods by name. Every method must have as many sets of settings.
        overrides: Changes to the recipe of every method.
        learning_rates: Learning rates.
        steps: Numbers of training steps after which a method is measured, rising.
        seeds: Random seeds of weights and batches.
        processes: Number of trials that run in parallel.
    """

    data: str
    per_task: PositiveInt | None = None
    methods: dict[str, Method] = Field(min_length=1)
    overrides: Setting = Field(default={})
    learning_rates: tuple[float, ...] = (1e-5, 1e-4, 1e-3)
    steps: tuple[PositiveInt, ...] = (150, 600, 1200)
    seeds: tuple[int, ...] = (100, 101)
    processes: PositiveInt = 2

    @model_validator(mode="after")
    def _search_is_the_same(self) -> TuneConfig:
        counts = {name: len(method.settings) for name, method in self.methods.items()}
        if len(set(counts.values())) > 1:
            raise ValueError(f"methods with different numbers of sets of settings: {counts}")
        missing = [name for name, method in self.methods.items() if method.learning_rate not in self.learning_rates]
        if missing:
            raise ValueError(f"the authors' learning rate is not searched for {', '.join(missing)}")
        return self


def tune_study(config: TuneConfig, out: Path) -> Tree:
    """Search the settings of every method and write `tune.json`, `tune.md` and `results.parquet`."""
    study = Study("settings of rewards", out, config)
    for name in config.methods:
        stores_of(_rewards(config, name), name)  # features are computed here, once for all trials
    trials = [
        Trial(
            file_name(name, f"lr{rate:g}", f"set{which}", seed),
            partial(score, config, name, rate, which, seed),
            about=about,
        )
        for seed in config.seeds
        for name, method in config.methods.items()
        for which, rate in product(range(len(method.settings)), config.learning_rates)
        for about in [{"row": name, "learning_rate": rate, "setting": which, "seed": seed}]
    ]
    study.run(trials, config.processes)
    found = summary(study.rows(), {"config": config.model_dump(mode="json")})
    return study.finish("tune", found, table(found) + "\n")


def score(config: TuneConfig, name: str, rate: float, which: int, seed: int) -> Tree:
    """Train a method with one learning rate and one set of settings, and measure it after each number of steps.

    Returns:
        `scores`: a list with `steps`, `margin` (VOC under the right instruction minus wrong ones), `voc`, `voc_wrong`
        and `accuracy`, means over validation videos.
    """
    method, rewards = config.methods[name], _rewards(config, name)
    train, test = next(parts(rewards, stores_of(rewards, name)))
    changes = {"optimizer.lr": rate, "train.steps": config.steps[-1], **method.settings[which]}
    recipe = row_recipe(rewards, name, changes)
    start = _start(rewards, method.start, train, seed) if method.start else None
    scores = []
    for steps, model in zip(config.steps, checkpoints(recipe, train, seed, config.steps, start=start), strict=True):
        texts = tuple(dict.fromkeys(info.instruction for info in train.episodes))
        groups = related(rewards, reader_of(model, train), embed_store(model.encoder, test, instructions=texts), WHOLE)
        voc = float(np.mean([one["voc"] for one in groups[f"{WHOLE}: matched"]]))
        wrong, right = (
            float(np.mean([one[key] for one in groups[f"{WHOLE}: identification"]]))
            for key in ("voc_wrong", "accuracy")
        )
        scores.append({"steps": steps, "margin": voc - wrong, "voc": voc, "voc_wrong": wrong, "accuracy": right})
    return {"scores": scores}


def _start(rewards: RewardsConfig, name: str, train: EpisodeStore, seed: int) -> Mapping[str, Any]:
    encoder: Any = fit(row_recipe(rewards, name), train, seed).encoder
    weights: Mapping[str, Any] = encoder.state_dict()
    return weights


def _rewards(config: TuneConfig, name: str) -> RewardsConfig:
    """Return a method, and the one with which it starts, as a study of rewards."""
    names = [each for each in (name, config.methods[name].start) if each is not None]
    rows = {each: Row(recipe=config.methods[each].recipe, overrides=config.methods[each].overrides) for each in names}
    return RewardsConfig(data=config.data, per_task=config.per_task, rows=rows, overrides=config.overrides)


def summary(rows: Rows, about: Tree) -> Tree:
    """Return `methods`: by method, its best settings and the best with its authors' rate and settings.

    Each has `learning_rate`, `setting`, `values` of the setting, `steps`, and the means over seeds `margin`, `voc`,
    `voc_wrong` and `accuracy`. `margins` has the margin of every combination, lowest to highest.
    """
    config, found = about["config"], dict[str, Tree]()
    for name, method in config["methods"].items():
        cells: dict[tuple[float, int, int], list[Tree]] = {}
        for row in rows:
            if row["row"] == name:
                for one in row["scores"]:
                    cells.setdefault((row["learning_rate"], row["setting"], one["steps"]), []).append(one)
        keys = ("margin", "voc", "voc_wrong", "accuracy")
        every = [
            {
                "learning_rate": rate,
                "setting": which,
                "values": method["settings"][which],
                "steps": steps,
                **{key: float(np.mean([one[key] for one in ones])) for key in keys},
            }
            for (rate, which, steps), ones in cells.items()
        ]
        authors = (method["learning_rate"], 0)
        own = [cell for cell in every if (cell["learning_rate"], cell["setting"]) == authors]
        best, usual = (max(some, key=lambda cell: cell["margin"]) for some in (every, own))
        found[name] = {"chosen": best, "authors": usual, "margins": sorted(cell["margin"] for cell in every)}
    return {"methods": found}


def chosen(name: str, method: str) -> Tree:
    """Return the dotted keys that a stored search chose for a method, as changes to its recipe."""
    best = kept(name, summary)["methods"][method]["chosen"]
    return {"optimizer.lr": best["learning_rate"], "train.steps": best["steps"], **best["values"]}


def table(found: Tree) -> str:
    """Return a Markdown table of the chosen settings, and of the margins at these and at the authors' settings."""
    lines = []
    for name, one in found["methods"].items():
        best, own = one["chosen"], one["authors"]
        values = ", ".join(f"{key.rpartition('.')[2]} {value:g}" for key, value in best["values"].items())
        margins = one["margins"]
        line = [name, f"{best['learning_rate']:g}", values, str(best["steps"])]
        line += [number(best[key]) for key in ("margin", "voc", "voc_wrong", "accuracy")]
        lines.append([*line, number(own["margin"]), number(margins[len(margins) // 2])])
    head = [
        "method",
        "learning rate",
        "own settings",
        "steps",
        "margin",
        "VOC",
        "VOC, wrong",
        "right instruction first",
    ]
    return markdown([*head, "margin at the authors' settings", "median margin of the search"], lines)


if __name__ == "__main__":
    main("tune")
