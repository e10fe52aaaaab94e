from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from counterpoint.objectives.smart import ControlTransformer, SMARTConfig, causal_mask, inverse_mask
from tests.reference import smart as plain

B, L, D, A = 3, 5, 6, 2


def transformer(*, context: int = L, dropout: float = 0.0) -> ControlTransformer:
    torch.manual_seed(0)
    made = ControlTransformer(D, A, SMARTConfig(context=context, width=16, layers=3, heads=2, dropout=dropout))
    return made.double().eval()


def sequence(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(B, L, D, dtype=torch.float64, generator=generator).requires_grad_(),
        torch.randn(B, L, A, dtype=torch.float64, generator=generator).requires_grad_(),
    )


def reach(output: Tensor, *inputs: Tensor) -> list[list[bool]]:
    """Of each input, which steps have any part in the output."""
    found = torch.autograd.grad(output.sum(), inputs, retain_graph=True, allow_unused=True)
    return [[False] * L if g is None else (g.abs().amax((0, 2)) > 0).tolist() for g in found]


def up_to(count: int) -> list[bool]:
    return [step < count for step in range(L)]


def test_weights_begin_as_in_the_authors_code() -> None:
    torch.manual_seed(0)
    fresh = ControlTransformer(D, A, SMARTConfig(context=L, width=64, layers=2, heads=2))
    assert not fresh.position.any()
    begun = [fresh.body, fresh.forward_head, fresh.inverse_head, fresh.hindsight_head]
    matrices = [(name, value) for part in begun for name, value in part.named_parameters() if value.ndim > 1]
    assert len(matrices) == 2 * 4 + 3
    for name, weight in [*matrices, ("action", fresh.action.get_parameter("0.weight"))]:
        assert weight.std().item() == pytest.approx(0.02, rel=0.15), name
    biases = [value for part in begun for name, value in part.named_parameters() if name.endswith("bias")]
    assert not any(bias.any() for bias in biases)
    assert fresh.action.get_parameter("0.bias").any()  # torch's
    assert fresh.observation.weight.std() > 5 * 0.02
    first, second = (fresh.body.get_parameter(f"layers.{layer}.linear1.weight") for layer in (0, 1))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("length", [2, 4, 10])
def test_who_sees_whom(length: int) -> None:
    torch.testing.assert_close(causal_mask(length), plain.hidden(length, inverse=False))
    torch.testing.assert_close(inverse_mask(length), plain.hidden(length, inverse=True))


@pytest.mark.parametrize("t", range(L - 1))
def test_forward_prediction_is_causal(t: int) -> None:
    observations, actions = sequence()
    predicted, _ = transformer().dynamics(observations, actions)
    # o_{t+1} from o_0 ... o_t and a_0 ... a_t, all of them and no others.
    assert reach(predicted[:, t], observations, actions) == [up_to(t + 1), up_to(t + 1)]


@pytest.mark.parametrize("t", range(L - 1))
def test_inverse_prediction_does_not_see_its_answer(t: int) -> None:
    observations, actions = sequence()
    _, predicted = transformer().dynamics(observations, actions)
    assert reach(predicted[:, t], observations, actions) == [up_to(t + 2), up_to(t)]


@pytest.mark.parametrize("t", range(L - 1))
def test_later_tokens_change_nothing(t: int) -> None:
    made = transformer()
    observations, actions = (x.detach() for x in sequence())
    other_observations, other_actions = (x.detach() for x in sequence(seed=1))
    other_observations[:, : t + 2], other_actions[:, : t + 1] = observations[:, : t + 2], actions[:, : t + 1]
    for one, two in zip(
        made.dynamics(observations, actions), made.dynamics(other_observations, other_actions), strict=True
    ):
        torch.testing.assert_close(one[:, : t + 1], two[:, : t + 1])
        if t < L - 2:
            assert not torch.allclose(one[:, t + 1], two[:, t + 1])


def test_hindsight_sees_all_that_is_not_masked() -> None:
    observations, actions = sequence()
    masked_actions = torch.tensor([True, False, True, True, False]).repeat(B, 1)
    masked_observations = torch.tensor([False, True, False, True, False]).repeat(B, 1)
    predicted = transformer().hindsight(
        observations, actions, masked_observations=masked_observations, masked_actions=masked_actions
    )
    for t in range(L):
        seen = reach(predicted[:, t], observations, actions)
        assert seen == [(~masked_observations[0]).tolist(), (~masked_actions[0]).tolist()]
        assert seen[0][-1]  # the last observation


class Untouched(nn.Module):
    """A body in which no token sees another."""

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        return tokens


def test_an_action_is_told_at_its_own_token() -> None:
    made = transformer()
    made.body = Untouched()  # type: ignore[assignment]
    observations, actions = sequence()
    nothing = torch.zeros(B, L, dtype=torch.bool)
    predicted = made.hindsight(observations, actions, masked_observations=nothing, masked_actions=nothing)
    following, between = made.dynamics(observations, actions)
    for t in range(L - 1):
        here, ahead = ([step == s for step in range(L)] for s in (t, t + 1))
        none = [False] * L
        assert reach(predicted[:, t], observations, actions) == [none, here]
        assert reach(following[:, t], observations, actions) == [here, here]
        both = [a or b for a, b in zip(here, ahead, strict=True)]
        assert reach(between[:, t], observations, actions) == [both, none]


def test_masks_are_each_sample_s_own() -> None:
    made = transformer()
    observations, actions = (x.detach() for x in sequence())
    masked = torch.rand(2, B, L, generator=torch.Generator().manual_seed(2)) < 0.5
    hidden = {"masked_observations": masked[0], "masked_actions": masked[1]}
    whole = made.hindsight(observations, actions, **hidden)
    wild = made.hindsight(
        torch.where(masked[0][..., None], 1e3, observations), torch.where(masked[1][..., None], 1e3, actions), **hidden
    )
    torch.testing.assert_close(whole, wild)
    alone = torch.cat(
        [
            made.hindsight(
                observations[i : i + 1],
                actions[i : i + 1],
                masked_observations=masked[0, i : i + 1],
                masked_actions=masked[1, i : i + 1],
            )
            for i in range(B)
        ]
    )
    torch.testing.assert_close(whole, alone)


def test_shortest_context() -> None:
    made = transformer(context=2)
    observations, actions = (x[:, :2] for x in sequence())
    predicted, inverse = made.dynamics(observations, actions)
    assert (predicted.shape, inverse.shape) == ((B, 1, D), (B, 1, A))


def test_masks_are_no_part_of_the_state() -> None:
    assert not any(name.startswith("hidden") for name in transformer().state_dict())
