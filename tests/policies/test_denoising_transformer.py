from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from counterpoint.policies.networks import DenoisingTransformer, DiffusionConfig, decay_groups
from tests.reference import diffusion_networks as reference

A, TO, O, K = 3, 2, 5, 6  # noqa: E741


def small(**settings: float) -> DenoisingTransformer:
    torch.manual_seed(0)
    made = {"obs_steps": TO, "horizon": K, "executed": 1, "layers": 2, "heads": 2, "width": 8, **settings}
    return DenoisingTransformer(A, O, DiffusionConfig.model_validate({"network": "transformer", **made})).eval()


def inputs(n: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    noisy = torch.randn(n, K, A, generator=generator)
    return noisy, torch.tensor([0, 50, 99])[:n], torch.randn(n, TO, O, generator=generator)


def run(made: DenoisingTransformer, noisy: Tensor, steps: Tensor, condition: Tensor) -> Tensor:
    output: Tensor
    output, bottleneck = made(noisy, made.conditioning(steps, condition))
    assert bottleneck is None
    return output


@pytest.mark.parametrize("condition_layers", [0, 2])
def test_as_many_parameters_as_described(condition_layers: int) -> None:
    """Counted from the description.

    Attention of width d: 3 d d + 3 d in, d d + d out. Feed-forward of 4 d: 8 d d + 5 d. A norm: 2 d. A decoder layer
    has two attentions, one feed-forward and three norms; an encoder layer one, one and two. Tokens: (A + 1) d and
    (O + 1) d; places: K d and (1 + To) d; the step has no parameters; at the end a norm and (d + 1) A.
    """
    d, layers, action, seen = 256, 8, 7, 777
    attention, feedforward, norm = 4 * d * d + 4 * d, 8 * d * d + 5 * d, 2 * d
    wanted = layers * (2 * attention + feedforward + 3 * norm)
    wanted += condition_layers * (attention + feedforward + 2 * norm) if condition_layers else feedforward
    wanted += (action + 1) * d + (seen + 1) * d + 16 * d + 3 * d + norm + (d + 1) * action
    made = DenoisingTransformer(action, seen, DiffusionConfig(network="transformer", condition_layers=condition_layers))
    assert sum(parameter.numel() for parameter in made.parameters()) == wanted
    output = run(made.eval(), torch.zeros(2, 16, 7), torch.tensor([0, 99]), torch.zeros(2, 2, 777))
    assert output.shape == (2, 16, 7)


def test_one_number_at_a_time() -> None:
    made = small()
    for parameter in made.parameters():  # at their beginning the weights are too small to tell layers apart
        nn.init.normal_(parameter, std=0.4)
    noisy, steps, condition = inputs()
    output = run(made, noisy, steps, condition)
    weights = {name: value.detach() for name, value in made.state_dict().items()}
    for row in range(len(noisy)):
        wanted = reference.transformer(noisy[row], int(steps[row]), condition[row], weights, layers=2, heads=2)
        torch.testing.assert_close(output[row], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [False, True])
def test_nobody_sees_later_actions_or_observations(training: bool) -> None:
    made = small(attention_dropout=0.0).train(training)
    noisy, steps, condition = inputs()
    before = run(made, noisy, steps, condition)
    changed = noisy.clone()
    changed[:, 3] += 1
    after = run(made, changed, steps, condition)
    torch.testing.assert_close(after[:, :3], before[:, :3])
    assert bool((after[:, 3:] != before[:, 3:]).any(dim=2).all())
    seen = condition.clone()
    seen[:, 1] += 1
    after = run(made, noisy, steps, seen)
    torch.testing.assert_close(after[:, 0], before[:, 0])
    assert bool((after[:, 1:] != before[:, 1:]).any(dim=2).all())


def test_weights_begin_as_in_the_original() -> None:
    torch.manual_seed(0)
    made = DenoisingTransformer(7, 64, DiffusionConfig(network="transformer", layers=2))
    for name, parameter in made.named_parameters():
        if "norm" in name:
            assert bool((parameter == (1 if name.endswith("weight") else 0)).all())
        elif name.endswith("bias"):
            assert not bool(parameter.any())
        else:
            assert float(parameter.detach().std()) == pytest.approx(0.02, rel=0.1), name


def test_linear_and_attention_weights_alone_decay() -> None:
    made = small(condition_layers=1)
    groups = decay_groups(made)
    assert {len(group) for group in groups.values()} != {0}
    names = {id(parameter): name for name, parameter in made.named_parameters()}
    assert {id(p) for group in groups.values() for p in group} == set(names)
    assert sum(map(len, groups.values())) == len(names)
    for parameter in groups["decayed"]:
        assert parameter.ndim == 2
        assert "position" not in names[id(parameter)]
    for parameter in groups["plain"]:
        assert parameter.ndim == 1 or "position" in names[id(parameter)]


def test_frozen_and_shared_parameters_in_the_groups() -> None:
    shared, frozen = nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False)
    groups = decay_groups(nn.ModuleList([shared, nn.Sequential(shared), frozen]))
    assert groups["decayed"] == [shared.weight]
    assert groups["plain"] == [shared.bias]


def test_every_parameter_learns() -> None:
    made = small(condition_layers=1).train()
    torch.autograd.backward([run(made, *inputs()).square().mean()])
    assert all(p.grad is not None and bool(p.grad.any()) for p in made.parameters())
