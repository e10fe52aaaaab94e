from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional

from counterpoint.data.draws import StartGoal
from counterpoint.data.spec import Spec
from counterpoint.data.store import MemoryStore
from counterpoint.objectives.base import Batch, Features, LossOutput, Objective
from counterpoint.training.learner import ObjectiveLearner, OptimizerConfig
from counterpoint.training.loop import Source, fit
from counterpoint.training.plan import Recipe
from counterpoint.training.run import Run
from counterpoint.training.settings import TrainConfig
from tests.data.sampling import sampler


class NameTheColour(Objective):
    """Tells instructions apart by the goal frame's mean colour."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(3, 16), nn.Linear(16, 3)
        self.dropout = nn.Dropout(0.1)

    def sampling(self) -> Spec:
        return Spec.clips(StartGoal())

    def encode(self, batch: Batch) -> Features:
        colour = batch["frames"][:, -1].float().mean(dim=(1, 2)) / 20
        return Features({"scores": self.last(self.dropout(self.first(colour).relu()))})

    def loss(self, features: Features, batch: Batch) -> LossOutput:
        loss = functional.cross_entropy(features.rows["scores"], batch["instruction_id"])
        return LossOutput(loss, {"half": loss / 2})

    def exports(self) -> dict[str, nn.Module]:
        return {"first": self.first}


def toy(learner: ObjectiveLearner) -> NameTheColour:
    assert isinstance(learner.objective, NameTheColour)
    return learner.objective


def learner(total: int = 20, **settings: object) -> ObjectiveLearner:
    config = OptimizerConfig(**{"lr": 1e-2, **settings})
    return ObjectiveLearner(NameTheColour(), config, total_steps=total, accelerator=Accelerator(cpu=True))


class ToyRecipe(Recipe):
    kind: Literal["toy"] = "toy"
    train: TrainConfig = TrainConfig()

    @property
    def loop(self) -> TrainConfig:
        return self.train


def open_run(folder: Path, **settings: Any) -> Run:
    config = TrainConfig(**{"batch_size": 6, "trackers": (), "log_every": 5, "eval_every": 5, **settings})
    return Run.open(folder, ToyRecipe(train=config), {"fingerprint": "toys"}, loop=config)


def run(store: MemoryStore, folder: Path, trained: ObjectiveLearner, **settings: Any) -> int:
    with open_run(folder, **settings) as opened:
        loader = sampler(store, trained.objective.sampling(), batch_size=6, seed=0, workers=settings.get("workers", 0))
        return fit(trained, Source(loader), opened, validation=loader)
