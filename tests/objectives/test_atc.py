from __future__ import annotations

import pytest
import torch

from counterpoint.data.spec import Spec
from counterpoint.objectives.atc import ATC, ATCConfig
from tests.objectives.steps import assert_ranks_agree, small_encoder, step_batch, train
from tests.reference import bilinear


def small(*, centred: bool = False, ema: float = 0.01) -> ATC:
    config = ATCConfig(shift=2, compressed=16, hidden=32, ema=ema)
    return ATC(small_encoder(size=24, centred=centred), config=config)


def test_rows_one_at_a_time() -> None:
    objective = small()
    batch = step_batch(objective.sampling(), batch=4, size=24)
    views = objective.views(batch)

    def compressed(row: int, view: int) -> torch.Tensor:
        code: torch.Tensor = objective.compress(objective.encoder(views[row, view : view + 1])[0])
        return code

    anchors = [compressed(row, 0) for row in range(4)]
    p = torch.stack([c + objective.predictor(c) for c in anchors])
    future = torch.stack([compressed(row, 1) for row in range(4)])
    # p^T W c as a linear layer writes it: its weight is W transposed.
    torch.testing.assert_close(
        objective(batch).loss, bilinear.infonce(p, objective.W.weight.T, future), rtol=1e-4, atol=1e-5
    )
    assert_ranks_agree(objective, batch)


def test_asks_for_a_later_step() -> None:
    objective = small()
    stack = objective.encoder.config.stack
    assert objective.sampling() == Spec.steps((0, 3), 0, stack=stack, shift=2)


@pytest.mark.slow
def test_training() -> None:
    objective = small(centred=True)
    before = [p.detach().clone() for p in objective.parameters()]
    outputs = train(objective, steps=60, size=24, lr=3e-3)
    assert all((p != old).any() for p, old in zip(objective.parameters(), before, strict=True))
    assert sum(output.loss.item() for output in outputs[-8:]) / 8 < 0.85 * outputs[0].loss.item()
