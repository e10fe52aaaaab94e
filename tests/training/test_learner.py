from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from counterpoint.data.store import MemoryStore
from counterpoint.errors import BadInputError
from counterpoint.objectives.base import NonFiniteError
from counterpoint.training.learner import OptimizerConfig, learning_rate
from tests.data.sampling import sampler
from tests.training.toy import NameTheColour, learner, toy


def test_schedules() -> None:
    constant = OptimizerConfig(lr=2.0, warmup_steps=4)
    assert [learning_rate(constant, step, 10) for step in (0, 3, 4, 9)] == [0.5, 2.0, 2.0, 2.0]
    cosine = OptimizerConfig(lr=2.0, schedule="cosine", final_lr=1.0)
    assert learning_rate(cosine, 0, 10) == 2.0
    assert learning_rate(cosine, 5, 10) == pytest.approx(1.5)
    assert learning_rate(cosine, 10, 10) == pytest.approx(1.0)


def test_update_changes_parameters_and_lowers_the_loss(store: MemoryStore) -> None:
    trained = learner()
    loader = sampler(store, trained.objective.sampling(), batch_size=12, seed=0)
    before = [p.clone() for p in trained.objective.parameters()]
    batch = loader[0]
    first = trained.evaluate(batch)["loss"]
    for step in range(20):
        metrics = trained.update(batch, step)
    assert all(not torch.equal(a, b) for a, b in zip(before, trained.objective.parameters(), strict=True))
    assert trained.evaluate(batch)["loss"] < first
    assert metrics.keys() == {"loss", "half", "grad_norm/model", "lr"}
    assert metrics["half"] == pytest.approx(metrics["loss"] / 2)


