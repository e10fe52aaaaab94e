"""Any timm image model with a learned projection."""

from __future__ import annotations

import difflib
from collections import OrderedDict
from pathlib import Path
from typing import Any

from torch import nn

from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.towers import ImageTower
from counterpoint.encoders.weights import fit_weights, is_local, read_weights
from counterpoint.errors import BadInputError, MissingExtraError

__all__ = ["build"]


def build(config: EncoderConfig) -> ImageTower:
    """`timm.create_model(config.image_model)` without its classifier, then `nn.Linear` to D (256).

    Normalisation and size are those timm gives for the model and its tag; position embeddings are resampled
    to `config.image_size` where the model can.

    Raises:
        BadInputError: An unknown model or tag, or weights that cannot be had or do not fit.
        MissingExtraError: timm is not installed.
    """
    try:
        import timm
        from timm.data.config import resolve_model_data_config
    except ModuleNotFoundError as error:
        raise MissingExtraError("timm", "clip") from error
    start = config.pretrained
    tag = start if start is not None and not is_local(start) else None
    name = _full_name(config.image_model, tag)
    try:
        model: Any = timm.create_model(name, pretrained=tag is not None, num_classes=0)
    except OSError as error:
        raise BadInputError(
            "pretrained",
            found=f"weights of {name} that cannot be fetched ({str(error).splitlines()[0]})",
            expected="the weights in the local cache, or a way to the Hub",
            mend="fetch them once where there is a network, or give a local file: "
            'pretrained = "./weights.safetensors"',
        ) from error
    expects: dict[str, Any] = resolve_model_data_config(model)  # type: ignore[no-untyped-call]
    if start is not None and tag is None:
        _load_file(model, Path(start).expanduser())
    own_size = expects["input_size"][-1]
    size = config.image_size or own_size
    if size != own_size and hasattr(model, "set_input_size"):
        model.set_input_size(img_size=size)
    embed_dim = config.embed_dim or 256
    width = getattr(model, "head_hidden_size", model.num_features)
    module = nn.Sequential(OrderedDict(backbone=model, projection=nn.Linear(width, embed_dim)))
    return ImageTower(module, embed_dim, size, tuple(expects["mean"]), tuple(expects["std"]))


def _full_name(image_model: str, tag: str | None) -> str:
    """`architecture.tag`, both known to timm; the tag may stand in the name, in `pretrained`, or in both."""
    import timm

    architecture, _, named = image_model.partition(".")
    if not timm.is_model(architecture):
        near = difflib.get_close_matches(architecture, timm.list_models(), n=3)
        raise BadInputError(
            "image_model",
            found=repr(image_model),
            expected="the name of a timm model" + (f", such as {', '.join(near)}" if near else ""),
            mend="timm.list_models() lists them",
        )
    tags = [known.partition(".")[2] for known in timm.list_pretrained(f"{architecture}.*")]
    for field, given in (("image_model", named), ("pretrained", tag)):
        if given and (given not in tags or given != (named or given)):
            raise BadInputError(
                field,
                found=f"tag {given!r}",
                expected=f"one tag of {architecture}, the same wherever it stands: {', '.join(tags)}",
                mend='choose one of them, or give a local file: pretrained = "./weights.safetensors"',
            )
    chosen = tag or named
    return f"{architecture}.{chosen}" if chosen else architecture


def _load_file(model: Any, path: Path) -> None:
    """Load timm's own state dict; its classifier, which is not used here, may be there or not."""
    heads = model.default_cfg.get("classifier") or ()
    heads = (heads,) if isinstance(heads, str) else heads
    weights = {
        name: value
        for name, value in read_weights(path).items()
        if not any(name in (f"{head}.weight", f"{head}.bias") for head in heads)
    }
    fit_weights(model, weights, path)
