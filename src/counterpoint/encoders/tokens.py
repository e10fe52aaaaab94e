"""Patch tokens of every block of a Vision Transformer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterpoint.errors import BadInputError, require


@dataclass(frozen=True)
class ViTParts:
    """The parts of a Vision Transformer that make its tokens.

    Attributes:
        blocks: Transformer blocks in order.
        patches: The module that cuts images [n, 3, H, W] into patches.
        patch: Height and width of a patch, in pixels.
        grid: Patches down and across at the size the model was built for.
        prefix: Tokens before the first patch: class token, registers.
        batch_first: True when blocks pass on [n, N, D] rather than [N, n, D].
        class_token: True when the first token is a class token.
    """

    blocks: tuple[nn.Module, ...]
    patches: nn.Module
    patch: tuple[int, int]
    grid: tuple[int, int]
    prefix: int
    batch_first: bool
    class_token: bool


def vit_parts(vit: nn.Module) -> ViTParts:
    """Return the parts of a Vision Transformer of timm (also inside open_clip) or of open_clip.

    Raises:
        BadInputError: For any other model, such as a ResNet or a Swin Transformer, which has no patch tokens.
    """
    model: Any = vit
    patches, blocks = getattr(model, "patch_embed", None), getattr(model, "blocks", None)
    prefix = getattr(model, "num_prefix_tokens", None)
    cuts = all(hasattr(patches, name) for name in ("patch_size", "grid_size"))
    if cuts and isinstance(blocks, nn.Sequential | nn.ModuleList) and isinstance(prefix, int):
        return ViTParts(
            tuple(blocks),
            model.patch_embed,
            _pair(model.patch_embed.patch_size),
            _pair(model.patch_embed.grid_size),
            prefix,
            batch_first=True,
            class_token=getattr(model, "cls_token", None) is not None,
        )
    if all(hasattr(model, name) for name in ("transformer", "class_embedding", "conv1", "grid_size")):
        return ViTParts(
            tuple(model.transformer.resblocks),
            model.conv1,
            _pair(model.patch_size),
            _pair(model.grid_size),
            1,
            batch_first=model.transformer.batch_first,
            class_token=True,
        )
    expected = "a Vision Transformer of timm or open_clip, whose blocks pass on one token a patch"
    hint = "pass the transformer itself, such as timm.create_model('vit_small_patch16_224') or clip.visual"
    raise BadInputError("vit", f"a {type(vit).__name__}", expected, hint)


class TokenTap:
    """A recorder of the outputs of every block in the last forward pass with gradients enabled.

    Nothing is recorded under `torch.no_grad()`, and nothing is run twice or copied. A deep copy of a module that
    holds both the model and its tap holds a tap of its own. Tap a model before its first compiled call: compiled
    code ignores later hooks.

    Args:
        vit: A Vision Transformer of timm or open_clip; any patch size, image size and number of prefix tokens.

    Attributes:
        parts: The model's blocks, patch size and number of prefix tokens.

    Raises:
        BadInputError: When the model has no patch tokens.
    """

    def __init__(self, vit: nn.Module) -> None:
        self.parts = vit_parts(vit)
        self._image: tuple[int, int] | None = None
        self._kept: list[Tensor] = []
        self._open = False
        self._hooks = [self.parts.patches.register_forward_pre_hook(self._begin)]
        for block in self.parts.blocks:
            self._hooks.append(block.register_forward_hook(self._keep))

    @property
    def image(self) -> tuple[int, int]:
        """Height and width of the images of the last pass, or before one those the model was built for."""
        (down, across), (height, width) = self.parts.grid, self.parts.patch
        return self._image or (down * height, across * width)

    @property
    def grid(self) -> tuple[int, int]:
        """Patches down and across: of the last pass, or before any of the size the model was built for."""
        return self.image[0] // self.parts.patch[0], self.image[1] // self.parts.patch[1]

    def take(self) -> tuple[Float[Tensor, "n P D"], ...]:
        """Return the patch tokens of every block in raster order, without the prefix, and clear them.

        Raises:
            BadInputError: When no whole pass with gradients was made since the last call.
        """
        return tuple(x[:, self.parts.prefix :] for x in self.take_whole())

    def take_whole(self) -> tuple[Float[Tensor, "n N D"], ...]:
        """Return the tokens as `take`, with the `parts.prefix` tokens before the first patch."""
        tokens = tuple(self._kept)
        self.clear()
        layers, prefix = len(self.parts.blocks), self.parts.prefix
        expected = "one forward pass with gradients since the tokens were last taken"
        hint = "call the model on the images first, outside torch.no_grad() and reentrant gradient checkpointing"
        require(len(tokens) == layers, "vit", f"tokens of {len(tokens)} of its {layers} blocks", expected, hint)
        wanted, shape = prefix + self.grid[0] * self.grid[1], tuple(tokens[0].shape)
        found = f"tokens of shape {shape} from {self.image} pixels"
        expected = f"[n, {wanted}, D]: {prefix} and one for each patch of {self.parts.patch} pixels"
        hint = "switch patch dropout off, and pass images whose sides are multiples of the patch"
        require(len(shape) == 3 and shape[1] == wanted, "vit", found, expected, hint)
        return tokens

    def clear(self) -> None:
        """Clear tokens that were not taken."""
        self._kept, self._open = [], False

    def close(self) -> None:
        """Remove the hooks from the model and clear all tokens."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self.clear()

    def _begin(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if torch.is_grad_enabled():
            self._kept, self._open = [], True
            height, width = inputs[0].shape[-2:]
            self._image = (int(height), int(width))

    def _keep(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        # The backward pass of checkpointed blocks runs them again and is not recorded.
        if self._open and torch.is_grad_enabled() and isinstance(output, Tensor):
            self._kept.append(output if self.parts.batch_first else output.transpose(0, 1))
            self._open = len(self._kept) < len(self.parts.blocks)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies and files, without the tokens, which belong to one pass of one model."""
        return {**self.__dict__, "_kept": [], "_open": False}


def _pair(value: Any) -> tuple[int, int]:
    """Return a pair for 16 as well as for (16, 16), which timm and open_clip both write."""
    first, second = value if isinstance(value, tuple | list) else (value, value)
    return int(first), int(second)
