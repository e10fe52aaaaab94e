from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from counterpoint.agents.decision_transformer import DecisionTransformer, DecisionTransformerConfig, sequence_loss
from counterpoint.data.episode import Spaces
from counterpoint.errors import BadInputError
from tests.agents.baseline_batches import (
    CHOICE,
    IMAGE,
    STATE,
    acted,
    assert_learns,
    assert_refuses,
    assert_resumes,
    batch_of,
    situations,
)
from tests.reference import goal_baselines as reference

K = 5


def make(seed: int = 0, spaces: Spaces = STATE, **changes: object) -> DecisionTransformer:
    small: dict[str, object] = {"context": K, "width": 16, "layers": 2, "heads": 2, "warmup": 0, "lr": 1e-3}
    return DecisionTransformer(DecisionTransformerConfig.model_validate(small | changes), spaces, seed=seed)


def predictions(agent: DecisionTransformer, batch: dict[str, Tensor]) -> Tensor:
    keys = ("observation", "action", "return", "step", "valid")
    agent.actor.eval()
    with torch.no_grad():
        found: Tensor = agent.actor(*(batch[f"sequence_{key}"] for key in keys), batch["goal"])
    return found


def test_the_loss_equals_the_loop() -> None:
    predicted, action = torch.randn(2, 6, K, 3, dtype=torch.float64)
    valid = batch_of(STATE, 6, K=K)["sequence_valid"]
    expected = reference.sequence_loss(predicted.tolist(), action.tolist(), valid.tolist())
    assert sequence_loss(predicted, action, valid).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("key", ["observation", "action", "return"])
def test_it_does_not_look_ahead(key: str) -> None:
    agent, batch = make(), batch_of(STATE, 4, K=K)
    batch["sequence_valid"][:] = True
    before = predictions(agent, batch)
    batch[f"sequence_{key}"][:, 3] += 1
    after = predictions(agent, batch)
    assert torch.equal(before[:, :3], after[:, :3])
    # The state and the return of its own step are seen, its action, which is predicted, is not.
    assert torch.equal(before[:, 3], after[:, 3]) == (key == "action")
    assert not torch.equal(before[:, 4], after[:, 4])


def test_padding_is_never_seen() -> None:
    agent, batch = make(), batch_of(STATE, 8, K=K)
    valid = batch["sequence_valid"]
    first, loss = predictions(agent, batch), agent.evaluate(batch)["loss"]
    for key in ("observation", "action", "return"):
        batch[f"sequence_{key}"][~valid] = 7.0
    torch.testing.assert_close(predictions(agent, batch)[valid], first[valid])
    for key in ("observation", "action", "return"):
        batch[f"sequence_{key}"][~valid] = torch.nan
    assert agent.evaluate(batch)["loss"] == pytest.approx(loss, rel=1e-5)
    agent.update(batch, 0)
    assert all(torch.isfinite(parameter).all() for parameter in agent.actor.parameters())


def test_acting_step_by_step_is_predicting_the_whole_sequence() -> None:
    agent, batch = make(target_return=0.5, step_reward=-0.25), batch_of(STATE, 6, K=K)
    batch["sequence_valid"][:] = True
    goal = batch["goal"].numpy()
    for episode in range(2):
        agent.reset(range(6))
        for time in range(K):
            seen = batch["sequence_observation"][:, time].numpy() + np.float32(episode)
            batch["sequence_action"][:, time] = torch.as_tensor(acted(agent, seen, goal, explore=False))
    batch["sequence_observation"] += 1
    batch["sequence_return"] = 0.5 + 0.25 * torch.arange(K).repeat(6, 1)
    torch.testing.assert_close(predictions(agent, batch), batch["sequence_action"], rtol=1e-4, atol=1e-5)


def test_histories_longer_than_the_context_slide() -> None:
    agent, (observation, goal) = make(longest_episode=4), situations(STATE)
    agent.reset(range(len(observation)))
    inputs: list[Any] = []
    agent.actor.register_forward_pre_hook(lambda _, given: inputs.append(given))
    for _ in range(3 * K):
        action = acted(agent, observation, goal, explore=True)
    *_, step, valid, _ = inputs[-1]
    assert valid.all()
    assert step[0].tolist() == list(range(2 * K, 3 * K))
    np.testing.assert_array_equal(agent.history["action"][:, -1].numpy(), action)


def test_rows_begin_and_act_alone() -> None:
    """An episode is the same whatever row it has and whichever episodes are beside it."""
    together, alone, (observation, goal) = make(), make(), situations(STATE)
    together.reset([4, 1])
    acted(together, observation[:1], goal[:1], explore=False)  # row 0, which was never begun, begins
    for step in range(3):
        situation = {"observation": observation[[1, 2]] + step, "desired_goal": goal[[1, 2]]}
        both = together.act(situation, rows=[4, 1])
        one = acted(alone, observation[2:3] + step, goal[2:3], explore=False)
        np.testing.assert_allclose(both[1:], one, rtol=1e-5, atol=1e-6)
    together.reset([4])
    assert together.history["time"].tolist() == [1, 3, 0, 0, 0]


@pytest.mark.slow
def test_the_asked_return_chooses_the_action() -> None:
    agent = make(lr=3e-3, dropout=0.0)
    for step in range(200):
        batch = batch_of(STATE, 32, seed=step, K=K)
        batch["sequence_return"] = torch.randint(0, 2, (32, 1)).float().expand(32, K)
        sign = 2 * batch["sequence_return"][..., None] - 1
        batch["sequence_action"] = (0.8 * sign).expand(32, K, 2)
        agent.update(batch, step)
    observation, goal = situations(STATE)
    for target in (0.0, 1.0):
        asked = make(target_return=target)
        asked.load_state(agent.state())
        asked.reset(range(6))
        assert ((2 * target - 1) * acted(asked, observation, goal, explore=False) > 0.4).all()


def test_it_learns() -> None:
    assert_learns(make())


def test_the_rate_rises_over_the_warmup() -> None:
    agent = make(warmup=4, lr=1e-3)
    rates = []
    for step in range(6):
        agent.update(batch_of(STATE, K=K), step)
        rates.append(agent.optimizers["actor"].param_groups[0]["lr"])
    assert rates == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3, 1e-3, 1e-3])


def test_weights_and_dropout_leave_the_global_random_numbers_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    agent = make()
    agent.update(batch_of(STATE, K=K), 0)
    assert torch.equal(torch.rand(3), expected)


def test_it_acts() -> None:
    agent = make()
    observation, goal = situations(STATE)
    modes = []
    for _ in range(2):
        agent.reset(range(6))
        modes.append(acted(agent, observation, goal, explore=False))
    np.testing.assert_array_equal(modes[0], modes[1])
    assert modes[0].shape == (6, 2)
    assert modes[0].dtype == np.float32


def test_evaluation_draws_nothing() -> None:
    agent, batch = make(), batch_of(STATE, K=K)
    assert agent.evaluate(batch) == agent.evaluate(batch)


def test_it_resumes(tmp_path: Path) -> None:
    assert_resumes(lambda seed: make(seed), tmp_path)


def test_it_refuses() -> None:
    assert_refuses(make())
    with pytest.raises(BadInputError, match="discrete"):
        make(spaces=CHOICE)
    with pytest.raises(BadInputError, match="goal coordinates"):
        make(spaces=IMAGE)
