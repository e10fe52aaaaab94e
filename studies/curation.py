"""Bad episodes that `counterpoint rank` finds, and success that a reward detects while a video arrives.

    python -m studies.curation --preset kitchen --data=DATA --failures.noise=NOISE --out runs/curation

A row is trained and calibrated on successes; the threshold of success is fixed on further training episodes, successes
and failures. All numbers are measured on test episodes:

    AUROC     by the score of `rank` and by each of its signs: failures among successes; and, among successes, episodes
              of which half were given another instruction
    stream    an episode is detected when progress stays at or above the threshold for `HOLD` frames. `detected` is the
              share of successes; `early` the share detected before the simulator says that the task is solved; `delay`
              the median number of frames from then on, of the others; `false alarms` the share of failures. Only where
              the simulator's rewards are 0 and 1
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from counterpoint.data.draws import sample_rng
from counterpoint.data.store import EpisodeStore
from counterpoint.data.store_views import SubsetStore
from counterpoint.encoders.dual import DualEncoder
from counterpoint.errors import require
from counterpoint.evaluation import metrics
from counterpoint.evaluation.rank import WORSE, Seen, scores_of, see, signs_of
from counterpoint.formats import open_dataset
from counterpoint.rewards.calibration import calibrate
from counterpoint.rewards.model import RewardModel
from counterpoint.rewards.sources import EncoderReward
from studies.harness import Rows, Study, Tree, Trial, estimate, file_name, kept, main, markdown, over_seeds
from studies.rewards.config import RewardsConfig
from studies.rewards.run import TEST, TRAIN, failures, fit_row, joined, stores_of

Array = NDArray[np.float64]

HOLD = 3
"""Number of frames in a row that must show success."""
HELD_OUT = 10
"""Number of training episodes of each instruction, after those that a row learns from, that fix the threshold."""
SWAPPED = "swapped instructions"
SIGNS = ("score", *WORSE)


def curation_study(config: RewardsConfig, out: Path) -> Tree:
    """Train, calibrate and measure every row; write `curation.json` and `results.parquet`."""
    require(config.per_task, "per_task", "none", "a number, so that training episodes are left for the threshold", "1")
    require(config.failures, "failures", "none", "--failures.NAME=DATA", "record some: counterpoint collect kitchen")
    study = Study("curation", out, config)
    for row in config.rows:
        stores_of(config, row)  # features are computed here, once for all trials
    trials = [
        Trial(file_name(row, f"seed{seed}"), partial(measure, config, row, seed), about={"row": row, "seed": seed})
        for seed in config.seeds
        for row in config.rows
    ]
    study.run(trials, config.processes)
    return study.finish("curation", summary(study.rows()))


def summary(rows: Rows, _: Tree | None = None) -> Tree:
    """Return, by row, group and number, the mean over seeds with a t interval."""
    found: Tree = {}
    for name in dict.fromkeys(row["row"] for row in rows):
        runs = sorted((row for row in rows if row["row"] == name), key=lambda run: run["seed"])
        found[name] = {
            group: {key: over_seeds([run["groups"][group][key] for run in runs]) for key in numbers}
            for group, numbers in runs[0]["groups"].items()
        }
    return {"rows": found}


def measure(config: RewardsConfig, row: str, seed: int) -> Tree:
    """Train and calibrate one row with one seed; return `groups`, numbers by group and name."""
    chosen, spare = (stores_of(one, row) for one in (config, _further(config)))
    failed = [failures(chosen[name, TRAIN]) for name in config.failures if (name, TRAIN) in chosen]
    model = fit_row(config, row, chosen[TRAIN], seed)
    later = _after(spare[TRAIN], config.per_task or 0)
    found = calibrate(model, chosen[TRAIN], joined([later, *failed]), seed=seed)
    encoder: Any = model.encoder
    encoder.config = encoder.config.model_copy(update={"calibration": found})
    reward = EncoderReward(RewardModel(encoder, language_reward=model.language_reward), row)
    solved = chosen[TEST]
    groups = {f"failures: {name}": found_bad(reward, solved, failures(chosen[name, TEST])) for name in config.failures}
    groups[SWAPPED] = found_swapped(reward, solved, seed)
    rewards = _rewards(config.data)
    if all(set(np.unique(one)) <= {0, 1} for one in rewards):
        bad = {name: failures(chosen[name, TEST]) for name in config.failures}
        groups["stream"] = streamed(reward, solved, [solved_at(one) for one in rewards], bad)
    return {"groups": groups, "threshold": found.success if found else None}


def _further(config: RewardsConfig) -> RewardsConfig:
    return config.model_copy(update={"per_task": (config.per_task or 0) + HELD_OUT})


def _after(store: EpisodeStore, count: int) -> EpisodeStore:
    """Return the episodes of each instruction after the first `count`."""
    texts = [info.instruction for info in store.episodes]
    return SubsetStore(store, [at for at, text in enumerate(texts) if texts[:at].count(text) >= count])


def _rewards(data: str) -> list[NDArray[Any]]:
    store = open_dataset(data, split=TEST)
    return [np.asarray(store.rewards(number)) for number in range(len(store.episodes))]


def solved_at(rewards: Float[Array, " T"]) -> int:
    """Return the first step whose action solved the task, by the simulator's rewards of 0 and 1."""
    return int(np.flatnonzero(rewards > 0)[0])


