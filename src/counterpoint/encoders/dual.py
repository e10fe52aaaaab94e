"""The dual encoder, which maps camera frames and instructions into one space.

This file contains, in order: image preprocessing, the ConvNet, the sentence tower, the map of proprioception, and the
encoder. Its configuration is in `config.py`; larger image towers are in `towers.py` (ResNet-18, timm) and `clip.py`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn import functional

from counterpoint.data.statistics import Statistics
from counterpoint.encoders.card import Description
from counterpoint.encoders.config import IMAGE_TOWERS, Colour, EncoderConfig, Fit, Resample
from counterpoint.encoders.hub import HubEncoder
from counterpoint.encoders.pooled import Backbone, spatial_map
from counterpoint.encoders.weights import (
    MINILM,
    MINILM_SHA256,
    cached_vector,
    minilm_folder,
    minilm_tokens,
    note_hub,
    start_from_file,
)
from counterpoint.errors import BadInputError, MissingExtraError, require
from counterpoint.registry import imported

IMAGENET_MEAN: Colour = (0.485, 0.456, 0.406)
IMAGENET_STD: Colour = (0.229, 0.224, 0.225)

_TOLERANCE = 1e-3
"""Tolerance for pixels that rounding moved out of [0, 1]."""
STILL = 1e-6
"""State dimensions with a smaller standard deviation in training are only shifted: dividing would magnify noise."""


def preprocess(
    frames: Shaped[Tensor, "*lead H W 3"],
    *,
    size: int,
    mean: Float[Tensor, " C"],
    std: Float[Tensor, " C"],
    fit: Fit = "stretch",
    short_side: int | None = None,
    resample: Resample = "bilinear",
) -> Float[Tensor, "N 3 S S"]:
    """Scale frames to [0, 1], fit them into S x S and normalise them, in single precision.

    Args:
        frames: uint8 in [0, 255] or float in [0, 1]; any number of leading dimensions, colours last or first
            ([..., 3, H, W]).
        size: Side of the result in pixels (S).
        mean: Channel means of pixels in [0, 1]; all work is done on this tensor's device, and the result has its dtype.
        std: Channel standard deviations of these pixels.
        fit: `stretch` resizes the whole frame, whatever its aspect ratio, and does not change frames of the right size.
            `crop` resizes the shorter side to `short_side` and crops the centre. `crop_others` does this to frames of
            other sizes, and does not change frames of the right size.
        short_side: Length in pixels of the shorter side before `crop`; S by default.
        resample: Interpolation, which is antialiased unless its name says otherwise.

    Returns:
        Images [N, 3, S, S] with N the product of the leading dimensions, in the dtype of `mean`.

    Raises:
        BadInputError: If dtype or shape are wrong, or floats lie outside [0, 1].
    """
    frames = channels_last(frames)
    check_frames(frames)
    dtype = torch.promote_types(mean.dtype, torch.float32)
    images = frames.to(mean.device, non_blocking=True).reshape(math.prod(frames.shape[:-3]), *frames.shape[-3:])
    height, width = images.shape[1:3]
    # On a CPU the antialiased filters are faster on planes, with the same result.
    planes = mean.device.type == "cpu" and not resample.endswith("_aliased") and (height, width) != (size, size)
    layout = torch.contiguous_format if planes else torch.preserve_format
    whole = images.dtype == torch.uint8
    images = images.permute(0, 3, 1, 2).to(dtype, memory_format=layout)
    images = images.div_(255) if whole else images
    if fit == "crop" or (fit == "crop_others" and (height, width) != (size, size)):
        short, wanted = min(height, width), short_side or size
        images = _resized(images, (height * wanted // short, width * wanted // short), resample)
        top, left = (round((side - size) / 2) for side in images.shape[-2:])
        images = images[..., top : top + size, left : left + size]
    else:
        images = _resized(images, (size, size), resample)
    centred = images - mean.to(dtype)[:, None, None]
    return centred.div_(std.to(dtype)[:, None, None]).to(mean.dtype, memory_format=torch.channels_last)


def _resized(images: Float[Tensor, "N 3 H W"], size: tuple[int, int], resample: Resample) -> Float[Tensor, "N 3 h w"]:
    if images.shape[-2:] == size or not len(images):
        return images
    mode = resample.removesuffix("_aliased")
    resized = functional.interpolate(images, size, mode=mode, antialias=mode == resample)
    return resized.clamp_(0, 1) if resample == "bicubic" else resized  # bicubic overshoots


def channels_last(frames: Shaped[Tensor, "*lead H W 3"]) -> Shaped[Tensor, "*lead H W 3"]:
    """Return LeRobot's frames [..., 3, H, W] as [..., H, W, 3]; other frames are returned unchanged."""
    first = isinstance(frames, Tensor) and frames.ndim >= 3 and frames.shape[-1] != 3 and frames.shape[-3] == 3
    return frames.movedim(-3, -1) if first else frames


