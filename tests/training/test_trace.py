from __future__ import annotations

from typing import Any

from accelerate import Accelerator

from counterpoint.encoders import DualEncoder, EncoderConfig
from counterpoint.objectives import ClipObjective, objective_class
from counterpoint.training.learner import ObjectiveLearner, OptimizerConfig
from tests.agents.test_trace import ROOT, visited
from tests.conftest import moving_square_store
from tests.data.sampling import sampler


def test_a_step_of_decisionnce_passes_through_few_files() -> None:
    kind: Any = objective_class("decisionnce_t", ClipObjective)
    objective = kind(DualEncoder(EncoderConfig(image_size=32, embed_dim=16)), kind.config_type(augment=True))
    learner = ObjectiveLearner(objective, OptimizerConfig(), total_steps=3, accelerator=Accelerator(cpu=True))
    batches = sampler(moving_square_store(), objective.sampling(), batch_size=8, seed=0)
    learner.update(batches[0], 0)
    files = set(visited(lambda: learner.update(batches[1], 1)))
    assert len(files) <= 8, sorted(files)
    assert f"{ROOT}/errors.py" not in files  # a message is put together when it is needed, and not before
