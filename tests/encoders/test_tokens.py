from __future__ import annotations

import copy
import io
import weakref
from typing import Any

import pytest
import timm
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from counterpoint.encoders.tokens import TokenTap
from counterpoint.errors import BadInputError
from tests.encoders.vits import PREFIX, TRANSFORMERS, open_clip_vit, small_vit, timm_vit, transformers_vit
from tests.marks import quick


def images(n: int = 2, height: int = 32, width: int = 32) -> torch.Tensor:
    return torch.randn(n, 3, height, width, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", PREFIX)
def test_any_timm_vit(name: str) -> None:
    patch = 14 if "patch14" in name else 16
    vit = timm_vit(name, img_size=4 * patch)
    tap = TokenTap(vit)
    x = images(2, 4 * patch, 4 * patch)
    features = vit(x)
    tokens = tap.take()
    assert tap.grid == (4, 4)
    assert tap.image == (4 * patch, 4 * patch)
    assert tap.parts.prefix == PREFIX[name]
    assert tap.parts.patch == (patch, patch)
    theirs = vit.forward_intermediates(x, output_fmt="NLC", intermediates_only=True)
    for mine, other in zip(tokens, theirs, strict=True):
        assert torch.equal(mine, other)
        assert mine.requires_grad
    tap.close()
    assert torch.equal(vit(x), features)


@pytest.mark.parametrize("batch_first", [True, False])
def test_open_clip(batch_first: bool) -> None:
    vit = open_clip_vit(batch_first=batch_first)
    tap = TokenTap(vit)
    vit(images())
    tokens = tap.take()
    assert tap.grid == (4, 4)
    theirs = vit.forward_intermediates(images(), output_fmt="NLC")["image_intermediates"]
    for mine, other in zip(tokens, theirs, strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers(name: str) -> None:
    pytest.importorskip("transformers")
    vit = transformers_vit(name)
    tap = TokenTap(vit)
    theirs = vit(images(), output_hidden_states=True).hidden_states[1:]
    tokens = tap.take()
    assert (tap.grid, tap.parts.prefix, tap.parts.patch) == ((4, 4), TRANSFORMERS[name], (8, 8))
    assert tap.parts.class_token == (TRANSFORMERS[name] > 0)
    for mine, other in zip(tokens, theirs, strict=True):
        assert torch.equal(mine, other[:, TRANSFORMERS[name] :])
        assert mine.requires_grad


def test_transformers_without_patch_tokens_are_refused() -> None:
    transformers = pytest.importorskip("transformers")
    swin = transformers.SwinConfig(image_size=32, patch_size=4, embed_dim=12, depths=[1, 1], num_heads=[2, 2])
    with pytest.raises(BadInputError, match="Vision Transformer"):
        TokenTap(transformers.SwinModel(swin))


def test_several_passes_of_one_network() -> None:
    """Two cameras through one network before one loss; a third pass pushes the first out."""
    vit = small_vit()
    tap, single = TokenTap(vit, passes=2), TokenTap(vit)
    expected = []
    for n in (3, 1, 2):
        vit(images(n))
        expected.append(single.take())
    for mine, *theirs in zip(tap.take(), *expected[1:], strict=True):
        assert torch.equal(mine, torch.cat(theirs))
    vit(images(2))
    with pytest.raises(BadInputError, match="in pass 1 of 2; expected 2 forward passes"):
        tap.take()
    torch.autograd.backward([expected[2][0].sum()])
    other = small_vit(dynamic_img_size=True)
    tap = TokenTap(other, passes=2)
    other(images(1, 32, 32))
    other(images(1, 16, 16))
    with pytest.raises(BadInputError, match="images of one size"):
        tap.take()
    with pytest.raises(BadInputError, match="passes: found 0"):
        TokenTap(other, passes=0)


def test_images_of_other_sizes() -> None:
    vit = small_vit(dynamic_img_size=True)
    tap = TokenTap(vit)
    assert tap.grid == (8, 8)
    vit(images(1, 16, 24))
    assert tap.grid == (4, 6)
    assert [x.shape for x in tap.take()] == [(1, 24, 24)] * 2


def test_one_pass_and_only_the_last() -> None:
    vit = small_vit()
    calls = []
    vit.blocks[0].register_forward_hook(lambda *_: calls.append(1))
    tap = TokenTap(vit)
    vit(images(3))
    vit(images(2))
    assert len(tap.take()[0]) == 2
    assert len(calls) == 2
    with pytest.raises(BadInputError, match="0 of its 2 blocks"):
        tap.take()


def test_nothing_is_kept_without_gradients() -> None:
    vit = small_vit()
    tap = TokenTap(vit)
    with torch.no_grad():
        vit(images())
    with pytest.raises(BadInputError, match=r"outside torch\.no_grad"):
        tap.take()
    vit(images(3))
    with torch.no_grad():
        vit(images(2))
    assert len(tap.take()[0]) == 3


def test_tokens_that_nobody_takes_can_be_let_go() -> None:
    vit = small_vit()
    tap = TokenTap(vit)
    kept: list[weakref.ref[torch.Tensor]] = []
    vit.blocks[0].register_forward_hook(lambda *passed: kept.append(weakref.ref(passed[2])))
    features = vit(images())
    torch.autograd.backward([features.sum()])
    del features
    assert kept[0]() is not None
    tap.clear()
    assert kept[0]() is None
    with pytest.raises(BadInputError, match="0 of its 2 blocks"):
        tap.take()


def test_gradients_reach_the_blocks() -> None:
    vit = small_vit()
    tap = TokenTap(vit)
    vit(images())
    torch.autograd.backward([tap.take()[0].square().sum()])
    assert vit.blocks[0].mlp.fc1.weight.grad.abs().sum() > 0
    assert vit.blocks[1].mlp.fc1.weight.grad is None


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.vit = small_vit()
        self.tap = TokenTap(self.vit)


def test_copies_have_taps_of_their_own() -> None:
    holder = Holder()
    holder.vit(images(3))
    other = copy.deepcopy(holder)
    file = io.BytesIO()
    torch.save(holder, file)
    file.seek(0)
    loaded: Any = torch.load(file, weights_only=False)
    for copied in (other, loaded):
        copied.vit(images(2))
        assert len(copied.tap.take()[0]) == 2
    assert len(holder.tap.take()[0]) == 3
    assert set(holder.state_dict()) == {f"vit.{name}" for name in holder.vit.state_dict()}


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(reentrant: bool) -> None:
    vit = small_vit()
    tap = TokenTap(vit)
    vit(images())
    torch.autograd.backward([x.square().sum() for x in tap.take()])
    expected = [p.grad.clone() for p in vit.blocks.parameters()]
    vit.zero_grad()
    if reentrant:
        for block in list(vit.blocks):
            block.forward = lambda x, own=block.forward: checkpoint(own, x, use_reentrant=True)
    else:
        vit.set_grad_checkpointing()
    features = vit(images())
    torch.autograd.backward([*(x.square().sum() for x in tap.take()), 0 * features.sum()])
    for parameter, gradient in zip(vit.blocks.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
    with pytest.raises(BadInputError):  # what ran again in the backward pass is not kept
        tap.take()


def test_blocks_that_run_again_in_the_backward_pass_are_not_recorded() -> None:
    vit = small_vit()
    tap = TokenTap(vit)
    vit.set_grad_checkpointing()
    with set_checkpoint_early_stop(False):  # whole blocks run again, hooks included
        features = vit(images())
        torch.autograd.backward([features.sum()])
    assert len(tap.take()) == 2


def test_autocast() -> None:
    vit = small_vit()
    tap = TokenTap(vit)
    vit(images())
    expected = tap.take()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        vit(images())
    torch.testing.assert_close(tap.take()[1].float(), expected[1], atol=0.1, rtol=0)


@pytest.mark.parametrize(
    "name",
    quick(
        ["resnet18", "convnext_atto"],
        ["resnet18", "swin_tiny_patch4_window7_224", "efficientnet_b0", "mixer_s16_224", "convnext_atto"],
    ),
)
def test_models_without_patch_tokens_are_refused(name: str) -> None:
    with pytest.raises(BadInputError, match="Vision Transformer"):
        TokenTap(timm.create_model(name))


def test_dropped_patches_are_refused() -> None:
    vit = small_vit(patch_drop_rate=0.5)
    tap = TokenTap(vit)
    vit.train()
    vit(images())
    with pytest.raises(BadInputError, match="patch dropout"):
        tap.take()
