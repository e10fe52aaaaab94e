"""Towers of CLIP and similar models of open_clip: both towers, or only the image tower."""

from __future__ import annotations

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

from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import ImageTower, check_length, without_unknown
from counterpoint.encoders.towers import as_trained, backbone_of, check_tagged
from counterpoint.encoders.weights import check_file, note_hub, tag_or_file
from counterpoint.errors import BadInputError, import_extra, require, require_known


class ClipText(nn.Module):
    """An open_clip text tower with its tokenizer; texts longer than its context raise an error.

    Args:
        tower: open_clip's text module.
        name: Name of the open_clip model, which determines the tokenizer.
        frozen: True to keep the tower's weights fixed.
        head: A learned map of the tower's embeddings.
    """

    def __init__(self, tower: nn.Module, name: str, *, frozen: bool, head: nn.Module) -> None:
        super().__init__()
        self.tower, self.name, self.frozen, self.projection = tower, name, frozen, head
        self._checked: set[str] = set()
        if frozen:
            self.tower.requires_grad_(False).eval()

    def forward(self, texts: list[str]) -> Float[Tensor, "N D"]:
        """Embed N texts."""
        device = next(self.parameters()).device
        tokenizer = _tokenizer(self.name)
        for text in {*texts} - self._checked:
            longer = {"context_length": tokenizer.context_length + 1}  # one more token: padding, if the text fits
            fits = tokenizer([text], **longer)[0, -1] == tokenizer(["a"], **longer)[0, -1]
            check_length(text, fits, f"{tokenizer.context_length} tokens, which {self.name} reads")
            self._checked.add(text)
        embedded: Tensor = self.projection(self.tower(tokenizer(texts).to(device)))
        return embedded

    def tokens(self, text: str) -> tuple[int | None, ...]:
        """Return the tokens that the tower reads, without padding; `None` stands for a piece that it does not know."""
        tokenizer = _tokenizer(self.name)
        found, inner = tokenizer([text])[0].tolist(), getattr(tokenizer, "tokenizer", None)
        pad = getattr(inner, "pad_token_id", 0)
        while found and found[-1] == pad:
            found.pop()
        return without_unknown(inner, found)

    def train(self, mode: bool = True) -> Self:
        """Switch dropout on or off; a frozen tower stays in evaluation mode."""
        return super().train(mode and not self.frozen)


def build(config: EncoderConfig) -> tuple[ImageTower, ClipText]:
    """Return both towers of `config.image_model`, without CLIP's learned temperature; objectives have their own.

    With `freeze_image` a linear head follows each tower. If `embed_dim` is not given, both heads start as the identity,
    so that training starts from CLIP's similarities.
    """
    model = _create(config)
    image = _image_tower(model, config)
    width = _width(config)
    head: nn.Module = nn.Linear(width, image.embed_dim) if config.freeze_image else nn.Identity()
    if config.freeze_image and config.pool == 1 and image.embed_dim == width:
        for linear in (head, image.module.projection):
            assert isinstance(linear, nn.Linear)
            nn.init.eye_(linear.weight)
            nn.init.zeros_(linear.bias)
    return image, ClipText(model.text, config.image_model, frozen=config.freeze_text, head=head)


def build_image(config: EncoderConfig) -> ImageTower:
    """Return only the image tower of `config.image_model`."""
    return _image_tower(_create(config), config)


def _width(config: EncoderConfig) -> int:
    import open_clip

    return int(open_clip.get_model_config(config.image_model)["embed_dim"])


def _image_tower(model: Any, config: EncoderConfig) -> ImageTower:
    import open_clip

    D, module = _width(config), model.visual
    recorded = open_clip.get_model_preprocess_cfg(model)
    side = recorded["size"] if isinstance(recorded["size"], int) else recorded["size"][-1]
    if config.freeze_image:
        D = config.embed_dim or D
        module = backbone_of(module, config, D, side)
    expected = f"{D}, the width in which both halves of {config.image_model} meet"
    require(config.embed_dim in (None, D), "embed_dim", config.embed_dim, expected, "leave embed_dim out")
    return as_trained(module, D, side, recorded, config)


