from __future__ import annotations

import copy
import logging
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from counterpoint.errors import BadInputError
from counterpoint.objectives.icon import (
    LOG_EVERY,
    ICon,
    IConConfig,
    farthest_point_sampling,
    grid_positions,
    icon_image_losses,
    icon_logits,
    multi_level_weights,
    patch_mask,
)
from tests.encoders.vits import open_clip_vit, small_vit, timm_vit, transformers_vit
from tests.golden.load import golden
from tests.marks import quick

SMALL = IConConfig(agent_keys=4, environment_keys=10)
STARTS = {  # of the authors' sampling in `icon_vit_a`, for each layer and image, as numbers of tokens
    "agent": [[9, 9, 9], [7, 15, 15], [7, 13, 9]],
    "environment": [[12, 12, 12], [3, 3, 3], [0, 6, 0]],
}


def images(n: int = 4, size: int = 32) -> Tensor:
    return torch.randn(n, 3, size, size, generator=torch.Generator().manual_seed(0))


def masks(n: int = 4, size: int = 32) -> Tensor:
    """A square of half the side in every image, somewhere else in each."""
    made = torch.zeros(n, size, size, dtype=torch.bool)
    for i in range(n):
        made[i, 2 * i : 2 * i + size // 2, size // 4 : size // 4 + size // 2] = True
    return made


def order(icon: ICon, n: int = 4) -> Tensor:
    return torch.rand(n, *icon.order_shape, generator=torch.Generator().manual_seed(0))


def gradients(module: torch.nn.Module) -> list[Tensor]:
    return [p.grad for p in module.parameters() if p.grad is not None]


def test_authors_vit() -> None:
    arrays, meta = golden("icon_vit_a")
    hyper = meta["hyper"]
    vit = small_vit(hyper["img"], hyper["patch"], embed_dim=16, depth=3, num_heads=2).double()
    vit.load_state_dict({name[2:]: value for name, value in arrays.items() if name.startswith("W.")})
    icon = ICon(vit, IConConfig(agent_keys=hyper["Na"], environment_keys=hyper["Ne"]))
    torch.testing.assert_close(vit(arrays["image"]), arrays["cls_feature"], rtol=1e-9, atol=1e-12)
    mask, tokens = patch_mask(arrays["pixel_mask"], hyper["patch"]), icon.tap.take()
    keys = []
    for offset, (side, count, starts) in enumerate(
        [(~mask, hyper["Ne"], STARTS["environment"]), (mask, hyper["Na"], STARTS["agent"])]
    ):
        orders = arrays["perms"][offset::2]
        keys.append(
            torch.stack(
                [
                    order[
                        farthest_point_sampling(
                            side[:, order],
                            count,
                            positions=grid_positions(4, 4)[order],
                            start=order.argsort()[torch.tensor(start)],
                        )
                    ]
                    for order, start in zip(orders, starts, strict=True)
                ]
            )
        )
    losses = icon_image_losses(icon_logits(tokens, mask, keys[1], keys[0]), hyper["Na"])
    loss = multi_level_weights(len(losses), like=losses) @ losses.sum(1)
    torch.testing.assert_close(loss, arrays["loss_official"], rtol=1e-6, atol=0)
    torch.autograd.backward([loss])
    for name, parameter in vit.named_parameters():
        if f"grad.{name}" in arrays and parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, arrays[f"grad.{name}"], rtol=1e-6, atol=1e-6)


