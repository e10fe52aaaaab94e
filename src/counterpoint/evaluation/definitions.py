"""Every number that the bench of rewards returns or training logs as an accuracy, defined once.

A definition has a title, a formula, a chance level and the better direction.

The pages of `counterpoint report` and `counterpoint compare` take titles and chance levels from this module.
`docs/methods/metrics.md` repeats these definitions and adds limits; a test checks that page and module agree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

from markupsafe import Markup, escape

Chance = Literal["1/L", "1/C", "1/2", "0", "1", "1.2", "p", "2p / (1 + p)", "shuffled", "ramp", "none"]
"""The level that a worthless reward or embedding reaches. L is the number of instructions, and p the share of successes
among the scored trajectories. C is the number of candidates from which a training objective picks one. `shuffled`: the
value for the same frames in random order. `ramp`: the value of the control that counts frames. `none`: there is no
level."""
Better = Literal["more", "less", "neither"]


class Metric(NamedTuple):
    """A number of the bench.

    Attributes:
        title: Heading on pages.
        formula: Definition in words.
        chance: Level that a worthless reward reaches.
        better: Direction of better values; `neither` for numbers that are only descriptive.
        signed: False for shares, which lie in [0, 1].
    """

    title: str
    formula: str
    chance: Chance
    better: Better
    signed: bool = False

    def level(self, instructions: int, successes: float) -> float | None:
        """Return the chance level as a number.

        It is `None` for `none`, for `1/C`, which depends on the objective, and for `shuffled` and `ramp`, which are
        computed from frames.

        Args:
            instructions: Number of candidate instructions (L).
            successes: Share of successes among the scored trajectories (p).
        """
        match self.chance:
            case "shuffled" | "ramp" | "none" | "1/C":
                return None
            case "1/L":
                return 1 / instructions
            case "p":
                return successes
            case "2p / (1 + p)":
                return 2 * successes / (1 + successes)
        return 0.5 if self.chance == "1/2" else float(self.chance)


REWARD: Mapping[str, Metric] = {
    "voc": Metric(
        "rank correlation with time (VOC)",
        "Spearman's rho between time and the curve under the video's own instruction, mean over videos",
        *("0", "more", True),
    ),
    "voc_pearson": Metric(
        "linear correlation with time", "Pearson's r between the same two, mean over videos", *("0", "more", True)
    ),
    "voc_kendall": Metric(
        "order of pairs of frames (tau-b)",
        "Kendall's tau-b between the same two, mean over videos; equal values leave the denominator",
        *("0", "more", True),
    ),
    "accuracy": Metric(
        "right instruction first",
        "share of videos that score highest under their own instruction, of L",
        *("1/L", "more"),
    ),
    "triples": Metric(
        "right against wrong instruction",
        "share of the other instructions under which a video scores lower than under its own, mean over videos",
        *("1/2", "more"),
    ),
    "triples_one_word_apart": Metric(
        "right against one word changed",
        "triples over the other instructions that are as long and differ in one word",
        *("1/2", "more"),
    ),
    "confusion_gap": Metric(
        "own score above the others'",
        "score under the video's own instruction minus its mean score under the others, mean over videos",
        *("0", "more", True),
    ),
    "stage_accuracy": Metric(
        "right stage, frame by frame",
        "share of an episode's frames whose stage is named right, mean over videos",
        *("ramp", "more"),
    ),
    "ranking_tau_b": Metric(
        "failure < half < success (tau-b)",
        "Kendall's tau-b between score and failure < suboptimal < success over every combination of one trajectory a "
        "level, mean over combinations, then over tasks",
        *("0", "more", True),
    ),
    "auroc": Metric(
        "success above the rest (AUROC)",
        "share of pairs of a success and another trajectory in which the success scores higher; a tie counts half",
        *("1/2", "more"),
    ),
    "auprc": Metric(
        "precision over recall of success (AUPRC)",
        "sum of precision times the recall gained, over thresholds from above",
        *("p", "more"),
    ),
    "f1": Metric(
        "success at a fixed threshold (F1)",
        "harmonic mean of precision and recall at a threshold that is best on other videos",
        *("2p / (1 + p)", "more"),
    ),
    "grade_error": Metric(
        "error of grades 1 to 5",
        "mean distance of 1 + round(4 progress) from 1, 2, 3, 4, 5 after 0, 25, 50, 75, 100 % of a success",
        *("1.2", "less", True),
    ),
}
"""Numbers of a reward, computed for every input for which they are defined."""

SPACE: Mapping[str, Metric] = {
    "ordering": Metric(
        "triples of frames in order",
        "of frames i and pairs j, k with abs(t_i - t_j) < abs(t_i - t_k), share with abs(s_i - s_j) < abs(s_i - s_k)",
        *("shuffled", "more"),
    ),
    "step_norm": Metric("mean step", "mean distance of neighbouring frames", *("shuffled", "less", True)),
    "jump_ratio": Metric("largest step over the mean step", "largest step over mean step", *("1", "less", True)),
    "bridge_residual": Metric(
        "distance from the straight way",
        "squared distance to the straight way between first and last frame over "
        "2 (t - t_0)(t_T - t)/(t_T - t_0), mean over interior frames",
        *("shuffled", "less", True),
    ),
    "effective_rank": Metric(
        "dimensions in use",
        "exp of the entropy of the normalised singular values of all frames' embeddings",
        *("1", "more", True),
    ),
    "time_probe_r2": Metric(
        "time, read linearly from one frame",
        "R^2 of t/(T-1) by ridge regression from one frame's embedding, five folds over videos",
        *("0", "more", True),
    ),
    "first_frame_similarity": Metric(
        "first frames", "mean cosine of the first frames of two videos", *("none", "neither", True)
    ),
    "last_frame_similarity": Metric(
        "last frames", "mean cosine of the last frames of two videos", *("none", "neither", True)
    ),
    "random_frame_similarity": Metric(
        "frames from anywhere", "mean cosine of frames from anywhere in two videos", *("none", "neither", True)
    ),
    "first_frame_to_language": Metric(
        "first frames and the mean instruction",
        "mean cosine of first frames with the mean of the videos' embedded instructions",
        *("none", "neither", True),
    ),
}
"""Numbers of an encoder's embeddings."""