def test_accumulation_equals_the_whole_batch_for_a_mean_loss(store: MemoryStore) -> None:
    whole, parts = learner(), learner(accumulate=3)
    for trained in (whole, parts):
        toy(trained).dropout.p = 0.0
    loader = sampler(store, whole.objective.sampling(), batch_size=12, seed=0)
    for step in range(3):
        norms = [trained.update(loader[step], step)["grad_norm/model"] for trained in (whole, parts)]
        assert norms[1] == pytest.approx(norms[0], rel=1e-4)  # Adam itself would divide a constant factor out
    for a, b in zip(whole.objective.parameters(), parts.objective.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_clipping_bounds_the_step_of_each_group(store: MemoryStore) -> None:
    trained = learner(clip_norm=1e-3)
    batch = sampler(store, trained.objective.sampling(), batch_size=6, seed=0)[0]
    steps: list[float] = []
    trained.optimizer.register_step_pre_hook(
        lambda *_: steps.append(
            math.sqrt(sum(float((p.grad**2).sum()) for p in trained.objective.parameters() if p.grad is not None))
        )
    )
    trained.update(batch, 0)
    assert steps == [pytest.approx(1e-3, rel=1e-3)]


def test_an_encoder_has_its_own_rate_on_the_same_schedule(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NameTheColour, "encoder_parameters", lambda self: list(self.first.parameters()))
    trained = learner(lr=1e-2, encoder_lr=1e-4, warmup_steps=2, decay_vectors=False)
    batch = sampler(store, trained.objective.sampling(), batch_size=6, seed=0)[0]
    for step, warm in ((0, 0.5), (1, 1.0), (2, 1.0)):
        before = [p.clone() for p in trained.objective.parameters()]
        assert trained.update(batch, step)["lr"] == pytest.approx(1e-2 * warm)
        moved = [
            float((p - b).detach().abs().max()) for p, b in zip(trained.objective.parameters(), before, strict=True)
        ]
        assert max(moved[:2]) < 2e-4 * warm  # Adam moves a parameter by about its rate
        assert max(moved[2:]) > 2e-3 * warm


def test_an_objective_without_an_encoder_has_no_rate_for_it() -> None:
    with pytest.raises(BadInputError, match="encoder_lr: found no trained encoder beneath heads"):
        learner(encoder_lr=1e-4)


def test_moving_average_follows_and_is_what_is_exported(store: MemoryStore) -> None:
    trained = learner(ema=0.5)
    loader = sampler(store, trained.objective.sampling(), batch_size=6, seed=0)
    expected = None
    for step in range(4):
        trained.update(loader[step], step)
        now = toy(trained).first.weight.detach().clone()
        expected = now if expected is None else 0.5 * expected + 0.5 * now
    exported = trained.exports()["first"].weight
    torch.testing.assert_close(exported, expected)


def test_non_finite_loss_stops_and_leaves_parameters_alone(store: MemoryStore) -> None:
    trained = learner()
    batch = sampler(store, trained.objective.sampling(), batch_size=6, seed=0)[0]
    with torch.no_grad():
        toy(trained).last.bias[0] = math.nan
    before = toy(trained).first.weight.detach().clone()
    with pytest.raises(NonFiniteError, match="nan"):
        trained.update(batch, 0)
    assert torch.equal(before, toy(trained).first.weight)


def test_a_gpu_skips_steps_that_are_not_finite_and_tells_when_the_state_is_saved(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = learner()
    batch = sampler(store, trained.objective.sampling(), batch_size=6, seed=0)[0]
    check = trained._finite

    def note(losses: dict[str, Tensor], step: int) -> None:  # as on a GPU, where a check is due at intervals
        check.losses, check.total = losses, check.total + torch.stack(list(losses.values())).sum()

    monkeypatch.setattr(trained, "_waits", False)
    monkeypatch.setattr(check, "add", note)
    handle = toy(trained).last.weight.register_hook(lambda grad: grad / 0)  # type: ignore[no-untyped-call]
    before = [p.detach().clone() for p in trained.objective.parameters()]
    assert isinstance(trained.update(batch, 0)["loss"], Tensor)
    assert all(torch.equal(a, b) for a, b in zip(before, trained.objective.parameters(), strict=True))
    with pytest.raises(NonFiniteError, match=r"grad_norm/model = (inf|nan)"):
        trained.state()
    handle.remove()
    trained.update(batch, 1)
    assert not any(torch.equal(a, b) for a, b in zip(before, trained.objective.parameters(), strict=True))
    assert trained.state()


def test_half_precision_computes_the_loss_in_full(store: MemoryStore) -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    from counterpoint.training.learner import ObjectiveLearner
    from tests.training.toy import NameTheColour

    AcceleratorState._reset_state(True)
    try:
        accelerator = Accelerator(cpu=True, mixed_precision="bf16")
        trained = ObjectiveLearner(NameTheColour(), OptimizerConfig(lr=1e-2), total_steps=5, accelerator=accelerator)
        batch = sampler(store, trained.objective.sampling(), batch_size=6, seed=0)[0]
        losses = [trained.update(batch, step)["loss"] for step in range(5)]
        assert losses[-1] < losses[0]
        assert toy(trained).first.weight.dtype == torch.float32
    finally:
        AcceleratorState._reset_state(True)


def test_a_moving_average_follows_fast_at_first(store: MemoryStore) -> None:
    """Its decay after update n (from 1) is 1 - (n - 1)^-power up to the greatest, by the plain recursion.

    The first two updates are copied, as Diffusion Policy's average does.
    """
    trained = learner(ema=0.7, ema_power=0.75)
    loader = sampler(store, trained.objective.sampling(), batch_size=6, seed=0)
    average: torch.Tensor | None = None
    for step in range(6):
        trained.update(loader[step], step)
        now = toy(trained).first.weight.detach().clone()
        decay = 0.0 if step == 0 else min(0.7, 1 - step**-0.75)
        average = now if average is None else decay * average + (1 - decay) * now
    assert average is not None
    exported = trained.exports()["first"].weight
    assert isinstance(exported, torch.Tensor)
    torch.testing.assert_close(exported.detach(), average)


def test_the_count_of_a_moving_average_survives(store: MemoryStore) -> None:
    whole, first, second = (learner(ema=0.99, ema_power=0.75) for _ in range(3))
    loader = sampler(store, whole.objective.sampling(), batch_size=6, seed=0)
    for step in range(4):
        torch.manual_seed(step)
        whole.update(loader[step], step)
    for step in range(4):
        torch.manual_seed(step)
        (first if step < 2 else second).update(loader[step], step)
        if step == 1:
            second.load_state(first.state())
    for a, b in zip(whole.exports()["first"].parameters(), second.exports()["first"].parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_batch_that_does_not_split_into_equal_parts_is_an_error(store: MemoryStore) -> None:
    trained = learner(accumulate=4)
    batch = sampler(store, trained.objective.sampling(), batch_size=6, seed=0)[0]
    with pytest.raises(ValueError, match="6 does not split into 4"):
        trained.update(batch, 0)


def test_a_gradient_that_is_not_finite_stops_and_leaves_parameters_alone(store: MemoryStore) -> None:
    trained = learner()
    batch = sampler(store, trained.objective.sampling(), batch_size=6, seed=0)[0]
    toy(trained).last.weight.register_hook(lambda grad: grad / 0)  # type: ignore[no-untyped-call]
    before = [p.detach().clone() for p in trained.objective.parameters()]
    with pytest.raises(NonFiniteError, match="gradient norm of model"):
        trained.update(batch, 0)
    assert all(torch.equal(a, b) for a, b in zip(before, trained.objective.parameters(), strict=True))
