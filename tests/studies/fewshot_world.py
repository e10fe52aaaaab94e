"""A few-shot benchmark on the square of `square_world`: pretrained, cloned and rolled out in seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from counterpoint.encoders.observation import ObservationConfig
from counterpoint.training.settings import TrainConfig
from studies.fewshot import data, trials
from studies.fewshot.config import Evaluations, FewshotConfig, FewshotData, Pretraining, Row
from tests.studies.square_world import SIZE, make_square, record_squares

__all__ = ["SEEN", "UNSEEN", "dmc", "small_benchmark", "use_squares"]

SEEN, UNSEEN = ("left", "right"), ("top", "low")


def small_benchmark(root: Path) -> FewshotConfig:
    """One pretraining and three rows on two unseen tasks, whose data are recorded below `root`."""
    return FewshotConfig(
        title="squares",
        data=FewshotData(
            suite="robomimic",  # whose tasks have no list of names to keep to
            unseen_tasks=UNSEEN,
            demonstrations=3,
            pretraining_path=str(record_squares(root / "seen", SEEN, 6, noise=0.3)),
            demonstrations_path=str(record_squares(root / "unseen", UNSEEN, 6, seed=1)),
        ),
        encoder=ObservationConfig(size=SIZE, stack=2, width=4, embed_dim=8, centre=True),
        train=TrainConfig(steps=4, batch_size=8, trackers=(), log_every=2, eval_every=0),
        pretrainings={"premier_taco": Pretraining(objective={"name": "premier_taco", "hidden": 16, "shift": 1})},
        rows=(
            Row(name="premier_taco/frozen", pretraining="premier_taco"),
            Row(name="premier_taco/finetuned", pretraining="premier_taco", frozen=False),
            Row(name="scratch", frozen=False, clone={"lr": 3e-3}),
        ),
        clone={"steps": 30, "batch_size": 16, "lr": 1e-3, "cloning": {"hidden": 32, "shift": 0}},
        evaluation=Evaluations(every=12, episodes=5, envs=3),
        reference="premier_taco/frozen",
        resamples=50,
        processes=1,
        pretraining_processes=1,
    )


def use_squares(patch: pytest.MonkeyPatch) -> None:
    """Simulate squares in place of the suites' tasks."""
    patch.setattr(trials, "make_env", make_square)
    patch.setattr(data, "make_env", make_square)


def dmc(config: FewshotConfig, **data: Any) -> FewshotConfig:
    """As if the squares' rewards were dm_control's."""
    own = config.data.model_copy(update={"suite": "dmc", "steps": 10, **data})
    return config.model_copy(update={"data": own})
