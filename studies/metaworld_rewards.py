"""All objectives on scripted Meta-World episodes: trained on `train`, selected on `val`, reported on `test`.

    python -m studies.metaworld_rewards --data=runs/demo-data --out runs/metaworld_rewards

A trial trains one row with one seed and evaluates it on validation and test episodes. Its run is kept in `OUT/runs`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field, PositiveInt

from counterpoint.config import FrozenConfig
from counterpoint.data.store import EpisodeStore
from counterpoint.encoders.dual import DualEncoder
from counterpoint.envs.metaworld.env import INSTRUCTIONS
from counterpoint.evaluation.comparison import compare
from counterpoint.evaluation.embedded import CENTRED, RECORDED, SHUFFLED, embed_store, measure_space
from counterpoint.evaluation.metrics import value_order_correlation
from counterpoint.formats import open_dataset
from counterpoint.objectives import ClipObjective, objective_class
from counterpoint.rewards import RewardForm, RewardModel
from counterpoint.rewards.sources import EncoderReward, Reward
from counterpoint.training.clips import ClipsRecipe, DataConfig, prepared_clips
from counterpoint.training.recipe import load_recipe
from counterpoint.training.train import train
from studies.harness import Rows, Study, Tree, Trial, file_name, main, over_seeds

RECIPE = "decisionnce_t-demo"


class Row(FrozenConfig):
    """One line of the table.

    Attributes:
        objective: The recipe's `[objective]` section; `None` leaves the encoder untrained.
        start: The row with whose weights this row's training starts.
        overrides: Other changes to the recipe.
    """

    objective: dict[str, Any] | None = None
    start: str | None = None
    overrides: dict[str, Any] = Field(default={})


class MetaWorldRewardsConfig(FrozenConfig):
    """Objectives that are compared on one data set.

    Attributes:
        data: The data set, with the splits `train`, `val` and `test`.
        rows: The objectives by name.
        paraphrases: Instructions of each task that are not in the training data.
        seeds: Random seeds of weights and order.
        processes: Number of trials that run in parallel.
    """

    data: str
    rows: dict[str, Row]
    paraphrases: dict[str, tuple[str, ...]]
    seeds: tuple[int, ...] = (0, 1, 2)
    processes: PositiveInt = 2


class RunsConfig(FrozenConfig):
    """Encoders that this study trained, for other studies to measure.

    Attributes:
        data: The data set.
        runs: This study's folder `OUT/runs`.
        seeds: Seeds of the runs.
        processes: Number of trials that run in parallel.
    """

    data: str
    runs: str
    seeds: tuple[int, ...] = (0, 1, 2)
    processes: PositiveInt = 2


def metaworld_rewards_study(config: MetaWorldRewardsConfig, out: Path) -> Tree:
    """Train and evaluate every objective and write `metaworld_rewards.json` and `results.parquet`."""
    study = Study("rewards on Meta-World", out, config)
    for later in (False, True):  # rows that begin with another row's weights
        names = [name for name, row in config.rows.items() if (row.start is not None) is later]
        trials = [
            Trial(run_name(name, seed), partial(measure, config, out, name, seed), about={"row": name, "seed": seed})
            for seed in config.seeds
            for name in names
        ]
        study.run(trials, config.processes)
    data = {split: open_dataset(config.data, split=split).fingerprint for split in ("train", "val", "test")}
    facts = {"recipe": demo_recipe().model_dump(mode="json"), "data": data}
    return study.finish("metaworld_rewards", summary(study.rows()), facts=facts)


def run_name(row: str, seed: int) -> str:
    """Return the name of a trial and of its run."""
    return file_name(row, f"seed{seed}")


def measure(config: MetaWorldRewardsConfig, out: Path, name: str, seed: int) -> Tree:
    """Train one row with one seed and evaluate it on both splits."""
    row = config.rows[name]
    encoder = _trained(config, out, name, seed)
    trained = objective_class(row.objective["name"], ClipObjective).reward_form if row.objective else "transition"
    form: RewardForm = "transition" if trained == "transition" else "potential"
    paraphrases = {INSTRUCTIONS[task]: others for task, others in config.paraphrases.items()}
    found: Tree = {}
    for split in ("val", "test"):
        store = split_store(Path(config.data), split)
        found[split] = bench_numbers(encoder, store, seed, paraphrases)
        found[split] |= {"form": form, "goal_image_voc": goal_image_voc(encoder, store)}
    return found


READINGS: tuple[RewardForm, ...] = ("potential", "similarity", "transition")
KEPT = {
    "voc": ("voc", RECORDED),
    "voc_wrong_instruction": ("voc", "wrong text"),
    "accuracy_whole_video": ("accuracy", RECORDED),
    "accuracy_random_segments": ("accuracy", "random segments"),
    "accuracy_short_segments": ("accuracy", "short segments"),
    "accuracy_paraphrases": ("accuracy", "paraphrases"),
}
"""The bench's name and input of each number in the result file, where its name is followed by the reward form."""
ENDINGS = {RECORDED: "", SHUFFLED: "_shuffled", CENTRED: "_centred"}


