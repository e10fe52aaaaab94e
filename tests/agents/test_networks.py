from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from counterpoint.agents import make_agent, networks
from counterpoint.agents.decision_transformer import DecisionTransformer
from counterpoint.agents.networks import EnsembleMLP, ImageTrunk, Initialisation, gelu, initialise, pairs, product
from counterpoint.agents.qrl import QRL
from counterpoint.agents.situations import SituationMLP
from counterpoint.agents.td_infonce import TDInfoNCE, TDInfoNCEConfig
from counterpoint.data.episode import Spaces

REACH = Spaces(observation=(10,), goal=(3,), action=4)


def network(
    sizes: tuple[int, ...], members: int = 2, *, activate_last: bool = False
) -> tuple[EnsembleMLP, list[Tensor], list[Tensor]]:
    """A network whose biases are large enough to matter, with its weights and biases."""
    generator = torch.Generator().manual_seed(0)
    made = EnsembleMLP(members, sizes, generator=generator, activate_last=activate_last)
    with torch.no_grad():
        for fan_in, weight, bias in zip(sizes, made.weights, made.biases, strict=False):
            weight.copy_(torch.randn(weight.shape, generator=generator) / fan_in**0.5)
            bias.normal_(generator=generator)
    return made, list(made.weights), list(made.biases)


def by_layers(x: Tensor, weights: list[Tensor], biases: list[Tensor], activate_last: bool) -> Tensor:
    """One member at a time, one layer at a time."""
    outputs = []
    for member in range(len(weights[0])):
        y = x if x.dim() == 2 else x[member]
        for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            y = functional.linear(y, weight[member].T, bias[member, 0])
            if number < len(weights) - 1 or activate_last:
                y = y.clamp(min=0)
        outputs.append(y)
    return torch.stack(outputs)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("activate_last", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_values_and_gradients_are_those_of_single_layers(
    shared: bool, activate_last: bool, dtype: torch.dtype, tolerance: float
) -> None:
    made = network((7, 32, 32, 5), activate_last=activate_last)[0].to(dtype)
    weights, biases = list(made.weights), list(made.biases)
    x = torch.randn(*([] if shared else [2]), 9, 7, generator=torch.Generator().manual_seed(1)).to(dtype)
    leaves = [x.requires_grad_(), *weights, *biases]
    seed = torch.randn(2, 9, 5, generator=torch.Generator().manual_seed(2)).to(dtype)
    found = made(x)
    expected = by_layers(x, weights, biases, activate_last)
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    for one, other in zip(
        torch.autograd.grad((found * seed).sum(), leaves),
        torch.autograd.grad((expected * seed).sum(), leaves),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=10 * tolerance, atol=10 * tolerance)


def test_under_autocast_products_are_in_bfloat16_and_results_in_float32() -> None:
    made, weights, biases = network((7, 64, 64, 5))
    x = torch.randn(9, 7, generator=torch.Generator().manual_seed(1))
    leaves = [p.requires_grad_() for p in (*weights, *biases)]
    exact = made(x)
    with torch.autocast("cpu", torch.bfloat16):
        rough = made(x)
    assert rough.dtype == torch.float32
    assert not torch.equal(rough, exact)
    torch.testing.assert_close(rough, exact, rtol=0.05, atol=0.05)
    for one, other in zip(
        torch.autograd.grad(rough.sum(), leaves), torch.autograd.grad(exact.sum(), leaves), strict=True
    ):
        assert one.dtype == torch.float32
        assert float((one - other).norm() / other.norm()) < 0.05


def test_what_is_not_finite_stays_so() -> None:
    made, _, _ = network((7, 16, 16, 5), activate_last=True)
    x = torch.zeros(4, 7)
    x[1, 2] = torch.nan
    found = made(x)
    assert bool(found[:, 1].isnan().all())
    assert bool(found[:, [0, 2, 3]].isfinite().all())


def test_gradients_are_only_of_what_wants_them() -> None:
    made = EnsembleMLP(2, [3, 8, 4], generator=torch.Generator().manual_seed(0))
    x = torch.ones(5, 3, requires_grad=True)
    torch.autograd.backward([made(x, frozen=True).sum()])
    assert x.grad is not None
    assert all(p.grad is None for p in made.parameters())
    frozen = x.grad.clone()
    x.grad = None
    torch.autograd.backward([made(x).sum()])
    assert torch.equal(frozen, x.grad)  # type: ignore[arg-type]
    assert all(p.grad is not None for p in made.parameters())


def test_one_member_and_no_hidden_layer() -> None:
    made, weights, biases = network((3, 2), members=1)
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(3))
    expected = x @ weights[0][0] + biases[0][0]
    torch.testing.assert_close(made(x)[0], expected)


