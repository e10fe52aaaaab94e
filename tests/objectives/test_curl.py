from __future__ import annotations

import pytest
import torch

from counterpoint.data.spec import Spec
from counterpoint.objectives.curl import CURL, CURLConfig
from tests.objectives.steps import assert_ranks_agree, small_encoder, step_batch, train
from tests.reference import bilinear


def small(*, centred: bool = False, ema: float = 0.05) -> CURL:
    return CURL(small_encoder(size=24, centred=centred), config=CURLConfig(shift=2, ema=ema))


def test_rows_one_at_a_time() -> None:
    objective = small()
    batch = step_batch(objective.sampling(), batch=4, size=24)
    views = objective.views(batch)
    assert (views[:, 0] != views[:, 1]).any()  # two shifts of one observation
    query, key = (torch.cat([objective.encoder(views[row, v : v + 1]) for row in range(4)]) for v in (0, 1))
    torch.testing.assert_close(objective(batch).loss, bilinear.infonce(query, objective.W, key), rtol=1e-4, atol=1e-5)
    assert_ranks_agree(objective, batch)


def test_asks_for_one_step_twice() -> None:
    objective = small()
    stack = objective.encoder.config.stack
    assert objective.sampling() == Spec.steps((0, 0), 0, stack=stack, shift=2)


@pytest.mark.slow
def test_training() -> None:
    objective = small(centred=True)
    before = [p.detach().clone() for p in objective.parameters()]
    outputs = train(objective, steps=60, size=24)
    assert all((p != old).any() for p, old in zip(objective.parameters(), before, strict=True))
    assert sum(output.loss.item() for output in outputs[-8:]) / 8 < 0.75 * outputs[0].loss.item()


def test_rejects_a_rate_outside_0_to_1() -> None:
    with pytest.raises(ValueError, match="ema"):
        CURLConfig(ema=0)