def test_five_lines() -> None:
    vit = small_vit()
    icon = ICon(vit, SMALL)
    features = vit(images())
    out = icon(masks())
    loss = features.square().mean() + icon.config.weight * out.loss
    torch.autograd.backward([loss])
    assert set(out.metrics) == {"qualifying", "last_layer_loss", "categorical_accuracy", "logits_pos", "logits_neg"}
    assert out.metrics["qualifying"] == 1
    assert 0 <= out.metrics["categorical_accuracy"] <= 1
    assert not list(icon.parameters())
    assert not icon.state_dict()
    assert vit.blocks[0].attn.qkv.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    "make", [small_vit, lambda: transformers_vit("ViT", patch_size=4)], ids=["timm", "transformers"]
)
def test_two_passes_of_one_network_are_one_pass_over_both_cameras(make: Any) -> None:
    found = []
    torch.manual_seed(0)
    vit = make()
    for parts in ([4], [3, 1]):
        icon = ICon(vit, SMALL, passes=len(parts))
        for part in torch.split(images(), parts):
            vit(part)
        out = icon(masks(), order(icon))
        vit.zero_grad()
        torch.autograd.backward([out.loss])
        found.append((out.loss.detach(), gradients(vit)))
        icon.tap.close()
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize(
    "settings_of",
    quick(
        [{"keys": "random", "keys_per_layer": True}],
        [
            {},
            {"keys": "random"},
            {"keys_per_layer": True},
            {"keys": "random", "keys_per_layer": True},
            {"levels": "last"},
        ],
    ),
)
def test_training_smoke(settings_of: dict[str, Any]) -> None:
    torch.manual_seed(0)
    vit = small_vit()
    icon = ICon(vit, SMALL.model_copy(update=settings_of))
    before = copy.deepcopy(vit.state_dict())
    optimiser = torch.optim.Adam(vit.parameters(), lr=2e-3)
    losses, outs = [], []
    for _ in range(40):
        vit(images())
        out = icon(masks())
        optimiser.zero_grad()
        torch.autograd.backward([out.loss])
        optimiser.step()
        losses.append(out.loss.item())
        outs.append(out.metrics)
    assert not torch.equal(before["blocks.0.attn.qkv.weight"], vit.state_dict()["blocks.0.attn.qkv.weight"])
    assert losses[-1] < 0.7 * losses[0]
    assert outs[-1]["categorical_accuracy"] > 0.9
    assert outs[-1]["logits_pos"] > outs[-1]["logits_neg"]


def test_keys_of_every_kind() -> None:
    vit = small_vit()
    mask = patch_mask(masks(), 4)
    for kind in ("farthest", "random"):
        icon = ICon(vit, SMALL.model_copy(update={"keys": kind}))
        agent, environment = icon.sample_keys(mask, order(icon))
        assert agent.shape == (4, 4)
        assert environment.shape == (4, 10)
        assert mask.gather(1, agent).all()
        assert not mask.gather(1, environment).any()
        again = icon.sample_keys(mask, order(icon))
        assert torch.equal(agent, again[0])
    icon = ICon(vit, SMALL.model_copy(update={"keys_per_layer": True}))
    agent, environment = icon.sample_keys(mask, order(icon))
    assert agent.shape == (2, 4, 4)
    assert environment.shape == (2, 4, 10)
    assert not torch.equal(agent[0], agent[1])


@pytest.mark.parametrize("batch_first", [True, False])
def test_open_clip(batch_first: bool) -> None:
    vit = open_clip_vit(batch_first=batch_first)
    icon = ICon(vit, IConConfig(agent_keys=3, environment_keys=5))
    vit(images())
    out = icon(masks())
    torch.autograd.backward([out.loss])
    assert out.loss > 0
    assert vit.conv1.weight.grad.isfinite().all()


def test_only_the_last_layer() -> None:
    found = {}
    for levels in ("all", "last"):
        torch.manual_seed(0)
        vit = small_vit()
        icon = ICon(vit, SMALL.model_copy(update={"levels": levels}))
        vit(images())
        found[levels] = icon(masks(), order(icon))
    torch.testing.assert_close(found["last"].loss, found["all"].metrics["last_layer_loss"])
    assert found["last"].loss != found["all"].loss


@settings(max_examples=15, deadline=None)
@given(fill=st.lists(st.sampled_from(["square", "empty", "full", "pixel"]), min_size=1, max_size=4))
def test_images_that_do_not_qualify_get_no_gradient(fill: list[str]) -> None:
    vit = small_vit()
    icon = ICon(vit, SMALL)
    own = masks(len(fill))
    for i, kind in enumerate(fill):
        if kind != "square":
            own[i] = kind == "full"
            own[i, 0, 0] |= kind == "pixel"
    x = images(len(fill)).requires_grad_()
    vit(x)
    out = icon(own)
    torch.autograd.backward([out.loss])
    assert x.grad is not None
    good = torch.tensor([kind == "square" for kind in fill])
    assert out.metrics["qualifying"] == good.float().mean()
    assert (x.grad[~good] == 0).all()
    assert (x.grad[good].abs().amax((1, 2, 3)) > 0).all()
    assert all(value.isfinite() for value in (out.loss, *out.metrics.values()))
    assert all(gradient.isfinite().all() for gradient in gradients(vit))
    if not good.any():
        assert out.loss == 0


