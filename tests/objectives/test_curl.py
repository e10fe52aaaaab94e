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


def test_key_encoder_follows() -> None:
    objective = small(ema=0.25)
    old = {name: value.clone() for name, value in objective.target.state_dict().items()}
    with torch.no_grad():
        for parameter in objective.encoder.parameters():
            parameter.add_(1)
    objective.encoder.mean_image.fill_(0.25)
    objective.after_step()
    online = dict(objective.encoder.named_parameters())
    for name, value in objective.target.named_parameters():
        torch.testing.assert_close(value, 0.75 * old[name] + 0.25 * online[name.removeprefix("0.")])
    assert torch.equal(objective.target.get_buffer("0.mean_image"), objective.encoder.mean_image)


def test_key_encoder_is_kept_but_not_trained() -> None:
    objective = small()
    batch = step_batch(objective.sampling(), size=24)
    assert not objective.encode(batch).rows["future"].requires_grad
    torch.autograd.backward([objective(batch).loss])
    trained = {id(p) for group in objective.param_groups().values() for p in group}
    assert trained == {id(p) for p in [*objective.encoder.parameters(), objective.W]}
    assert all(p.grad is not None for p in objective.encoder.parameters())
    assert all(p.grad is None for p in objective.target.parameters())
    assert any(name.startswith("target.") for name in objective.state_dict())
    assert list(objective.exports()) == ["encoder"]


def test_asks_for_one_step_twice() -> None:
    objective = small()
    stack = objective.encoder.config.stack
    assert objective.sampling() == Spec.steps((0, 0), 0, stack=stack, shift=2)


def test_training() -> None:
    objective = small(centred=True)
    before = [p.detach().clone() for p in objective.parameters()]
    outputs = train(objective, steps=60, size=24)
    assert all((p != old).any() for p, old in zip(objective.parameters(), before, strict=True))
    assert sum(output.loss.item() for output in outputs[-8:]) / 8 < 0.75 * outputs[0].loss.item()


def test_rejects_a_rate_outside_0_to_1() -> None:
    with pytest.raises(ValueError, match="ema"):
        CURLConfig(ema=0)
