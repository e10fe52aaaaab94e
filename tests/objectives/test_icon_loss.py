from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from counterpoint.errors import BadInputError
from counterpoint.objectives.icon import (
    farthest_point_sampling,
    grid_positions,
    icon_image_losses,
    icon_logits,
    icon_loss,
    info_nce,
    multi_level_weights,
    patch_mask,
    qualifying,
    token_shares,
)
from tests.golden.load import golden
from tests.reference import icon as reference

SIDE = 5
# The first picks of the authors' sampling in `icon_loss_a`, for each layer and image: they come from a sort that is not
# stable, so the order alone does not tell them.
STARTS = {
    "agent": [[39, 32, 37, 25], [32, 32, 22, 26], [31, 26, 39, 16]],
    "environment": [[47, 30, 10, 14], [27, 47, 36, 5], [26, 15, 5, 15]],
}


def case(
    L: int = 2, n: int = 4, D: int = 6, Na: int = 3, Ne: int = 5, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tokens [L, n, P, D] of a 5 x 5 grid, masks of which all images but the last qualify, and keys of each layer."""
    generator = torch.Generator().manual_seed(seed)
    P = SIDE * SIDE
    tokens = torch.randn(L, n, P, D, dtype=torch.float64, generator=generator).requires_grad_()
    mask = torch.rand(n, P, generator=generator) < 0.4
    mask[:, :Na], mask[:, -Ne:] = True, False
    mask[-1] = False
    positions = grid_positions(SIDE, SIDE)
    agent, environment = (
        farthest_point_sampling(side.repeat(L, 1), count, positions=positions, generator=generator).view(L, n, -1)
        for side, count in ((mask, Na), (~mask, Ne))
    )
    return tokens, mask, agent, environment


@pytest.mark.parametrize("kind", [torch.uint8, torch.bool, torch.float32])
def test_authors_token_masks(kind: torch.dtype) -> None:
    arrays, meta = golden("icon_tokenmask_a")
    found = patch_mask(arrays["pixel_mask"].to(kind), meta["hyper"]["patch"])
    assert torch.equal(found, arrays["token_mask"].bool())


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), patch=st.integers(1, 4), down=st.integers(1, 3), across=st.integers(1, 4))
def test_patch_mask_plain_loop(seed: int, patch: int, down: int, across: int) -> None:
    mask = torch.rand(down * patch, across * patch, generator=torch.Generator().manual_seed(seed)) < 0.5
    assert patch_mask(mask, patch).tolist() == reference.patch_mask(mask, patch)
    both = torch.stack([mask, ~mask])[None]
    assert torch.equal(patch_mask(both, patch)[0, 0], patch_mask(mask, patch))


def test_half_of_a_patch_is_not_most_of_it() -> None:
    mask = torch.tensor([[1, 1, 1, 0], [0, 0, 1, 1]], dtype=torch.uint8)
    assert patch_mask(mask, 2).tolist() == [False, True]
    assert patch_mask(mask, (2, 1)).tolist() == [False, False, True, False]


@pytest.mark.parametrize("shape", [(10, 8), (8, 10), (8,), (0, 8)])
def test_masks_that_do_not_divide_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadInputError, match="whole patches"):
        patch_mask(torch.zeros(shape, dtype=torch.bool), 4)


@pytest.mark.parametrize("value", [255, 0.5, float("nan")])
def test_masks_that_are_not_binary_are_refused(value: float) -> None:
    mask = torch.zeros(8, 8, dtype=torch.uint8 if value == 255 else torch.float32)
    mask[3, 3] = value
    with pytest.raises(BadInputError, match="0 and 1 alone"):
        patch_mask(mask, 4)


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_info_nce_plain_loop(batch: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    query, positive, negative = (
        torch.randn(*batch, *shape, dtype=torch.float64, generator=generator) for shape in ((5,), (3, 5), (7, 5))
    )
    ours = info_nce(query, positive, negative, temperature=0.7)
    rows = zip(query.view(-1, 5), positive.view(-1, 3, 5), negative.view(-1, 7, 5), strict=True)
    theirs = torch.stack([reference.info_nce(q, p, m, 0.7) for q, p, m in rows]).view(batch)
    torch.testing.assert_close(ours, theirs)


def test_authors_info_nce() -> None:
    arrays, meta = golden("icon_infonce_a")
    inputs = [arrays[name].clone().requires_grad_() for name in ("query", "pos", "neg")]
    unit = [x / x.norm(dim=-1, keepdim=True) for x in inputs]
    losses = info_nce(unit[0], unit[1], unit[2], temperature=meta["hyper"]["temp"])
    torch.testing.assert_close(losses, arrays["loss_per_image"], rtol=1e-9, atol=0)
    gradients = torch.autograd.grad(losses.mean(), inputs)
    for mine, name in zip(gradients, ("query", "pos", "neg"), strict=True):
        torch.testing.assert_close(mine, arrays[f"grad_{name}"], rtol=1e-7, atol=1e-12)


def authors_case() -> tuple[dict[str, Tensor], Tensor, Tensor, Tensor, Tensor]:
    arrays, meta = golden("icon_loss_a")
    mask = arrays["token_mask"].bool()
    keys = []
    for offset, (side, count, starts) in enumerate(
        [(~mask, meta["hyper"]["Ne"], STARTS["environment"]), (mask, meta["hyper"]["Na"], STARTS["agent"])]
    ):
        layers = []
        for layer, start in enumerate(starts):
            order = arrays["perms"][2 * layer + offset]
            picks = farthest_point_sampling(
                side[:, order], count, positions=grid_positions(7, 7)[order], start=order.argsort()[torch.tensor(start)]
            )
            layers.append(order[picks])
        keys.append(torch.stack(layers))
    return arrays, arrays["tokens"].clone().requires_grad_(), mask, keys[1], keys[0]


def batch_sum(tokens: Tensor, mask: Tensor, agent: Tensor, environment: Tensor, weights: Tensor) -> Tensor:
    """The authors' reduction: the sum over all images."""
    return weights @ icon_image_losses(icon_logits(tokens, mask, agent, environment), agent.shape[-1]).sum(1)


def test_authors_loss_of_every_layer_and_image() -> None:
    arrays, tokens, mask, agent, environment = authors_case()
    losses = icon_image_losses(icon_logits(tokens[:, :, 1:], mask, agent, environment), agent.shape[-1])
    torch.testing.assert_close(losses, arrays["per_image_layer_loss"], rtol=1e-9, atol=0)
    torch.testing.assert_close(losses.sum(1), arrays["per_layer_loss_official"], rtol=1e-9, atol=0)


@pytest.mark.parametrize("prefix", [0, 1])
def test_authors_total_and_its_gradient(prefix: int) -> None:
    arrays, tokens, mask, agent, environment = authors_case()
    weights = multi_level_weights(3, 0.1)
    torch.testing.assert_close(weights, arrays["layer_weights"], rtol=1e-6, atol=0)
    weights = arrays["layer_weights"].double()
    patches = tokens[:, :, 1:]
    total = batch_sum(patches, mask, agent, environment, weights)
    torch.testing.assert_close(total, arrays["total_official"], rtol=1e-9, atol=0)
    mean = icon_loss(patches, mask, agent, environment, weights=weights)
    torch.testing.assert_close(mean, arrays["total_mean_over_batch"], rtol=1e-9, atol=0)
    if prefix:
        logits = icon_logits(tokens, mask, agent, environment, prefix=1)
        total = weights @ icon_image_losses(logits, agent.shape[-1]).sum(1)
    (gradient,) = torch.autograd.grad(total, tokens)
    torch.testing.assert_close(gradient, arrays["grad_tokens_official"], rtol=1e-7, atol=1e-12)


def test_images_with_too_few_tokens() -> None:
    arrays, tokens, _, agent, environment = authors_case()
    mask = arrays["few_mask"].bool()
    assert torch.equal(qualifying(mask, agent.shape[-1], environment.shape[-1]), arrays["few_ok"])
    loss = icon_loss(tokens[:, :, 1:], mask, agent, environment)
    (gradient,) = torch.autograd.grad(loss, tokens)
    assert (gradient[:, ~arrays["few_ok"]] == 0).all()
    assert (gradient[:, arrays["few_ok"], 1:].abs().amax(-1) > 0).all()


def test_plain_loop() -> None:
    tokens, mask, agent, environment = case()
    weights = multi_level_weights(2, 0.4, like=tokens)
    ours = icon_loss(tokens, mask, agent, environment, temperature=0.5, weights=weights)
    theirs = reference.icon_loss(tokens, mask, agent, environment, 0.5, 0.4)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=0)
    (mine,), (other,) = torch.autograd.grad(ours, tokens), torch.autograd.grad(theirs, tokens)
    torch.testing.assert_close(mine, other, rtol=1e-8, atol=1e-12)


