"""Few-shot benchmarks that come with the package, by name: small ones to run anywhere, and the paper's experiments.

Sizes of the small ones are ours, for the machine a preset says; `fewshot_paper` has the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from counterpoint.encoders.observation import ObservationConfig
from counterpoint.training.learner import OptimizerConfig
from studies.fewshot import paper as paper
from studies.fewshot.config import Evaluations, FewshotConfig, FewshotData, Pretraining, Row
from studies.fewshot.paper import BASELINES, HARD, PREMIER, RANDOM, SCRATCH, SEEN, rows_of, training
from studies.parts import named_preset

__all__ = ["PRESETS", "preset"]


def _quick() -> FewshotConfig:
    return FewshotConfig(
        title="few-shot benchmark, quick look",
        data=FewshotData(
            pretraining_tasks=("drawer-open",), unseen_tasks=("drawer-close",), episodes=4, steps=100, demonstrations=2
        ),
        encoder=ObservationConfig(size=32, stack=2, width=8, embed_dim=32, centre=True),
        train=training(40, 32),
        pretrainings={"premier_taco": PREMIER},
        rows=(*rows_of("premier_taco"), SCRATCH),
        clone={"steps": 100, "batch_size": 32, "lr": 1e-3, "cloning": {"hidden": 64}},
        evaluation=Evaluations(every=50, episodes=4, envs=4),
        seeds=1,
        reference="premier_taco/frozen",
    )


def _cpu() -> FewshotConfig:
    """Sized for about an hour of two cores: 48 pixels, actions of 1/40 s, and the mends that small scale needs.

    Of the tasks, a state-based clone of five demonstrations solves hammer nearly always and pick-out-of-hole mostly.
    """
    # Shifts of up to 4 of 48 pixels drown what a window's states differ by; gradients flow as in the papers' equations.
    # Both were chosen by the window accuracy of held-out pretraining episodes (docs/methods/premier_taco.md).
    mended = {"shift": 0, "stop_gradient": False}
    trained = {"cloning.shift": 2}  # of 48 pixels; DrQ-v2's is 4 of 84
    return FewshotConfig(
        title="few-shot benchmark, CPU",
        data=FewshotData(
            pretraining_tasks=("pick-place", "push", "assembly"),
            unseen_tasks=("hammer", "pick-out-of-hole"),
            episodes=80,
            validation_episodes=4,
            render=96,
            repeat=2,
        ),
        encoder=ObservationConfig(size=48, centre=True),
        optimizer=OptimizerConfig(lr=3e-4),
        train=training(1200, 128),
        pretrainings={
            "premier_taco": Pretraining(objective={"name": "premier_taco"} | mended),
            "taco": Pretraining(objective={"name": "taco", "curl": False} | mended),
            "inverse_dynamics": Pretraining(objective={"name": "inverse_dynamics", "shift": 0}),
            "premier_taco_eighth": Pretraining(objective={"name": "premier_taco"} | mended, train={"batch_size": 16}),
        },
        rows=(
            *rows_of("premier_taco", "taco", "inverse_dynamics", "premier_taco_eighth"),
            Row(name="premier_taco/finetuned", pretraining="premier_taco", frozen=False, clone=trained),
            Row(name="scratch", frozen=False, clone=trained),
            RANDOM,
        ),
        clone={"steps": 2100, "batch_size": 64, "lr": 3e-4, "cloning": {"hidden": 256}},
        evaluation=Evaluations(every=700, episodes=30, envs=8),
        reference="premier_taco/frozen",
    )


def _gpu() -> FewshotConfig:
    """Sized for one large GPU and 16 cores: the paper's ConvNet at 84 pixels and batches of 4096."""
    return FewshotConfig(
        title="few-shot benchmark, GPU",
        data=FewshotData(pretraining_tasks=SEEN, unseen_tasks=HARD[:4], episodes=40, validation_episodes=2, workers=16),
        encoder=ObservationConfig(centre=True),
        optimizer=OptimizerConfig(lr=1e-4),
        train=training(600, 4096, precision="bf16"),
        pretrainings={"premier_taco": PREMIER, "taco": BASELINES["taco"]},
        rows=(*rows_of("premier_taco", "taco"), *rows_of("premier_taco", frozen=False), SCRATCH, RANDOM),
        clone={"steps": 5000, "batch_size": 128},
        evaluation=Evaluations(every=1000, episodes=20),
        reference="premier_taco/finetuned",
        processes=14,
        pretraining_processes=1,
    )


PRESETS: Mapping[str, Callable[[], FewshotConfig]] = {
    "quick": _quick,
    "cpu": _cpu,
    "gpu": _gpu,
    "metaworld": paper.metaworld,
    "dmc": paper.dmc,
    "batch-size": paper.batch_size,
    "window": paper.window,
    "all-negatives": paper.all_negatives,
    "random-data": paper.random_data,
    "unseen-embodiment": paper.unseen_embodiment,
    "unseen-camera": paper.unseen_camera,
    "pretrained-encoder": paper.pretrained_encoder,
    "libero": paper.libero,
}
"""By name. `quick`, `cpu` and `gpu` are sized to be run; the others are the paper's sizes, to be made smaller."""


def preset(name: str, overrides: Mapping[str, Any] | None = None) -> FewshotConfig:
    """A preset with overrides.

    Args:
        name: One of `PRESETS`.
        overrides: Dotted keys and their values, such as `train.steps`.

    Raises:
        BadInputError: When the name or a key is unknown.
    """
    return named_preset(PRESETS, FewshotConfig, name, overrides or {})
