"""Patch tokens of every block of a Vision Transformer, from the forward pass that is made anyway."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from counterpoint.errors import BadInputError

__all__ = ["TokenTap", "ViTParts", "vit_parts"]


@dataclass(frozen=True)
class ViTParts:
    """Where a Vision Transformer keeps what its tokens are made of.

    Attributes:
        blocks: Transformer blocks in order.
        patches: The module that takes pictures [n, 3, H, W] and cuts them into patches.
        patch: Height and width of a patch, in pixels.
        grid: Patches down and across at the size the model was built for.
        prefix: Tokens before the first patch: class token, registers.
        batch_first: Whether blocks pass on [n, N, D] rather than [N, n, D].
        class_token: Whether the first token is a class token.
    """

    blocks: tuple[nn.Module, ...]
    patches: nn.Module
    patch: tuple[int, int]
    grid: tuple[int, int]
    prefix: int
    batch_first: bool
    class_token: bool


def vit_parts(vit: nn.Module) -> ViTParts:
    """The parts of timm's Vision Transformers (also inside open_clip) and of open_clip's own.

    Raises:
        BadInputError: Any other model: one without patch tokens, such as a ResNet or a Swin Transformer.
    """
    model: Any = vit
    patches = getattr(model, "patch_embed", None)
    blocks = getattr(model, "blocks", None)
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
    raise BadInputError(
        "vit",
        found=f"a {type(vit).__name__}",
        expected="a Vision Transformer of timm or open_clip, whose blocks pass on one token a patch",
        mend="pass the transformer itself, such as timm.create_model('vit_small_patch16_224') or clip.visual",
    )


class TokenTap:
    """Keeps what every block of a Vision Transformer gave in the last forward pass with gradients enabled.

    Nothing is kept under `torch.no_grad()`, and nothing is run twice or copied. A deep copy of a module that holds
    both the model and its tap holds a tap of its own. Tap a model before its first compiled call: compiled code
    does not look for hooks again.

    Args:
        vit: A Vision Transformer of timm or open_clip; any patch size, image size and number of prefix tokens.

    Attributes:
        parts: The model's blocks, patch size and number of prefix tokens.

    Raises:
        BadInputError: The model has no patch tokens.
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
        """Height and width of the pictures of the last pass, before any those the model was built for."""
        (down, across), (height, width) = self.parts.grid, self.parts.patch
        return self._image or (down * height, across * width)

    @property
    def grid(self) -> tuple[int, int]:
        """Patches down and across of the last pass, before any those the model was built for."""
        return self.image[0] // self.parts.patch[0], self.image[1] // self.parts.patch[1]

    def take(self) -> tuple[Float[Tensor, "n P D"], ...]:
        """Patch tokens of every block in raster order, without the prefix; forgets them.

        Raises:
            BadInputError: No pass with gradients has been made since the last call, or it was not whole.
        """
        return tuple(x[:, self.parts.prefix :] for x in self.take_whole())

    def take_whole(self) -> tuple[Float[Tensor, "n N D"], ...]:
        """`take` with the `parts.prefix` tokens before the first patch still there."""
        tokens = tuple(self._kept)
        self.forget()
        layers = len(self.parts.blocks)
        if len(tokens) != layers:
            raise BadInputError(
                "vit",
                found=f"tokens of {len(tokens)} of its {layers} blocks",
                expected="one forward pass with gradients since the tokens were last taken",
                mend="call the model on the pictures first, outside torch.no_grad() and without reentrant "
                "gradient checkpointing",
            )
        wanted = self.parts.prefix + self.grid[0] * self.grid[1]
        if tokens[0].ndim != 3 or tokens[0].shape[1] != wanted:
            raise BadInputError(
                "vit",
                found=f"tokens of shape {tuple(tokens[0].shape)} from {self.image} pixels",
                expected=f"[n, {wanted}, D]: {self.parts.prefix} and one for each patch of {self.parts.patch} pixels",
                mend="switch patch dropout off, and pass pictures whose sides are multiples of the patch",
            )
        return tokens

    def forget(self) -> None:
        """Let go of tokens that nobody took: those of a pass that was made for something else."""
        self._kept, self._open = [], False

    def close(self) -> None:
        """Leave the model as it was before; what was kept is forgotten."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self.forget()

    def _begin(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if torch.is_grad_enabled():
            self._kept, self._open = [], True
            height, width = inputs[0].shape[-2:]
            self._image = (int(height), int(width))

    def _keep(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        # A backward pass that runs checkpointed blocks again begins no pass.
        if self._open and torch.is_grad_enabled() and isinstance(output, Tensor):
            self._kept.append(output if self.parts.batch_first else output.transpose(0, 1))
            self._open = len(self._kept) < len(self.parts.blocks)

    def __getstate__(self) -> dict[str, Any]:
        """For copies and files: all but the tokens, which belong to one pass of one model."""
        return {**self.__dict__, "_kept": [], "_open": False}


def _pair(value: Any) -> tuple[int, int]:
    """Timm and open_clip write 16 as well as (16, 16)."""
    first, second = value if isinstance(value, tuple | list) else (value, value)
    return int(first), int(second)