def bench_numbers(
    encoder: DualEncoder, store: EpisodeStore, seed: int, paraphrases: dict[str, tuple[str, ...]]
) -> dict[str, float]:
    """Return the numbers of an encoder in each reward form and of its embeddings, by their names in the result file.

    All objectives are measured in the same way, even those that do not align frames with texts.
    """
    encoder.config = encoder.config.model_copy(update={"reward_form": "potential", "calibration": None})
    readings: dict[str, list[Reward]] = {
        form: [EncoderReward(RewardModel(encoder, form=form), form)] for form in READINGS
    }
    found = compare(readings, store, segments=True, paraphrases=paraphrases, seed=seed)
    numbers = {
        f"{name}.{row.name}": row.inputs[given][metric].value
        for row in found.rows[: len(READINGS)]
        for name, (metric, given) in KEPT.items()
        if given in row.inputs
    }
    potential = found.rows[0].inputs
    numbers |= {
        f"accuracy_{at}_frame": potential[f"{at} frame"]["accuracy"].value for at in ("first", "middle", "last")
    }
    for given, space in measure_space(embed_store(encoder, store), seed=seed).items():
        numbers |= {f"{name}{ENDINGS[given]}": one.value for name, one in space.items()}
    return numbers


def _trained(config: MetaWorldRewardsConfig, out: Path, name: str, seed: int) -> DualEncoder:
    row = config.rows[name]
    if row.objective is None:
        torch.manual_seed(seed)
        return DualEncoder(demo_recipe().encoder).eval()
    overrides = {"train.seed": seed, "train.trackers": [], **row.overrides, "objective": row.objective}
    if row.start is not None:
        overrides["initialize_from"] = str(out / "runs" / run_name(row.start, seed))
    run = train(RECIPE, Path(config.data), out / "runs" / run_name(name, seed), overrides=overrides)
    return DualEncoder.from_pretrained(run.model)


def demo_recipe() -> ClipsRecipe:
    """Return the recipe that every row changes."""
    found = load_recipe(RECIPE)
    assert isinstance(found, ClipsRecipe)
    return found


def split_store(data: Path, split: str) -> EpisodeStore:
    """Return the training store of one split."""
    store, _ = prepared_clips(data, DataConfig(size=demo_recipe().data.size, train_split=split, val_split=None))
    return store


def goal_image_voc(encoder: DualEncoder, store: EpisodeStore) -> float:
    """Return the VOC of -||phi(o_t) - phi(goal)||, where the goal is the last frame of the task's next episode.

    It does not need language, so it is defined for VIP and TCN too.
    """
    embedded = embed_store(encoder, store)
    last = embedded.frames_at(-1)
    values = []
    for number, video in enumerate(embedded.videos):
        same = [other for other in np.flatnonzero(embedded.own == embedded.own[number]) if other != number]
        if same:
            goal = last[min(same, key=lambda other: (other - number) % len(last))]
            values.append(value_order_correlation(-np.linalg.norm(video - goal, axis=1)))
    return float(np.mean(values))


def summary(rows: Rows, _: Tree | None = None) -> Tree:
    """Return `rows`: by row, split and number, the mean over seeds with a t interval."""
    found: Tree = {}
    for name in dict.fromkeys(row["row"] for row in rows):
        runs = sorted((row for row in rows if row["row"] == name), key=lambda run: run["seed"])
        found[name] = {
            split: {
                key: over_seeds([run[split][key] for run in runs]) if isinstance(value, float) else value
                for key, value in runs[0][split].items()
            }
            for split in ("val", "test")
        }
    return {"rows": found}


if __name__ == "__main__":
    main("metaworld_rewards")
