"""The claims of Premier-TACO."""

from __future__ import annotations

from functools import partial

from studies.fewshot.summary import LEFT_CHANCE
from studies.fewshot.summary import result as summarise
from studies.fewshot.summary import scores as by_row
from studies.harness import Differences, kept
from studies.verdicts import Claim, Gate, Line

IMAGE_MODEL = "imagenet/finetuned"
OURS = "premier_taco/finetuned"
FROZEN = 0.1
SMALLER = "1,200 steps of pretraining here; 100,000 at batch 4,096 in the paper"


def _less(result: str, baseline: str) -> Differences:
    found = by_row(kept(result, summarise)["table"])["last"]
    return found[OURS] - found[baseline]


def learned(result: str, baseline: str = "scratch") -> Gate:
    """Return a gate: pretraining has learned something, and the baseline can be improved on.

    The held-out window accuracy must be above `LEFT_CHANCE`; frozen, the encoder must be above a random one by
    `FROZEN`, where both were run; and the baseline must solve every task in .1 to .8 of the episodes.
    """
    found = kept(result, summarise)
    scores = by_row(found["table"])["last"]
    low, high = scores[baseline].mean(0).min(), scores[baseline].mean(0).max()
    windows = [run.get("window_accuracy") for run in found["pretraining"].values()]
    least = min((window for window in windows if window is not None), default=0.0)
    text = f"{baseline} {low:.2f} to {high:.2f} (.1 to .8), held-out window pairs right {least:.2f} or more"
    text, passed = f"{text} (at least {LEFT_CHANCE})", low >= 0.1 and high <= 0.8 and least >= LEFT_CHANCE
    if {"premier_taco/frozen", "random/frozen"} <= scores.keys():
        gain = scores["premier_taco/frozen"].mean() - scores["random/frozen"].mean()
        text += f", frozen above a random encoder by {gain:.2f} (at least {FROZEN})"
        passed = passed and gain >= FROZEN
    return Gate(text, bool(passed))


def _line(result: str, test: str, baseline: str = "scratch", effect: float | None = None) -> Line:
    seen = "scratch" if baseline == "taco/finetuned" else baseline
    gate = partial(learned, result, seen)
    return Line(test, result, partial(_less, result, baseline), gate, effect, papers_measure=True, fewest=8)


CLAIMS = (
    Claim(
        "P1",
        "Premier-TACO",
        "fine-tuned, it is above learning from scratch: .758 against .436 (Table 2)",
        (
            _line(
                "fewshot_finetuned",
                "success after five demonstrations of four unseen Meta-World tasks, [few-shot policies](fewshot.md)",
                effect=0.322,
            ),
        ),
        SMALLER,
    ),
    Claim(
        "P2",
        "Premier-TACO",
        "it is above TACO: .758 against .475 (Table 2)",
        (
            _line(
                "fewshot_finetuned",
                "the same four tasks, [TACO's loss over time alone](fewshot.md), both fine-tuned",
                "taco/finetuned",
                0.283,
            ),
        ),
        SMALLER,
    ),
    *(
        Claim(
            number,
            "Premier-TACO",
            f"it is above learning from scratch {figure}",
            (
                _line(
                    f"fewshot_{name}",
                    f"success after five demonstrations of two {tasks}, [{title}](fewshot.md#{anchor})",
                ),
            ),
            SMALLER,
        )
        for number, name, title, tasks, figure in (
            ("P3", "embodiment", "other arms", "unseen arms", "on bodies that pretraining did not see (Fig. 6)"),
            (
                "P4",
                "camera",
                "an unseen camera",
                "unseen tasks",
                "under a camera that pretraining did not see (Fig. 6)",
            ),
            ("P5", "random", "nearly random data", "unseen tasks", "after pretraining on random data (Fig. 7)"),
        )
        for anchor in [title.replace(" ", "-")]
    ),
    Claim(
        "P6",
        "Premier-TACO",
        "an image model that it fine-tunes is above one that cloning fine-tunes (Fig. 8)",
        (
            _line(
                "fewshot_imagenet",
                "success after five demonstrations of two unseen tasks, "
                "[an ImageNet model](fewshot.md#an-imagenet-model)",
                IMAGE_MODEL,
            ),
        ),
        SMALLER,
    ),
)
