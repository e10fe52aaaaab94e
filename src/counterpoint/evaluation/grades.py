"""Compare rewards on videos with grades from 1 to 5, as RoboRewardBench does.

A video's score is the reward's last value under the video's task. Two grades are computed from it::

    fixed         1 + 4 p, rounded, for a reward whose score p is progress in [0, 1]
    calibrated    the grade that isotonic regression expects, rounded; fitted on the split `train` alone

RoboRewardBench's number is the mean absolute error of the grade, as the mean over embodiments of each one's mean. All
intervals come from bootstrap samples of the videos of each embodiment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from markupsafe import Markup
from numpy.typing import NDArray

from counterpoint.data.draws import sample_rng
from counterpoint.data.store import EpisodeStore, camera_names
from counterpoint.errors import BadInputError, import_extra, require
from counterpoint.evaluation.embedded import spread
from counterpoint.evaluation.metrics import grade
from counterpoint.evaluation.statistics import Drawn, Estimate, as_share
from counterpoint.files import write_atomically
from counterpoint.formats import split_names
from counterpoint.formats.graded import GRADES, GradedStore
from counterpoint.progress import ProgressBar
from counterpoint.provenance import provenance
from counterpoint.rewards.embedding import observed, reads_state
from counterpoint.rewards.page import breakable, render, signed
from counterpoint.rewards.sources import FunctionReward, Reward, TolerantReward

Array = NDArray[np.float64]
Grades = NDArray[np.int64]

TEMPLATES = Path(__file__).parent / "templates"
FIXED, CALIBRATED = "1 + 4 progress", "calibrated"
RESAMPLES = 1000
TITLES = {
    "mae": "mean absolute error, over embodiments",
    "mae_micro": "mean absolute error, over videos",
    "within_one": "within one grade",
    "exact": "exact grade",
    "kendall_tau_b": "Kendall's tau-b of score and grade",
}
"""The numbers of a table of grades."""
SHARES = ("within_one", "exact")


@dataclass(frozen=True)
class GradeRow:
    """One way to grade.

    Attributes:
        name: The reward's name.
        grading: How scores become grades.
        numbers: The numbers in `TITLES`.
        embodiments: The mean absolute error by embodiment.
        confusion: Number of videos by true grade (row) and predicted grade (column).
    """

    name: str
    grading: str
    numbers: Mapping[str, Estimate]
    embodiments: Mapping[str, float]
    confusion: tuple[tuple[int, ...], ...]


def compare_grades(
    rewards: Mapping[str, Sequence[Reward]],
    data: Path,
    out: Path,
    *,
    split: str | None = None,
    max_videos: int = 100,
    max_frames: int = 128,
    seed: int = 0,
) -> Path:
    """Compare rewards on graded videos; write `OUT/compare.html` and `OUT/compare.json`, and return the page.

    Args:
        rewards: For each name, one reward, or one per training seed, whose scores are averaged.
        data: The data set.
        out: The folder to write.
        split: The split; by default `test`, or `val` if there is no `test`.
        max_videos: Maximum number of videos, of the compared split and of `train`; larger splits are sampled.
        max_frames: Maximum number of frames of a video, evenly spread.
        seed: Random seed of samples and resamples.

    Raises:
        BadInputError: If the split does not exist, or if all rewards fail.
    """
    splits = split_names(data)
    chosen = split or next((name for name in ("test", "val") if name in splits), None)
    hint = "name a split: --split NAME"
    require(chosen, data, f"the splits {', '.join(splits)}", "test or val", hint)
    own: dict[str, Sequence[Reward]] = {
        name: [TolerantReward(one) if isinstance(one, FunctionReward) else one for one in group]
        for name, group in rewards.items()
    }
    store = GradedStore(data, split=chosen)
    kept = sample_of(len(store.episodes), max_videos, seed)
    train = GradedStore(data, split="train") if "train" in splits and chosen != "train" else None
    fitting = sample_of(len(train.episodes), max_videos, seed) if train else []
    scores = scores_of(own, store, kept, max_frames=max_frames)
    fitted = scores_of(own, train, fitting, max_frames=max_frames) if train else {}
    failed = {
        name: f"{one.failure.found}; expected {one.failure.expected}"
        for name, group in own.items()
        for one in group
        if isinstance(one, TolerantReward) and one.failure is not None
    }
    if failed.keys() >= own.keys():
        raise BadInputError(next(iter(failed)), failed[next(iter(failed))], "scores", "repair it, or leave it out")
    true, places = store.grades[kept], [store.embodiments[at] for at in kept]
    samples = resamples(places, seed)
    rows = []
    for name, group in own.items():
        if name in failed:
            continue
        if all(one.progress for one in group):
            rows.append(grade_row(name, FIXED, scores[name], grade(scores[name]), true, places, samples))
        if train is not None:
            found = calibrated(fitted[name], train.grades[fitting], scores[name])
            rows.append(grade_row(name, CALIBRATED, scores[name], found, true, places, samples))
    usual = np.full(len(true), np.floor(np.median(true if train is None else train.grades[fitting])))
    median = "the median" if train is None else "the median of the training part"
    rows.append(grade_row("constant", median, usual, usual, true, places, samples))
    about = {"data": data.name, "split": chosen, "videos": len(kept), "fitted_on": len(fitting), "seed": seed}
    return write_grades(rows, failed, about, out)


def sample_of(count: int, most: int, seed: int) -> list[int]:
    """Return the numbers of at most `most` of `count` videos, ascending, drawn at random if there are more."""
    drawn = sample_rng(seed, 0, "graded videos").permutation(count)[:most]
    return sorted(drawn.tolist())


def scores_of(
    rewards: Mapping[str, Sequence[Reward]], store: EpisodeStore, kept: Sequence[int], *, max_frames: int
) -> dict[str, Array]:
    """Return each reward's last value of each video under the video's task: progress, where the reward has it."""
    (camera,), flat = camera_names(None, store), [one for group in rewards.values() for one in group]
    reader = next(filter(reads_state, flat), None)
    found: dict[str, list[float]] = {name: [] for name in rewards}
    with ProgressBar("Grading", len(kept), "videos", shorten="--max-videos") as progress:
        for number in kept:
            info = store.episodes[number]
            steps = spread(info.length, max_frames)
            frames = observed(reader, store, number, steps, (camera,))
            shared: dict[Any, Any] = {}
            for name, group in rewards.items():
                watched = [one.watch(frames, shared) for one in group]
                ends = [curves(np.arange(len(steps)), [info.instruction], progress=True)[0, -1] for curves in watched]
                found[name].append(float(np.mean(ends)))
            progress.advance()
    return {name: np.array(values) for name, values in found.items()}


def calibrated(scores: Float[Array, " N"], grades: Int[Grades, " N"], others: Float[Array, " M"]) -> Float[Array, " M"]:
    """Return grades [M] for other scores, by isotonic regression of grades [N] on scores [N]."""
    model = import_extra("sklearn.isotonic", "report").IsotonicRegression(out_of_bounds="clip")
    model.fit(scores, grades)
    return np.asarray(np.clip(np.round(model.predict(others)), GRADES[0], GRADES[-1]))


def resamples(places: Sequence[str], seed: int) -> Int[Grades, "R+1 N"]:
    """Return the videos of the whole and of every bootstrap sample, which has as many of each embodiment."""
    rng, names = sample_rng(seed, 0, "grades"), np.array(places)
    groups = [np.flatnonzero(names == name) for name in dict.fromkeys(places)]
    drawn = [np.concatenate([rng.choice(group, len(group)) for group in groups]) for _ in range(RESAMPLES)]
    return np.stack([np.concatenate(groups), *drawn])


def grade_row(
    name: str,
    grading: str,
    scores: Float[Array, " N"],
    predicted: Float[Array, " N"],
    true: Int[Grades, " N"],
    places: Sequence[str],
    samples: Int[Grades, "R+1 N"],
) -> GradeRow:
    """Return the numbers of one way to grade N videos.

    Args:
        name: The reward's name.
        grading: How scores become grades.
        scores: The reward's scores.
        predicted: The predicted grades.
        true: The true grades.
        places: The embodiment of each video.
        samples: The result of `resamples`.
    """
    tau = import_extra("scipy.stats", "report").kendalltau
    error, names = np.abs(predicted - true), np.array(places)
    order = samples[0]
    ends = np.cumsum([int((names == place).sum()) for place in dict.fromkeys(places)])[:-1]
    macro = np.mean([part.mean(axis=1) for part in np.split(error[samples], ends, axis=1)], axis=0)
    ranked = [tau(scores[at], true[at]).statistic for at in samples]
    drawn = {
        "mae": macro,
        "mae_micro": error[samples].mean(axis=1),
        "within_one": (error <= 1)[samples].mean(axis=1),
        "exact": (error == 0)[samples].mean(axis=1),
        "kendall_tau_b": np.nan_to_num(np.array(ranked, np.float64)),
    }
    found = {key: Drawn(values, len(order)).estimate() for key, values in drawn.items()}
    confusion = np.zeros((len(GRADES), len(GRADES)), np.int64)
    np.add.at(confusion, (true - GRADES[0], predicted.astype(np.int64) - GRADES[0]), 1)
    return GradeRow(
        name,
        grading,
        {key: as_share(one) if key in SHARES else one for key, one in found.items()},
        {place: float(error[names == place].mean()) for place in sorted(set(places))},
        tuple(map(tuple, confusion.tolist())),
    )


def write_grades(rows: Sequence[GradeRow], failed: Mapping[str, str], about: Mapping[str, Any], out: Path) -> Path:
    """Write the page and the numbers, print the first number of every row, and return the page."""
    made = [
        {
            "name": row.name,
            "grading": row.grading,
            "numbers": {key: one.as_json() for key, one in row.numbers.items()},
            "embodiments": row.embodiments,
            "confusion": row.confusion,
        }
        for row in rows
    ]
    facts = {**about, "provenance": provenance()}
    found = {"rows": made, "failed": failed, "about": facts}
    shown: dict[str, Any] = {"rows": rows, "failed": failed, "about": facts, "titles": TITLES, "grades": GRADES}
    shown |= {"breakable": breakable, "signed": signed}
    page = render("grades.html.j2", [TEMPLATES], report_style=Markup((TEMPLATES / "report.css").read_text()), **shown)
    write_atomically(out / "compare.json", json.dumps(found, indent=2) + "\n")
    write_atomically(out / "compare.html", page)
    for row in rows:
        print(f"{row.name} ({row.grading}): mean absolute error {row.numbers['mae']}")
    for name, reason in failed.items():
        print(f"{name}: left out, since it failed: found {reason}")
    return out / "compare.html"
