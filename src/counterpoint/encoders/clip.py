"""CLIP and its kin through open_clip: both towers, or the image tower alone."""

from __future__ import annotations

import difflib
import logging
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from jaxtyping import Float
from safetensors import SafetensorError
from torch import Tensor, nn

from counterpoint.encoders.towers import EncoderConfig, ImageTower, Towers
from counterpoint.encoders.weights import check_file, is_local
from counterpoint.errors import BadInputError, MissingExtraError

__all__ = ["ClipText", "build", "build_image"]


class ClipText(nn.Module):
    """An open_clip text tower behind its tokenizer; texts longer than its context are cut, as in CLIP.

    Args:
        tower: open_clip's text module.
        name: The open_clip model, which names the tokenizer.
        frozen: Whether its weights stay as they are.
    """

    def __init__(self, tower: nn.Module, name: str, *, frozen: bool) -> None:
        super().__init__()
        self.tower = tower
        self.name = name
        self.frozen = frozen
        if frozen:
            self.requires_grad_(False).eval()

    def forward(self, texts: list[str]) -> Float[Tensor, "N D"]:
        """Embed N texts."""
        device = next(self.parameters()).device
        embedded: Tensor = self.tower(_tokenizer(self.name)(texts).to(device))
        return embedded

    def train(self, mode: bool = True) -> Self:
        """Switch dropout on or off; a frozen tower stays in evaluation mode."""
        return super().train(mode and not self.frozen)


def build(config: EncoderConfig) -> Towers:
    """Both towers of `config.image_model`; CLIP's learned temperature is left to the objectives."""
    model = _create(config)
    return Towers(_image_tower(model, config), ClipText(model.text, config.image_model, frozen=config.freeze_text))


def build_image(config: EncoderConfig) -> ImageTower:
    """The image tower of `config.image_model` alone."""
    return _image_tower(_create(config), config)


def _image_tower(model: Any, config: EncoderConfig) -> ImageTower:
    import open_clip

    embed_dim = int(open_clip.get_model_config(config.image_model)["embed_dim"])
    if config.embed_dim not in (None, embed_dim):
        raise BadInputError(
            "embed_dim",
            str(config.embed_dim),
            f"{embed_dim}, the width in which both halves of {config.image_model} meet",
            "leave embed_dim out",
        )
    expects = open_clip.get_model_preprocess_cfg(model)
    size = expects["size"]
    side = size if isinstance(size, int) else size[-1]
    return ImageTower(model.visual, embed_dim, side, tuple(expects["mean"]), tuple(expects["std"]))


def _create(config: EncoderConfig) -> Any:
    """The open_clip model, with `visual` and `text` apart."""
    try:
        import open_clip
    except ModuleNotFoundError as error:
        raise MissingExtraError("open_clip", "clip") from error
    name, start = config.image_model, config.pretrained
    _check_names(name, start)
    tag = start if start is not None and not is_local(start) else None
    try:
        with _quiet():
            model = open_clip.create_model(
                name, pretrained=tag, force_custom_text=True, force_image_size=config.image_size, pretrained_text=False
            )
    except (OSError, RuntimeError) as error:
        raise BadInputError(
            "pretrained",
            f"{start!r} for {name} at {config.image_size or 'its own'} px: {_first_line(error)}",
            "weights that can be fetched or are in the local cache, and that fit",
            "use the model's own image size; without a network give a local file: "
            'pretrained = "./weights.safetensors"',
        ) from error
    if not isinstance(model, open_clip.CustomTextCLIP):
        raise BadInputError(
            "image_model",
            f"{name}, a {type(model).__name__}",
            "an open_clip model of one image and one text tower",
            "choose a CLIP or SigLIP model",
        )
    if start is not None and tag is None:
        _load_file(model, Path(start).expanduser())
    return model


def _check_names(name: str, start: str | None) -> None:
    """Both must be known, and agree on the activation the weights were trained with."""
    import open_clip

    config = open_clip.get_model_config(name)
    if config is None:
        near = difflib.get_close_matches(name, open_clip.list_models(), n=3)
        raise BadInputError(
            "image_model",
            repr(name),
            "the name of an open_clip model" + (f", such as {', '.join(near)}" if near else ""),
            "open_clip.list_models() lists them",
        )
    if start is None or is_local(start):
        return
    tags = open_clip.list_pretrained_tags_by_model(name)
    if start not in tags:
        raise BadInputError(
            "pretrained",
            f"tag {start!r}",
            f"a tag of {name}: {', '.join(tags) or 'it has none'}",
            'choose one of them, or give a local file: pretrained = "./weights.safetensors"',
        )
    quick = bool(open_clip.get_pretrained_cfg(name, start).get("quick_gelu"))
    if quick != bool(config.get("quick_gelu")):
        raise BadInputError(
            "image_model",
            name,
            f"a model {'with' if quick else 'without'} QuickGELU, with which {start!r} was trained",
            f"use {name}-quickgelu" if quick else f"use {name.removesuffix('-quickgelu')}",
        )


def _load_file(model: nn.Module, path: Path) -> None:
    """Let open_clip read a checkpoint of its own kinds, and say what is wrong with any other."""
    import open_clip

    check_file(path)
    try:
        open_clip.load_checkpoint(model, str(path), strict=True, weights_only=True)
    except (
        OSError,
        RuntimeError,
        EOFError,
        KeyError,
        AttributeError,
        SafetensorError,
        pickle.UnpicklingError,
    ) as error:
        raise BadInputError(
            path,
            _first_line(error),
            "a checkpoint of this open_clip model: safetensors, or torch tensors and no code",
            "check the file and image_model; what the authors of DecisionNCE and AcTOL released goes "
            "through `counterpoint convert` first",
        ) from error


@lru_cache(maxsize=4)
def _tokenizer(name: str) -> Any:
    import open_clip

    try:
        return open_clip.get_tokenizer(name)
    except OSError as error:
        raise BadInputError(
            "image_model",
            f"{name}, whose tokenizer cannot be fetched ({_first_line(error)})",
            "its tokenizer in the local cache, or a way to the Hub",
            "fetch it once where there is a network, or use text = 'minilm'",
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep open_clip from saying that weights are random, as asked, or repeating an error raised anyway."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:300] or type(error).__name__