def layers(agent: Any, part: str) -> Iterator[tuple[Tensor, Tensor]]:
    """The weights and biases of every layer of a fresh agent's part."""
    for module in agent.modules[part].modules():
        if isinstance(module, EnsembleMLP):
            yield from zip(module.weights, module.biases, strict=True)


@pytest.mark.parametrize(
    ("name", "critic", "policy"),
    [
        ("td_infonce", "fan_in", "fan_in"),
        ("contrastive_rl", "glorot", "fan_in"),
        ("contrastive_rl_nce", "glorot", "fan_in"),
        ("c_learning", "glorot", "fan_in"),
        ("gcbc", None, "fan_in"),
        ("ddpg_her", "glorot", "glorot"),
        ("td3_bc", "torch", "torch"),
        ("iql", "orthogonal", "orthogonal"),
        ("qrl", "glorot", "glorot"),
    ],
)
def test_fresh_agents_begin_as_their_authors_do(name: str, critic: Initialisation | None, policy: str) -> None:
    agent = make_agent({"name": name, "hidden": (64, 48)}, REACH)
    kinds = {"actor": policy} | ({"critic": critic} if critic else {}) | ({"value": policy} if name == "iql" else {})
    for part, kind in kinds.items():
        for weight, bias in layers(agent, part):
            inputs, outputs = weight.shape[1:]
            if name == "qrl" and not weight.any():
                continue  # the last layers of policy and dynamics, below
            if kind == "orthogonal":
                for member in weight:
                    gram = member.T @ member if inputs > outputs else member @ member.T
                    torch.testing.assert_close(gram, 2 * torch.eye(len(gram)), rtol=0, atol=1e-5)
            else:
                bound = {"fan_in": 3 / inputs, "glorot": 6 / (inputs + outputs), "torch": 1 / inputs}[kind] ** 0.5
                assert float(weight.detach().abs().max()) <= bound
                expected = bound / math.sqrt(3)  # the deviation of a uniform number
                noise = 4 * expected / math.sqrt(weight.numel())
                assert float(weight.detach().square().mean().sqrt()) == pytest.approx(expected, abs=noise)
            assert bool(bias.any()) == (kind == "torch")


def test_qrls_policy_and_dynamics_begin_at_zero() -> None:
    agent = make_agent({"name": "qrl", "hidden": (64, 48)}, REACH)
    assert isinstance(agent, QRL)
    loc, scale = agent.actor.gaussian(torch.randn(5, 10), torch.randn(5, 3))
    assert not loc.any()
    torch.testing.assert_close(scale, torch.full((5, 4), math.log(2)))
    state = agent.critic.states(torch.randn(5, 10))
    assert torch.equal(agent.critic.step(state, torch.randn(5, 4)), state)


def test_the_transformers_blocks_begin_as_gpt2() -> None:
    agent = make_agent({"name": "decision_transformer"}, REACH)
    assert isinstance(agent, DecisionTransformer)
    for name, value in agent.actor.body.named_parameters():
        if name.endswith("bias"):
            assert not value.any()
        elif value.dim() > 1:
            assert float(value.detach().std()) == pytest.approx(0.02, rel=0.05)


def row_deviation(kind: Initialisation) -> float:
    """The deviation along a row of a fresh critic's logits at states, actions and goals of the size of FetchReach's."""
    found = []
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        agent = TDInfoNCE(TDInfoNCEConfig(hidden=(256, 256)), REACH, seed=seed)
        initialise(agent.critic, kind, generator)
        goals = torch.tensor([1.34, 0.75, 0.53]) + 0.3 * (torch.rand(128, 3, generator=generator) - 0.5)
        states = torch.cat([goals, 0.02 * torch.randn(128, 7, generator=generator)], 1)
        actions = 2 * torch.rand(128, 4, generator=generator) - 1
        with torch.no_grad():
            phi = agent.critic.encode_actions(states, actions, goals.flip(0))
            found.append(float(pairs(phi, agent.critic.encode_futures(goals)).std(1).mean()))
    return sum(found) / len(found)


def test_a_fresh_td_infonce_critic_tells_goals_apart_as_the_authors_does() -> None:
    assert 0.015 < row_deviation("fan_in") < 0.025
    assert row_deviation("torch") < 0.85 * row_deviation("fan_in")


def test_image_trunks_have_the_authors_shape_and_weights() -> None:
    trunk = ImageTrunk((64, 64, 3), generator=torch.Generator().manual_seed(0))
    assert trunk.features == 8 * 8 * 64
    for name, value in trunk.named_parameters():
        if name.endswith("bias"):
            assert not value.any()
        else:
            deviation = 1 / math.sqrt(value[0].numel())
            assert float(value.detach().abs().max()) <= 2 * deviation
            assert float(value.detach().std()) == pytest.approx(
                0.88 * deviation, rel=0.05
            )  # what truncation leaves of it