def _create(config: EncoderConfig) -> Any:
    """Return the open_clip model, with `visual` and `text` as separate modules."""
    open_clip = import_extra("open_clip", "clip")
    name, start = config.image_model, config.pretrained
    tag, path = tag_or_file(start)
    _check_names(name, tag)
    if path:
        check_tagged(config, tag, open_clip.list_pretrained_tags_by_model(name))
    about = open_clip.get_pretrained_cfg(name, tag) if tag else {}
    where = "" if path else str(about.get("hf_hub") or "").strip("/")
    source = None if path else tag
    try:
        if source is not None and config.revision is not None:
            source = str(open_clip.pretrained.download_pretrained_from_hf(where, revision=config.revision))
        with _quiet():
            model = open_clip.create_model(
                name,
                pretrained=source,
                force_custom_text=True,
                force_image_size=config.image_size,
                force_preprocess_cfg=about,  # open_clip knows the preprocessing of a tag, but not of a file
                pretrained_text=False,
            )
        if where:
            note_hub(where, config.revision)
    except (OSError, RuntimeError) as error:
        found = f"{start!r} for {name} at {config.image_size or 'its own'} px: {_first_line(error)}"
        expected = "weights that fit and can be fetched or are in the local cache"
        hint = (
            "use the model's own image size; offline, give a local file, "
            f'pretrained = "{tag or "TAG"}:./weights.safetensors", '
            'or take image = "timm", image_model = "tf_efficientnet_lite0", pretrained = "package"'
        )
        raise BadInputError("pretrained", found, expected, hint) from error
    found, expected = f"{name}, a {type(model).__name__}", "an open_clip model of one image and one text tower"
    is_clip = isinstance(model, open_clip.CustomTextCLIP)
    require(is_clip, "image_model", found, expected, "choose a CLIP or SigLIP model")
    if path:
        _load_file(model, path)
    return model


def _check_names(name: str, tag: str | None) -> None:
    """Raise `BadInputError` if a name is unknown, or if the weights were trained with another activation function."""
    import open_clip

    config = open_clip.get_model_config(name)
    if config is None:
        expected, hint = "the name of an open_clip model, such as {}", "open_clip.list_models() lists them"
        require_known(name, open_clip.list_models(), "image_model", expected=expected, hint=hint)
    if tag is None:
        return
    tags = open_clip.list_pretrained_tags_by_model(name)
    expected = f"a tag of {name}: {', '.join(tags) or 'it has none'}"
    hint = "choose one of them; write a local file with its tag, TAG:./weights.safetensors"
    require(tag in tags, "pretrained", f"tag {tag!r}", expected, hint)
    quick = bool(open_clip.get_pretrained_cfg(name, tag).get("quick_gelu"))
    expected = f"a model {'with' if quick else 'without'} QuickGELU, with which {tag!r} was trained"
    hint = f"use {name}-quickgelu" if quick else f"use {name.removesuffix('-quickgelu')}"
    require(quick == bool(config.get("quick_gelu")), "image_model", name, expected, hint)


def _load_file(model: nn.Module, path: Path) -> None:
    """Load a checkpoint with open_clip; raise an error that describes the fault if it cannot be loaded."""
    import open_clip

    check_file(path)
    refused = (OSError, RuntimeError, EOFError, KeyError, AttributeError, SafetensorError, pickle.UnpicklingError)
    try:
        open_clip.load_checkpoint(model, str(path), strict=True, weights_only=True)
    except refused as error:
        expected = "a checkpoint of this open_clip model: safetensors, or torch tensors and no code"
        hint = "check image_model; use `counterpoint convert` for files of DecisionNCE's and AcTOL's authors"
        raise BadInputError(path, _first_line(error), expected, hint) from error


@lru_cache(maxsize=4)
def _tokenizer(name: str) -> Any:
    import open_clip

    try:
        return open_clip.get_tokenizer(name)
    except OSError as error:
        found = f"{name}, whose tokenizer cannot be fetched ({_first_line(error)})"
        expected, hint = "its tokenizer in the local cache", "fetch it once online, or use text = 'minilm'"
        raise BadInputError("image_model", found, expected, hint) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence open_clip's warnings about random weights, and its log messages about errors that it also raises."""
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
