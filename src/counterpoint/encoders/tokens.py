"""Patch tokens of every block of a Vision Transformer."""

from __future__ import annotations

from collections import deque
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
        grid: Number of patches down and across, at the image size that the model was built for.
        prefix: Number of tokens before the first patch (class token, registers).
        batch_first: True if blocks have inputs and outputs [n, N, D] rather than [N, n, D].
        class_token: True if the first token is a class token.
    """

    blocks: tuple[nn.Module, ...]
    patches: nn.Module
    patch: tuple[int, int]
    grid: tuple[int, int]
    prefix: int
    batch_first: bool
    class_token: bool


def vit_parts(vit: nn.Module) -> ViTParts:
    """Return the parts of a Vision Transformer of timm (also inside open_clip), open_clip or transformers.

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
    found = _transformers_parts(model)
    if found is not None:
        return found
    expected = "a Vision Transformer of timm, open_clip or transformers, whose blocks pass on one token a patch"
    hint = "pass the transformer itself, such as timm.create_model('vit_small_patch16_224') or clip.visual"
    raise BadInputError("vit", f"a {type(vit).__name__}", expected, hint)


def _transformers_parts(model: Any) -> ViTParts | None:
    """Return the parts of a plain ViT of transformers (ViT, DeiT, DINOv2, DINOv3, CLIP, SigLIP), otherwise None."""
    config: Any = getattr(model, "config", None)
    holder = model if hasattr(model, "embeddings") else getattr(model, "vision_model", None)
    embeddings, depth = getattr(holder, "embeddings", None), getattr(config, "num_hidden_layers", None)
    if embeddings is None or hasattr(config, "depths") or not hasattr(config, "image_size"):  # stages merge tokens
        return None
    lists = [part for name, part in model.named_modules() if name.rpartition(".")[2] in ("layer", "layers")]
    blocks = [part for part in lists if isinstance(part, nn.ModuleList) and len(part) == depth]
    cuts = [part for part in embeddings.modules() if isinstance(part, nn.Conv2d)]
    if len(blocks) != 1 or len(cuts) != 1:
        return None
    patch, size = _pair(cuts[0].kernel_size), _pair(config.image_size)
    first = any(getattr(embeddings, name, None) is not None for name in ("cls_token", "class_embedding"))
    second = getattr(embeddings, "distillation_token", None) is not None
    prefix = first + second + int(getattr(config, "num_register_tokens", 0))
    grid = (size[0] // patch[0], size[1] // patch[1])
    return ViTParts(tuple(blocks[0]), cuts[0], patch, grid, prefix, batch_first=True, class_token=first)


class TokenTap:
    """Records the outputs of every block in the last `passes` forward passes with gradients enabled.

    Nothing is recorded under `torch.no_grad()`, and nothing is run twice or copied. A deep copy of a module that holds
    both the model and its tap gets a separate tap. Create the tap before the first compiled call of the model, because
    compiled code ignores later hooks.

    Args:
        vit: A Vision Transformer of timm, open_clip or transformers; any patch size, image size and number of prefix
            tokens.
        passes: Number of passes whose tokens are joined, such as 2 if two cameras share one network. The images of the
            first pass come first; all passes must have the same image size.

    Attributes:
        parts: The model's blocks, patch size and number of prefix tokens.

    Raises:
        BadInputError: If the model has no patch tokens.
    """

    def __init__(self, vit: nn.Module, passes: int = 1) -> None:
        self.parts = vit_parts(vit)
        require(passes >= 1, "passes", passes, "1 or more", "give the number of passes before each loss")
        self._image: tuple[int, int] | None = None
        self._kept: deque[list[Tensor]] = deque(maxlen=passes)
        self._open = False
        self._hooks = [self.parts.patches.register_forward_pre_hook(self._begin)]
        for block in self.parts.blocks:
            self._hooks.append(block.register_forward_hook(self._keep))

    @property
    def image(self) -> tuple[int, int]:
        """Height and width of the images of the last pass; before any pass, the size that the model was built for."""
        (down, across), (height, width) = self.parts.grid, self.parts.patch
        return self._image or (down * height, across * width)

    @property
    def grid(self) -> tuple[int, int]:
        """Patches down and across in the last pass; before any pass, those of the model's default image size."""
        return self.image[0] // self.parts.patch[0], self.image[1] // self.parts.patch[1]

    def take(self) -> tuple[Float[Tensor, "n P D"], ...]:
        """Return the patch tokens of every block in raster order, without the prefix tokens, and clear the record.

        Raises:
            BadInputError: If fewer than `passes` complete passes with gradients were made since the last call.
        """
        return tuple(x[:, self.parts.prefix :] for x in self.take_whole())

    def take_whole(self) -> tuple[Float[Tensor, "n N D"], ...]:
        """Return the tokens like `take`, but including the `parts.prefix` tokens before the first patch."""
        kept, most = list(self._kept), self._kept.maxlen or 1
        self.clear()
        layers, prefix = len(self.parts.blocks), self.parts.prefix
        found = f"tokens of {len(kept[-1]) if kept else 0} of its {layers} blocks in pass {len(kept)} of {most}"
        expected = f"{most} forward pass{'es' * (most > 1)} with gradients since the tokens were last taken"
        hint = "call the model on the images first, outside torch.no_grad() and reentrant gradient checkpointing"
        require(len(kept) == most and all(len(one) == layers for one in kept), "vit", found, expected, hint)
        wanted = prefix + self.grid[0] * self.grid[1]
        shape = next((tuple(x.shape) for one in kept for x in one[:1] if x.ndim != 3 or x.shape[1] != wanted), None)
        found = f"tokens of shape {shape} from {self.image} pixels"
        expected = f"[n, {wanted}, D]: {prefix} and one for each patch of {self.parts.patch} pixels"
        hint = "switch patch dropout off, and pass images of one size whose sides are multiples of the patch"
        require(shape is None, "vit", found, expected, hint)
        return tuple(kept[0]) if most == 1 else tuple(torch.cat(layer) for layer in zip(*kept, strict=True))

    def clear(self) -> None:
        """Clear recorded tokens."""
        self._kept.clear()
        self._open = False

    def close(self) -> None:
        """Remove the hooks from the model and clear all tokens."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self.clear()

    def _begin(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if torch.is_grad_enabled():
            self._kept.append([])
            self._open = True
            height, width = inputs[0].shape[-2:]
            self._image = (int(height), int(width))

    def _keep(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        # With gradient checkpointing, the backward pass runs blocks a second time; this is not recorded.
        output = output[0] if isinstance(output, tuple) else output  # a tuple in transformers before version 5
        if self._open and torch.is_grad_enabled() and isinstance(output, Tensor):
            newest = self._kept[-1]
            newest.append(output if self.parts.batch_first else output.transpose(0, 1))
            self._open = len(newest) < len(self.parts.blocks)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to copy or pickle, without the recorded tokens, which belong to one pass of this model."""
        return {**self.__dict__, "_kept": deque(maxlen=self._kept.maxlen), "_open": False}


def _pair(value: Any) -> tuple[int, int]:
    """Return a pair such as (16, 16) for a number or a pair, since timm and open_clip use both forms."""
    first, second = value if isinstance(value, tuple | list) else (value, value)
    return int(first), int(second)