def check_frames(frames: Tensor) -> None:
    """Raise `BadInputError` unless frames are [..., H, W, 3], uint8 or float in [0, 1]."""
    expected = "a tensor [..., H, W, 3], uint8 in [0, 255] or float in [0, 1]"
    if not isinstance(frames, Tensor):
        raise BadInputError("frames", type(frames).__name__, expected, "wrap it with torch.from_numpy")
    if frames.ndim < 3 or frames.shape[-1] != 3 or 0 in frames.shape[-3:]:
        found = f"shape {list(frames.shape)}"
        raise BadInputError("frames", found, expected, "put channels last: .movedim(-3, -1)")
    if frames.dtype == torch.uint8:
        return
    if not frames.is_floating_point():
        raise BadInputError("frames", str(frames.dtype), expected, "convert pixels in [0, 255] with .to(torch.uint8)")
    if frames.numel():
        low, high = (float(bound) for bound in frames.detach().aminmax())
        if not (low >= -_TOLERANCE and high <= 1 + _TOLERANCE):  # true for NaN too
            found = f"{frames.dtype} in [{low:.4g}, {high:.4g}]"
            hint = "pass pixels in [0, 255] as uint8, or divide by 255; the encoder normalises by itself"
            raise BadInputError("frames", found, expected, hint)


@dataclass(frozen=True)
class ImageTower:
    """An image tower and the format of its input.

    Attributes:
        module: A module that maps normalised images [N, 3, S, S] to embeddings [N, D].
        embed_dim: Dimensions of the embeddings (D).
        image_size: Side of the images in pixels (S).
        mean: Channel means of pixels in [0, 1].
        std: Channel standard deviations of these pixels.
        fit: How frames become squares; see `EncoderConfig`.
        short_side: Length in pixels of the shorter side before a crop; S by default.
        resample: Interpolation.
    """

    module: nn.Module
    embed_dim: int
    image_size: int
    mean: Colour = IMAGENET_MEAN
    std: Colour = IMAGENET_STD
    fit: Fit = "stretch"
    short_side: int | None = None
    resample: Resample = "bilinear"