def test_batches_without_a_qualifying_image_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    vit = small_vit(depth=1)
    icon = ICon(vit, SMALL)
    empty = torch.zeros(1, 32, 32, dtype=torch.bool)
    x = images(1)
    with caplog.at_level(logging.WARNING):
        for _ in range(LOG_EVERY + 1):
            vit(x)
            icon(empty)
        vit(x)
        icon(masks(1))
    assert [record.getMessage()[:52] for record in caplog.records] == [
        "ICon: in 1 of 1 batches no image had 4 tokens of the",
        "ICon: in 101 of 101 batches no image had 4 tokens of",
    ]


def test_no_image_could_ever_qualify() -> None:
    with pytest.raises(BadInputError, match="10 \\+ 50 keys of 4 x 4 = 16 tokens"):
        ICon(small_vit(patch=8))
    vit = small_vit(dynamic_img_size=True)
    icon = ICon(vit, SMALL)
    vit(images(2, 12))
    with pytest.raises(BadInputError, match="3 x 3 = 9 tokens"):
        icon(masks(2, 12))


def test_bad_masks_are_refused() -> None:
    vit = small_vit()
    icon = ICon(vit, SMALL)
    missing: Any = None
    grey = masks().to(torch.uint8) * 255
    for bad, message in (
        (masks(3), r"\[4, 32, 32\]"),
        (masks(4, 64), r"\[4, 32, 32\]"),
        (masks()[:, None], r"\[4, 32, 32\]"),
        (missing, "NoneType"),
        (grey, "0 and 1 alone"),
    ):
        vit(images())
        with pytest.raises(BadInputError, match=message):
            icon(bad)
    vit(images())
    first = icon(masks().to(torch.uint8), order(icon))
    vit(images())
    torch.testing.assert_close(first.loss, icon(masks(), order(icon)).loss)


def test_a_model_without_patch_tokens_is_refused() -> None:
    import timm

    with pytest.raises(BadInputError, match="Vision Transformer"):
        ICon(timm.create_model("resnet18"))


def test_without_a_forward_pass() -> None:
    icon = ICon(small_vit(), SMALL)
    with pytest.raises(BadInputError, match="forward pass"):
        icon(masks())


def test_copies_and_moving_averages() -> None:
    holder = torch.nn.ModuleDict({"vit": small_vit()})
    holder["icon"] = ICon(holder["vit"], SMALL)
    holder["vit"](images())
    other = copy.deepcopy(holder)
    average = torch.optim.swa_utils.AveragedModel(holder)
    average.update_parameters(holder)
    holder["icon"](masks())
    other["vit"](images(2))
    assert other["icon"](masks(2)).loss > 0


@pytest.mark.parametrize("name", ["vit_small_patch14_reg4_dinov2", "vit_base_patch16_siglip_224"])
def test_autocast(name: str) -> None:
    patch = 14 if "patch14" in name else 16
    vit = timm_vit(name, img_size=8 * patch)
    icon = ICon(vit, SMALL)
    x, own = images(2, 8 * patch), masks(2, 8 * patch)
    vit(x)
    expected = icon(own, order(icon, 2)).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        vit(x)
        found = icon(own, order(icon, 2)).loss
    assert found.dtype == torch.float32
    torch.autograd.backward([found])
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0)


@pytest.mark.slow
def test_compiled() -> None:
    vit = small_vit(depth=1)
    icon = ICon(vit, SMALL)
    compiled: Any = torch.compile(vit, backend="aot_eager")
    found = []
    for model in (vit, compiled, compiled):
        vit.zero_grad()
        features = model(images())
        out = icon(masks(), order(icon))
        torch.autograd.backward([out.loss + features.square().mean()])
        found.append([out.loss.detach(), *(p.clone() for p in gradients(vit))])
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])
