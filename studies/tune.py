"""Choose the settings of reward objectives by the same search for each, on videos that no test uses.

    python -m studies.tune --preset kitchen --data=DATA --out runs/tune_kitchen --keep tune_kitchen
    python -m studies.tune --preset bridge --data=BRIDGE_RLDS --out runs/tune_bridge --keep tune_bridge
    python -m studies.tune --preset dropout --data=DATA --out runs/dropout_kitchen --keep tune_dropout_kitchen
    python -m studies.tune --preset dropout --data=BRIDGE_RLDS --out runs/dropout_bridge --keep tune_dropout_bridge

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

from pydantic import Field, PositiveInt, model_validator

from counterpoint.config import FrozenConfig
from counterpoint.data.store import EpisodeStore
from counterpoint.evaluation.embedded import embed_store
from studies.harness import Study, Tree, Trial, file_name, main
from studies.rewards.config import RewardsConfig, Row
from studies.rewards.measures import Numbers, means
from studies.rewards.run import WHOLE, checkpoints, fit, parts, reader_of, related, row_recipe, stores_of
from studies.rewards.searched import summary, table

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
        data: Videos with the splits `train` and `test`, the second for validation, or without splits: then two models
            validate each other's half.
        methods: Methods by name. Every method must have as many sets of settings.
        overrides: Changes to the recipe of every method.
        start: Changes to the recipe of a method with whose weights another one starts.
        learning_rates: Learning rates.
        steps: Numbers of training steps after which a method is measured, rising.
        seeds: Random seeds of weights and batches.
        processes: Number of trials that run in parallel.
    """

    data: str
    methods: dict[str, Method] = Field(min_length=1)
    overrides: Setting = Field(default={})
    start: Setting = Field(default={})
    learning_rates: tuple[float, ...] = (1e-5, 1e-4, 1e-3)
    steps: tuple[PositiveInt, ...] = (150, 600, 1200)
    seeds: tuple[int, ...] = (100,)
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
    changes = {"optimizer.lr": rate, "train.steps": config.steps[-1], **method.settings[which]}
    recipe, measured = row_recipe(rewards, name, changes), dict[int, list[Numbers]]()
    for number, (train, test) in enumerate(parts(rewards, stores_of(rewards, name))):
        texts, own = tuple(dict.fromkeys(info.instruction for info in train.episodes)), seed + 1000 * number
        start = _start(config, method.start, train, own) if method.start else None
        models = checkpoints(recipe, train, own, config.steps, start=start)
        for steps, model in zip(config.steps, models, strict=True):
            embedded = embed_store(model.encoder, test, instructions=texts)
            groups = related(rewards, reader_of(model, train), embedded, WHOLE)
            each = zip(groups[f"{WHOLE}: matched"], groups[f"{WHOLE}: identification"], strict=True)
            measured.setdefault(steps, []).extend({**one, **other} for one, other in each)
    found = {steps: means(records) for steps, records in measured.items()}
    kept = ("voc", "voc_wrong", "accuracy")
    scores = [
        {"steps": steps, "margin": one["voc"] - one["voc_wrong"], **{key: one[key] for key in kept}}
        for steps, one in found.items()
    ]
    return {"scores": scores}


def _start(config: TuneConfig, name: str, train: EpisodeStore, seed: int) -> Mapping[str, Any]:
    encoder: Any = fit(row_recipe(_rewards(config, name), name, config.start), train, seed).encoder
    weights: Mapping[str, Any] = encoder.state_dict()
    return weights


def _rewards(config: TuneConfig, name: str) -> RewardsConfig:
    """Return a method, and the one with which it starts, as a study of rewards."""
    names = [each for each in (name, config.methods[name].start) if each is not None]
    rows = {each: Row(recipe=config.methods[each].recipe, overrides=config.methods[each].overrides) for each in names}
    return RewardsConfig(data=config.data, rows=rows, overrides=config.overrides)


if __name__ == "__main__":
    main("tune")