def look(reward: EncoderReward, store: EpisodeStore) -> list[Seen]:
    """Return every episode of a store of features as a reward sees it."""
    encoder = reward.model.encoder
    assert isinstance(encoder, DualEncoder)
    texts = list(dict.fromkeys(info.instruction for info in store.episodes))
    found = []
    for number, info in enumerate(store.episodes):
        shared: dict[Any, Any] = {encoder.backbone_digest: np.asarray(store.features(number))[:, 0]}
        rivals = [text for text in texts if text != info.instruction]
        found.append(see(reward, {}, shared, info.length, [info.instruction, *rivals]))
    return found


def found_bad(reward: EncoderReward, good: EpisodeStore, bad: EpisodeStore) -> dict[str, float]:
    """Return the AUROC of bad episodes among good ones, by the score and by each sign."""
    labels = np.repeat([False, True], [len(good.episodes), len(bad.episodes)])
    return _told_apart(look(reward, joined([good, bad])), labels)


def found_swapped(reward: EncoderReward, store: EpisodeStore, seed: int) -> dict[str, float]:
    """Return the AUROC of episodes that were given another instruction of the data set, half of all."""
    rng, texts = sample_rng(seed, 0, "swapped"), list(dict.fromkeys(info.instruction for info in store.episodes))
    labels = rng.permutation(np.arange(len(store.episodes)) % 2 == 0)
    view = SubsetStore(store, range(len(store.episodes)))
    view.episodes = tuple(
        replace(info, instruction=str(rng.choice([text for text in texts if text != info.instruction])))
        if swapped
        else info
        for info, swapped in zip(store.episodes, labels, strict=True)
    )
    return _told_apart(look(reward, view), labels)


def _told_apart(seen: Sequence[Seen], labels: NDArray[np.bool_]) -> dict[str, float]:
    signs = signs_of(seen, unit=True)
    scores = {"score": scores_of(signs)} | {name: WORSE[name] * values for name, values in signs.items()}
    return {name: float(metrics.auroc(values, labels)) for name, values in scores.items()}


def streamed(
    reward: EncoderReward, solved: EpisodeStore, stops: Sequence[int], failed: Mapping[str, EpisodeStore]
) -> dict[str, float]:
    """Return how success is detected frame by frame: see the module's docstring."""
    threshold = reward.model.check_calibration().success
    each = [detected_at(one.curve, threshold) for one in look(reward, solved)]
    hits = [(at, stop) for at, stop in zip(each, stops, strict=True) if at is not None]
    late = [at - stop for at, stop in hits if at >= stop]
    found = {
        "detected": len(hits) / len(each),
        "early": sum(at < stop for at, stop in hits) / len(each),
        "delay": float(np.median(late)) if late else float("nan"),
    }
    for name, store in failed.items():
        alarms = [detected_at(one.curve, threshold) is not None for one in look(reward, store)]
        found[f"false alarms: {name}"] = float(np.mean(alarms))
    return found


def detected_at(progress: Float[Array, " T"], threshold: float) -> int | None:
    """Return the step at which progress has been at or above a threshold for `HOLD` steps; `None` if there is none."""
    runs = np.convolve(progress >= threshold, np.ones(HOLD, int))[: len(progress)]
    there = np.flatnonzero(runs == HOLD)
    return int(there[0]) if len(there) else None


def table(name: str) -> str:
    """Return the AUROC of each group, by the score of `rank` and by each of its signs."""
    lines = [
        [row, group, *(estimate(numbers.get(sign), share=True) for sign in SIGNS)]
        for row, groups in kept(f"curation_{name}", summary)["rows"].items()
        for group, numbers in groups.items()
        if group != "stream"
    ]
    return markdown(["reward", "found", *SIGNS], lines)


def stream_table(name: str) -> str:
    """Return how success is detected frame by frame."""
    rows = kept(f"curation_{name}", summary)["rows"]
    heads = list(next(iter(rows.values()))["stream"])
    lines = [
        [row, *(estimate(groups["stream"][key], share=key != "delay") for key in heads)] for row, groups in rows.items()
    ]
    return markdown(["reward", *heads], lines)


if __name__ == "__main__":
    main("curation")