METRICS: Mapping[str, Metric] = {**REWARD, **SPACE}

LOGGED: Mapping[str, Metric] = {
    "categorical_accuracy": Metric(
        "own candidate first",
        "share of rows whose highest logit, of C candidates, is that of their own",
        *("1/C", "more"),
    ),
    "language_accuracy": Metric(
        "own candidate first, under words",
        "share of rows whose highest score under R3M's language head, of C candidates, is that of their own",
        *("1/C", "more"),
    ),
    "window_accuracy": Metric(
        "own state above its neighbours",
        "share of window negatives that score below their row's positive; equal scores count half",
        *("1/2", "more"),
    ),
}
"""Accuracies that training logs in `metrics.jsonl`."""

ABBREVIATIONS = {
    "VOC": "value-order correlation: does the reward rise with time?",
    "tau-b": "Kendall's rank correlation, in which ties leave the denominator",
    "AUROC": "area under the receiver operating characteristic",
    "AUPRC": "area under the curve of precision over recall",
    "F1": "harmonic mean of precision and recall",
    "PCA": "principal component analysis",
}
_SHORT = re.compile(rf"\b({'|'.join(map(re.escape, ABBREVIATIONS))})\b")


def spelt(text: str) -> Markup:
    """Return HTML in which the mouse pointer shows the long form of every abbreviation."""

    def full(found: re.Match[str]) -> str:
        return Markup('<abbr title="{}">{}</abbr>').format(ABBREVIATIONS[found[0]], found[0])

    return Markup(_SHORT.sub(full, str(escape(text))))