class ConvNet(nn.Module):
    """Four 3 x 3 convolutions of stride 2, then one linear layer on the flattened map, which keeps positions.

    There are no normalisation layers, so that a frame's embedding does not depend on other frames and no information
    about the batch leaks into a contrastive loss.

    Args:
        image_size: Side of the images in pixels (S); designed for 64 to 112 px.
        embed_dim: Dimensions of the embedding (D).
    """

    def __init__(self, image_size: int, embed_dim: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width_in, side = 3, image_size
        for width in (32, 64, 128, 256):
            layers += [nn.Conv2d(width_in, width, 3, 2, 1), nn.ReLU(inplace=True)]
            width_in, side = width, (side + 1) // 2
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(width_in * side * side, embed_dim)

    def forward(self, images: Float[Tensor, "N 3 S S"]) -> Float[Tensor, "N D"]:
        """Embed normalised images."""
        embedded: Tensor = self.head(self.body(images).flatten(1))
        return embedded


def build_convnet(config: EncoderConfig) -> ImageTower:
    """Return the ConvNet as an image tower, by default for 64 px and with 256 dimensions."""
    size, embed_dim = config.image_size or 64, config.embed_dim or 256
    return ImageTower(own_tower(ConvNet(size, embed_dim), config), embed_dim, size)


def own_tower(module: nn.Module, config: EncoderConfig) -> nn.Module:
    """Return a tower of this library with its initial weights."""
    start_from_file(module, config.pretrained)
    return module.to(memory_format=torch.channels_last)  # the layout of frames, and faster on a CPU


class SentenceTower(nn.Module):
    """Unit-length sentence embeddings, computed once for each distinct text, followed by `nn.Linear` to D dimensions.

    The sentence encoder is not a part of this module: it is not trained, is not in the state dict, and is shared within
    the process. It runs on the CPU, one text at a time, so that an embedding depends only on its text.

    Args:
        name: A sentence-transformers name or folder. The default model is loaded offline from an installed package, or
            otherwise from the Hub, and its weights are checked against their digest.
        embed_dim: Dimensions of the embedding (D).

    Raises:
        MissingExtraError: If sentence-transformers is not installed.
    """

    def __init__(self, name: str, embed_dim: int) -> None:
        super().__init__()
        if importlib.util.find_spec("sentence_transformers") is None:
            raise MissingExtraError("sentence_transformers", "text")
        self.name = name
        self._seen: dict[str, Tensor] = {}
        # Importing sentence-transformers takes seconds. The default model's width is known, so it loads at first use.
        width = 384 if name == MINILM else len(self.embed("How wide is this?"))
        self.projection = nn.Linear(width, embed_dim)

    def forward(self, texts: list[str]) -> Float[Tensor, "N D"]:
        """Embed N texts."""
        weight = self.projection.weight
        sentences = torch.stack([self.embed(text) for text in texts])
        projected: Tensor = self.projection(sentences.to(weight.device, weight.dtype, non_blocking=True))
        return projected

    def tokens(self, text: str) -> tuple[int | None, ...]:
        """Return the tokens that the sentence encoder reads; `None` stands for a piece that it does not know."""
        if self.name == MINILM:
            return minilm_tokens(text)
        tokenizer = _sentence_encoder(self.name).tokenizer
        return without_unknown(tokenizer, tokenizer(text, verbose=False)["input_ids"])

    def embed(self, text: str) -> Float[Tensor, " E"]:
        """Return the frozen embedding of one text, on the CPU.

        Raises:
            BadInputError: If the text is longer than the sentence encoder's limit.
        """
        if text not in self._seen:
            compute = partial(self._computed, text)
            # Importing sentence-transformers takes seconds. The digest of the default model's weights is known.
            known = self.name == MINILM
            self._seen[text] = cached_vector(f"{MINILM_SHA256} {text}", 384, compute) if known else compute()
        return self._seen[text]

    def _computed(self, text: str) -> Float[Tensor, " E"]:
        sentence_encoder = _sentence_encoder(self.name)
        limit = sentence_encoder.max_seq_length or 10**9
        pieces = len(sentence_encoder.tokenizer(text, verbose=False)["input_ids"])
        check_length(text, pieces <= limit, f"{limit} word pieces, which {self.name} reads")
        found: Tensor = sentence_encoder.encode(text, convert_to_tensor=True, normalize_embeddings=True)
        return found.float()


def without_unknown(tokenizer: Any, tokens: Sequence[int]) -> tuple[int | None, ...]:
    """Return tokens with `None` for unknown pieces; tokenizers that split all text into bytes know every piece."""
    unknown = getattr(tokenizer, "unk_token_id", None)
    # GPT-2's and CLIP's tokenizers give the token for the end of a text as their unknown token.
    ends = {getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos", "pad")}
    return tuple(None if token == unknown and unknown not in ends else token for token in tokens)


def check_length(text: str, fits: object, limit: str) -> None:
    """Raise `BadInputError` if a tower would truncate the text."""
    found, hint = f"{len(text.split())} words: {text[:60]!r} ...", "say what should happen in a sentence or two"
    require(fits, "instruction", found, f"at most {limit}", hint)


@lru_cache(maxsize=2)
def _sentence_encoder(name: str) -> Any:
    from sentence_transformers import SentenceTransformer

    with _no_progress_bar():
        if name == MINILM:
            return SentenceTransformer(str(minilm_folder()), device="cpu", local_files_only=True).eval()
        try:
            found = SentenceTransformer(name, device="cpu").eval()
        except (OSError, ValueError) as error:
            hint = "fetch it once online, give its folder, or leave out text_model"
            reason = str(error).splitlines()[0][:120]
            raise BadInputError("text_model", f"{name} ({reason})", "a sentence encoder", hint) from error
        note_hub(name)
        return found


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Hide the progress bar while weights are loaded, which takes only a moment."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


class StateMap(nn.Module):
    """A linear map of the robot's state, normalised to mean 0 and deviation 1 over the training episodes.

    Adding the output of this map to the output of an image's linear head is the same as one linear head on the
    concatenated features and state.

    Args:
        statistics: Statistics of the states in the training episodes; part of the configuration, not of the weights.
        embed_dim: Dimensions of the embedding (D).
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, statistics: Statistics, embed_dim: int) -> None:
        super().__init__()
        deviation = torch.tensor(statistics.deviation)
        self.register_buffer("mean", torch.tensor(statistics.mean), persistent=False)
        self.register_buffer("deviation", deviation.where(deviation > STILL, 1), persistent=False)
        self.projection = nn.Linear(len(deviation), embed_dim, bias=False)

    def forward(self, state: Float[Tensor, "*lead S"]) -> Float[Tensor, "*lead D"]:
        """Embed states in their original units."""
        standard = (state.to(self.mean.device, self.mean.dtype, non_blocking=True) - self.mean) / self.deviation
        embedded: Tensor = self.projection(standard)
        return embedded


class DualEncoder(HubEncoder):
    """An image tower and a text tower that map to one space of D dimensions.

    A frozen sentence encoder is not part of the weights; it is loaded from its package.

    Args:
        config: The configuration; `encoder.config` is a copy with defaults filled in for fields left `None`.
        network: For the image tower `module`, the network, which maps normalised images [N, 3, S, S] to [N, E] or
            [N, E, h, w].

    Raises:
        BadInputError: If a model or tag is unknown, or weights do not fit.
        MissingExtraError: If the library that a tower needs is not installed.
    """

    kind = "dual_encoder"
    config_type = EncoderConfig
    start_field = "pretrained"
    config: EncoderConfig
    text: nn.Module
    mean: Tensor
    std: Tensor

    def __init__(self, config: EncoderConfig, network: nn.Module | None = None) -> None:
        super().__init__()
        own = network is None or config.image == "module"
        require(own, "network", type(network).__name__, "none: the configuration names a model", 'use image = "module"')
        if config.text == "open_clip":
            tower, text = imported("counterpoint.encoders.clip:build")(config)
        else:
            tower = IMAGE_TOWERS[config.image](config, *(() if network is None else (network,)))
            text = SentenceTower(config.text_model, tower.embed_dim)
        self.image, self.text = tower.module, text
        self.state = None if config.state is None else StateMap(config.state, tower.embed_dim)
        self.embed_dim, self.image_size = tower.embed_dim, tower.image_size
        resolved: dict[str, object] = {"embed_dim": tower.embed_dim, "image_size": tower.image_size}
        for name in ("mean", "std", "fit", "short_side", "resample"):
            resolved[name] = getattr(config, name) or getattr(tower, name)
        cut, found = resolved["short_side"], f"{resolved['short_side']} px, before a crop of {tower.image_size} px"
        fits = resolved["fit"] == "stretch" or cut is None or cut >= tower.image_size
        require(fits, "short_side", found, "at least the crop's side", f"set encoder.short_side = {tower.image_size}")
        self.config = config.model_copy(update=resolved)
        self.register_buffer("mean", torch.tensor(self.config.mean), persistent=False)
        self.register_buffer("std", torch.tensor(self.config.std), persistent=False)

    @property
    def reads_state(self) -> bool:
        """True if the encoder reads the robot's state in addition to each image."""
        return self.state is not None

    def encode_image(
        self, frames: Shaped[Tensor, "*lead H W 3"], state: Float[Tensor, "*lead S"] | None = None
    ) -> Float[Tensor, "*lead D"]:
        """Embed images, and the robot's state if the encoder reads it; embeddings are raw, not normalised.

        Args:
            frames: uint8 in [0, 255] or float in [0, 1], any size, any leading dimensions, any device; colours last or
                first ([*lead, 3, H, W]).
            state: Proprioception at each image, in its original units.

        Returns:
            Embeddings with the same leading dimensions, in single precision or higher, also under autocast.

        Raises:
            BadInputError: If dtype or shape are wrong, floats lie outside [0, 1], or a state is missing or superfluous.
        """
        embedded = _full(self.image(self._prepared(frames))).reshape(*frames.shape[:-3], self.embed_dim)
        return self._with_state(embedded, state)

    def features(self, frames: Shaped[Tensor, "*lead H W 3"]) -> Float[Tensor, "*lead E"]:
        """Return a frozen backbone's features, without gradient; arguments and errors as in `encode_image`."""
        found = _full(self._frozen().features(self._prepared(frames)))
        return found.reshape(*frames.shape[:-3], found.shape[1])

    def embed_features(
        self, features: Float[Tensor, "*lead E"], state: Float[Tensor, "*lead S"] | None = None
    ) -> Float[Tensor, "*lead D"]:
        """Embed the result of `features`; `state` is as in `encode_image`, which does both steps at once."""
        return self._with_state(_full(self._frozen().head(features)), state)

    def _with_state(self, embedded: Float[Tensor, "*lead D"], state: Tensor | None) -> Float[Tensor, "*lead D"]:
        if self.state is None and state is None:
            return embedded
        shape = None if self.state is None else [*embedded.shape[:-1], len(self.state.mean)]
        if state is None or list(state.shape) != shape or not state.is_floating_point():
            found = "none" if state is None else f"{state.dtype} {list(state.shape)}"
            expected = "none" if shape is None else f"the robot's state at each image, floats {shape}"
            hint = "models trained with data.state read it, others images alone; bare videos and goal images have none"
            raise BadInputError("state", found, expected, hint)
        assert self.state is not None
        return embedded + _full(self.state(state))

    def forward_features(self, frames: Shaped[Tensor, "*lead H W 3"]) -> Float[Tensor, "*lead C h w"]:
        """Return the image tower's last spatial map before pooling; arguments and errors as in `encode_image`.

        Raises:
            BadInputError: If the tower has no spatial map.
        """
        network = self.image.backbone if isinstance(self.image, Backbone) else self.image
        found = _full(spatial_map(network, self._prepared(frames)))
        return found.reshape(*frames.shape[:-3], *found.shape[1:])

    @cached_property
    def backbone_digest(self) -> str:
        """Hex digest of the frozen backbone, pooling and preprocessing; equal digests mean equal features."""
        fields = {"image_model", "pool", "image_size", "fit", "short_side", "resample", "mean", "std"}
        digest = hashlib.sha256(self.config.model_dump_json(include=fields).encode())
        for name, value in sorted(self._frozen().backbone.state_dict().items()):
            digest.update(name.encode())
            digest.update(value.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def _frozen(self) -> Backbone:
        frozen = isinstance(self.image, Backbone) and self.image.frozen
        hint = "set freeze_image, or embed frames with encode_image"
        require(frozen, "features", f"image {self.config.image!r}, which trains", "a frozen backbone", hint)
        assert isinstance(self.image, Backbone)
        return self.image

    def _prepared(self, frames: Tensor) -> Tensor:
        config = self.config
        fitting: Any = {"fit": config.fit or "stretch", "resample": config.resample or "bilinear"}
        fitting |= {"short_side": config.short_side}
        return preprocess(frames, size=self.image_size, mean=self.mean, std=self.std, **fitting)

    def encode_text(self, texts: Sequence[str]) -> Float[Tensor, "N D"]:
        """Embed N instructions; embeddings are raw, not normalised, in single precision or higher.

        Raises:
            BadInputError: If `texts` is one string, is empty, or has an element that is not a string.
        """
        if isinstance(texts, str) or not texts or not all(isinstance(text, str) for text in texts):
            hint = "wrap a single instruction in a list"
            raise BadInputError("texts", repr(texts)[:80], "a sequence of one or more strings", hint)
        return _full(self.text(list(texts)))

    def describe(self) -> Description:
        """Return usage, facts and preprocessing for the model card."""
        config, D, side = self.config, self.embed_dim, self.image_size
        S = len(config.state.mean) if config.state else 0
        read = f"(images, state)  # [..., H, W, 3] and [..., {S}]" if S else "(images)  # [..., H, W, 3]"
        usage = (
            f"frames = model.encode_image{read} -> [..., {D}]\n"
            f'text = model.encode_text(["open the drawer"])  # [1, {D}]'
        )
        text = f"that of {config.image_model}" + " (frozen)" * config.freeze_text
        if config.text == "minilm":
            text = f"`{config.text_model}` (frozen, **not** part of `model.safetensors`), learned linear map"
        facts: dict[str, object] = {"Image tower": f"{config.image} {config.image_model}", "Text tower": text}
        if config.freeze_image:
            facts["Backbone"] = f"frozen, part of `model.safetensors`, digest `{self.backbone_digest[:16]}`"
        if S:
            facts["Proprioception"] = f"{S} numbers, standardised by the statistics of training, mapped linearly"
        facts["Embedding"] = f"{D} numbers, raw (not normalised)"
        fitted = f"stretched to {side} x {side}"
        if config.fit != "stretch":
            fitted = f"the shorter side to {config.short_side or side} px, the centre {side} x {side} cut out"
        fitted += f", unless they are {side} x {side} already" * (config.fit == "crop_others")
        smooth = "not " * (config.resample == "bilinear_aliased") + "antialiased"
        pixels = f"pixels to [0, 1] by dtype, {fitted} ({str(config.resample).removesuffix('_aliased')}, {smooth})"
        return self.description(usage, facts, f"{pixels}, minus {config.mean}, divided by {config.std}.")


def _full(embeddings: Tensor) -> Tensor:
    """Convert to single precision or higher: losses divide by temperatures that half precision cannot resolve."""
    return embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