def test_gradcheck() -> None:
    tokens, mask, agent, environment = case(n=2, D=2)
    assert torch.autograd.gradcheck(lambda x: icon_loss(x, mask, agent, environment), [tokens])


def test_one_layer_and_sequences() -> None:
    tokens, mask, agent, environment = case()
    one = icon_loss(tokens[1], mask, agent[1], environment[1])
    torch.testing.assert_close(one, icon_loss(tokens[1:], mask, agent[1:], environment[1:]))
    torch.testing.assert_close(
        icon_loss(list(tokens), mask, agent, environment), icon_loss(tokens, mask, agent, environment)
    )
    shared = icon_loss(tokens, mask, agent[0], environment[0])
    again = icon_loss(tokens, mask, agent[:1].expand(2, -1, -1), environment[:1].expand(2, -1, -1))
    torch.testing.assert_close(shared, again)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(2, 5), temperature=st.floats(0.05, 5))
def test_symmetries_and_bounds(seed: int, n: int, temperature: float) -> None:
    tokens, mask, agent, environment = case(n=n, seed=seed)
    value = icon_loss(tokens, mask, agent, environment, temperature=temperature)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    shuffled = icon_loss(tokens[:, order], mask[order], agent[:, order], environment[:, order], temperature=temperature)
    torch.testing.assert_close(shuffled, value)
    # Cosines: neither the unit of length nor a rotation of the space matters,
    rotation = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64)).Q
    turned = icon_loss(7 * tokens @ rotation, mask, agent, environment, temperature=temperature)
    torch.testing.assert_close(turned, value)
    # and the agent and its environment play the same part.
    swapped = icon_loss(tokens, ~mask, environment, agent, temperature=temperature)
    torch.testing.assert_close(swapped, value)
    for sign, bound in ((1, value), (-1, value)):
        extreme = [math.log1p(count * math.exp(-2 * sign / temperature)) for count in (3, 5)]
        assert sign * bound >= sign * sum(extreme) - 1e-9