def test_initialise_reaches_every_perceptron_of_a_module() -> None:
    made = SituationMLP(REACH, (8,), 2, torch.Generator().manual_seed(0))
    before = [weight.clone() for weight in made.body.weights]
    initialise(made, "glorot", torch.Generator().manual_seed(1))
    assert all(not torch.equal(old, new) for old, new in zip(before, made.body.weights, strict=True))


def operands(rows: int = 40, inputs: int = 160, outputs: int = 130) -> list[Tensor]:
    generator = torch.Generator().manual_seed(4)
    shapes = (2, rows, inputs), (2, inputs, outputs), (2, 1, outputs)
    return [torch.randn(*shape, generator=generator).requires_grad_() for shape in shapes]


def taken(monkeypatch: pytest.MonkeyPatch, onednn: bool = True) -> list[torch.Size]:
    """Choose whether oneDNN may be taken, and return the list to which each of its products adds its shape."""
    shapes: list[torch.Size] = []
    plain = networks._onednn

    def noted(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        shapes.append(x.shape)
        found: Tensor = plain(x, weight, bias)
        return found

    monkeypatch.setattr(networks, "ONEDNN", onednn)
    monkeypatch.setattr(networks, "_onednn", noted)
    return shapes


mkldnn = pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="torch without oneDNN")


@mkldnn
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("shape", [(40, 130, 2), (1, 130, 1), (40, 1, 1)], ids=["permuted", "one row", "one column"])
def test_a_product_of_either_library_is_that_of_exact_numbers(
    biased: bool, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    leaves = operands()[: 3 if biased else 2]
    exact = [leaf.detach().double().requires_grad_() for leaf in leaves]
    expected = torch.einsum("ebi,eio->ebo", *exact[:2]) + (exact[2] if biased else 0)
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(5))
    seed = drawn.permute(2, 0, 1).expand(expected.shape)  # gradients of these layouts reach the products
    wanted = torch.autograd.grad((expected * seed).sum(), exact)
    for onednn in (True, False):
        shapes = taken(monkeypatch, onednn)
        found = product(*leaves)
        assert bool(shapes) == onednn
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)
        for one, other in zip(torch.autograd.grad(found, leaves, seed), wanted, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-4)
        monkeypatch.undo()


@pytest.mark.skipif(not networks.ONEDNN, reason="oneDNN is taken on processors with AVX-512 alone")
@pytest.mark.parametrize("rows", [16, 17, 39])
def test_a_row_does_not_depend_on_the_number_of_rows(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = taken(monkeypatch)
    x, weight, bias = operands()
    assert torch.equal(product(x[:, :rows], weight, bias), product(x, weight, bias)[:, :rows])
    assert torch.equal(product(x[:, -rows:], weight, bias), product(x, weight, bias)[:, -rows:])
    assert len(shapes) == 4


def test_products_that_are_small_or_not_of_single_numbers_are_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = taken(monkeypatch)
    product(*operands(rows=15))
    product(*operands(inputs=128, outputs=128))
    product(*operands(inputs=511, outputs=5))
    product(*(one[:1] for one in operands(inputs=512, outputs=1)))
    product(*(one.double() for one in operands()))
    with torch.autocast("cpu", torch.bfloat16):
        product(*operands())
    assert shapes == []


@mkldnn
def test_wide_layers_of_few_outputs_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = taken(monkeypatch)
    product(*operands(inputs=512, outputs=1))
    product(*(one[:1] for one in operands(inputs=512, outputs=2)))
    assert len(shapes) == 2


def test_gelu_has_the_same_values_and_gradients_when_it_is_compiled() -> None:
    x = torch.linspace(-8, 8, 401, dtype=torch.float64, requires_grad=True)
    compiled, plain = (
        torch.compile(gelu, backend="aot_eager", fullgraph=True)(x),
        functional.gelu(x, approximate="tanh"),
    )
    torch.testing.assert_close(compiled, plain, rtol=0, atol=1e-14)
    first, second = (torch.autograd.grad(y.sum(), x) for y in (compiled, plain))
    torch.testing.assert_close(first, second, rtol=0, atol=1e-14)


@mkldnn
@pytest.mark.slow
def test_a_compiled_product_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "ONEDNN", True)
    leaves = operands()

    def plain(*each: Tensor) -> Tensor:
        return product(*each).relu()

    first, second = (torch.autograd.grad(run(*leaves).sum(), leaves) for run in (torch.compile(plain), plain))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