def test_chance() -> None:
    tokens, mask, agent, environment = case()
    equal = torch.ones_like(tokens)
    torch.testing.assert_close(icon_loss(equal, mask, agent, environment).item(), math.log(1 + 5) + math.log(1 + 3))


def test_as_many_tokens_as_keys_are_enough() -> None:
    """Of 10 tokens the agent has 0 to 10; 3 and 6 are to be keys."""
    mask = torch.arange(10) < torch.arange(11)[:, None]
    assert qualifying(mask, 3, 6).tolist() == [3 <= agent <= 10 - 6 for agent in range(11)]


def test_no_image_qualifies() -> None:
    tokens, mask, agent, environment = case()
    for empty in (torch.zeros_like(mask), torch.ones_like(mask)):
        loss = icon_loss(tokens, empty, agent, environment)
        assert loss == 0
        (gradient,) = torch.autograd.grad(loss, tokens)
        assert (gradient == 0).all()
        assert icon_logits(tokens, empty, agent, environment).isfinite().all()


def test_queries() -> None:
    tokens, mask, _, _ = case()
    agent, environment = (token_shares(mask).to(tokens) @ tokens).unbind(-2)
    torch.testing.assert_close(agent[1, 0], tokens[1, 0][mask[0]].mean(0))
    torch.testing.assert_close(environment[0, 2], tokens[0, 2][~mask[2]].mean(0))
    assert (agent[:, -1] == 0).all()


@pytest.mark.parametrize("gamma", [0.0, 0.1, 2.0])
def test_weights(gamma: float) -> None:
    weights = multi_level_weights(4, gamma, like=torch.zeros((), dtype=torch.float64))
    torch.testing.assert_close(weights.tolist(), reference.weights(4, gamma))
    assert weights.sum() == pytest.approx(1)


def test_half_precision_and_autocast() -> None:
    tokens, mask, agent, environment = case()
    single = tokens.detach().float()
    expected = icon_loss(single, mask, agent, environment)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(icon_loss(single, mask, agent, environment), expected)
    half = icon_loss(single.bfloat16(), mask, agent, environment)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, expected, rtol=2e-2, atol=0)


def test_makes_nothing_on_another_device() -> None:
    tokens, mask, agent, environment = (x.to("meta") for x in case())
    assert icon_loss(tokens, mask, agent, environment).is_meta


def test_what_does_not_pair_up_is_refused() -> None:
    tokens, mask, agent, environment = case()
    cases: list[Any] = [
        (tokens[:, :2], mask, agent, environment),
        (tokens[:, :, 1:], mask, agent, environment),
        (tokens, mask.float(), agent, environment),
        (tokens, mask, agent[:, :2], environment),
        (tokens, mask, agent[0], environment),
        ([], mask, agent, environment),
    ]
    for bad in cases:
        with pytest.raises(BadInputError, match="tokens, mask, keys"):
            icon_loss(*bad)
    with pytest.raises(BadInputError, match="weights"):
        icon_loss(tokens, mask, agent, environment, weights=torch.ones(3))
