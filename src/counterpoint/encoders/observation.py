"""The observation encoder of control: a stack of camera frames into a state vector, some under an instruction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Literal, Self, cast

import torch
from jaxtyping import Float, Shaped, UInt8
from pydantic import NonNegativeInt, PositiveInt, model_validator
from torch import Tensor, nn

from counterpoint.config import FrozenConfig
from counterpoint.encoders.dual import SentenceTower, check_frames
from counterpoint.encoders.hub import Description, HubEncoder
from counterpoint.encoders.towers import ResNet18
from counterpoint.encoders.weights import MINILM, fit_weights, read_weights, tag_or_file
from counterpoint.errors import BadInputError, import_extra, require


def stack_frames(
    frames: Shaped[Tensor, "N S H W 3"], mean: Float[Tensor, "*image 3"], deviation: Float[Tensor, "*channels"]
) -> Float[Tensor, "N L H W"]:
    """Return normalised images with the channels of S frames, the oldest first, in channels-last memory.

    Bytes are reordered before they become four times as many, and one fused operation normalises them.

    Args:
        frames: uint8 in [0, 255] or float in [0, 1].
        mean: Mean of pixels in [0, 1]: an image [H, W, 3], or one number for each channel [3].
        deviation: One number, or one for each channel.

    Returns:
        L = 3 S channels.
    """
    S, unit = frames.shape[1], 255.0 if frames.dtype == torch.uint8 else 1.0
    pixels = torch.cat(frames.unbind(1), -1).to(mean.dtype)
    offset = (-mean / deviation).repeat(*[1] * (mean.ndim - 1), S)
    scale = 1 / (unit * deviation)
    return torch.addcmul(offset, pixels, scale.repeat(S) if scale.ndim else scale).permute(0, 3, 1, 2)


@torch.no_grad()
def drq_weights(module: nn.Module) -> None:
    """Give a linear or convolutional layer DrQ-v2's initial weights; for `network.apply`.

    Weights are orthogonal (rows of what enters one output, or columns where there are more outputs than inputs), times
    sqrt 2 in convolutions, and biases zero (Yarats et al., 2022, authors' code; Premier-TACO's applies it to encoder,
    heads and policy). Torch's own `orthogonal_` cannot write channels-last weights.
    """
    if isinstance(module, nn.Linear | nn.Conv2d):
        gain = math.sqrt(2) if isinstance(module, nn.Conv2d) else 1.0
        module.weight.copy_(nn.init.orthogonal_(torch.empty(module.weight.shape), gain))
        if module.bias is not None:
            module.bias.zero_()


class DrQConvNet(nn.Module):
    """The shallow ConvNet of DrQ-v2 with Premier-TACO's trunk (Appendix C, Listing 1).

    Four 3 x 3 convolutions, the first of stride 2, then linear, layer normalisation and tanh. At 9 x 84 x 84, width
    32 and D = 100 it has 3.95 million parameters, as the paper says. (Listing 1 writes `Conv2d(84, 32, ...)`: 84 is
    the image's side; the channels are nine.) Its initial weights are `drq_weights`.

    Args:
        channels: Input channels: three a frame of the stack.
        size: Height and width, in pixels.
        embed_dim: D.
        width: Channels of every convolution.
    """

    def __init__(self, channels: int, size: int, embed_dim: int, *, width: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for number in range(4):
            layers += [nn.Conv2d(channels if number == 0 else width, width, 3, 2 if number == 0 else 1), nn.ReLU()]
        self.convnet = nn.Sequential(*layers)
        side = (size - 3) // 2 + 1 - 6
        self.trunk = nn.Sequential(nn.Linear(width * side * side, embed_dim), nn.LayerNorm(embed_dim), nn.Tanh())
        self.apply(drq_weights)

    def forward(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N D"]:
        """Embed normalised images."""
        embedded: Tensor = self.trunk(self.convnet(images).flatten(1))
        return embedded


Instruction = Sequence[str] | Tensor
"""Texts, or their sentence embeddings [B, E]."""

_WIDTHS = (64, 64, 128, 128, 256, 256, 512, 512)
"""Channels of the eight blocks."""


class SpatialSoftmax(nn.Module):
    """The mean location, x and y in [-1, 1], of each of K learned maps (Levine et al., 2016).

    Args:
        channels: Input channels.
        keypoints: K.
    """

    def __init__(self, channels: int, keypoints: int) -> None:
        super().__init__()
        self.maps = nn.Conv2d(channels, keypoints, 1)

    def forward(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N L"]:
        """Return L = 2 K numbers: the x of all maps, then the y."""
        attention = self.maps(images).float().flatten(2).softmax(-1).unflatten(-1, images.shape[-2:])
        y, x = (torch.linspace(-1, 1, side, device=images.device) for side in images.shape[-2:])
        return torch.cat([attention.sum(-2) @ x, attention.sum(-1) @ y], 1)


class FilmResNet18(nn.Module):
    """ResNet-18 with FiLM (Perez et al., 2018) after every block: h <- (1 + gamma) h + beta, both linear in the text.

    It follows LIBERO (Liu et al., 2023), whose encoder (`keypoints`) keeps the first four of the eight blocks, then
    takes D / 2 keypoints and a linear layer. Unlike LIBERO's, normalisation is by group, so that frames do not depend
    on each other, and the frozen sentence encoder is MiniLM, not BERT. Premier-TACO (Appendix C) has one a camera.

    Args:
        channels: Input channels: three a frame of the stack.
        embed_dim: D.
        keypoints: LIBERO's form, instead of all eight blocks, average pooling and a linear layer.
        text_model: Sentence encoder, as in `SentenceTower`.
    """

    def __init__(self, channels: int, embed_dim: int, *, keypoints: bool = False, text_model: str = MINILM) -> None:
        super().__init__()
        plain = ResNet18(embed_dim, channels=channels)
        self.widths = _WIDTHS[:4] if keypoints else _WIDTHS
        self.stem = plain.stem
        self.blocks = nn.ModuleList(list(plain.stages)[: len(self.widths)])
        if keypoints:
            count = max(1, embed_dim // 2)
            self.pool: nn.Module = SpatialSoftmax(self.widths[-1], count)
            self.head = nn.Linear(2 * count, embed_dim)
        else:
            self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
            self.head = plain.head
        # One linear map gives every block's beta and gamma.
        self.language = SentenceTower(text_model, 2 * sum(self.widths))

    def forward(self, images: Float[Tensor, "N C H W"], instruction: Instruction) -> Float[Tensor, "N D"]:
        """Embed normalised images under their instructions.

        Args:
            images: N observations.
            instruction: B texts or sentence embeddings [B, E]; N is a multiple of B, and each belongs to N / B
                observations in a row.

        Raises:
            BadInputError: Numbers that do not fit.
        """
        text = self._modulation(instruction, len(images))
        hidden = self.stem(images)
        for block, both in zip(self.blocks, text, strict=True):
            beta, gamma = both[:, :, None, None].chunk(2, 1)
            hidden = (1 + gamma) * block(hidden) + beta
        embedded: Tensor = self.head(self.pool(hidden))
        return embedded

    def _modulation(self, instruction: Instruction, count: int) -> tuple[Tensor, ...]:
        """Return beta and gamma, side by side, of every block: one row an observation."""
        projection = self.language.projection
        if isinstance(instruction, Tensor):
            found, fits = f"embeddings {list(instruction.shape)}", instruction.shape[1:] == (projection.in_features,)
        else:
            found, fits = f"{len(instruction)} texts", not isinstance(instruction, str)
        fits = fits and len(instruction) > 0 and count % len(instruction) == 0
        expected = f"texts or embeddings [B, {projection.in_features}], one for each observation or equal run of them"
        hint = "pass the instruction of every observation"
        require(fits, "instruction", f"{found} for {count} observations", expected, hint)
        if isinstance(instruction, Tensor):
            rows: Tensor = projection(instruction.to(projection.weight))
        else:
            rows = self.language(list(instruction))
        ends = list(accumulate(2 * width for width in self.widths))[:-1]
        return torch.tensor_split(rows.repeat_interleave(count // len(instruction), 0), ends, 1)


class ViTConfig(FrozenConfig):
    """Settings of a vision transformer; fields left `None` are the model's own.

    Attributes:
        model: Name of a timm model; the paper's is ViT-S/16.
        patch: Side of a patch in pixels.
        embed_dim: Width of a token.
        depth: Number of blocks.
        heads: Attention heads.
    """

    model: str = "vit_small_patch16_224"
    patch: PositiveInt | None = None
    embed_dim: PositiveInt | None = None
    depth: PositiveInt | None = None
    heads: PositiveInt | None = None


class ViT(nn.Module):
    """timm's vision transformer over stacks of S frames: the class token, or pooled tokens of a model without one.

    ICon (Wang and Lin, 2025, Appendix A.2) has ViT-S with patches of 16 pixels at 224 x 224, one for each camera.

    Args:
        config: The transformer.
        size: Height and width of the images, in pixels.
        stack: S; a stack's frames are the channels of one image.
        start: A weight file, or a tag that timm fetches; `None` for random weights.

    Attributes:
        vit: timm's model.
        embed_dim: D.

    Raises:
        BadInputError: When the model is unknown or no vision transformer, or weights do not fit.
        MissingExtraError: When timm is not installed.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, config: ViTConfig, *, size: int, stack: int = 1, start: str | None = None) -> None:
        super().__init__()
        timm, (tag, path) = import_extra("timm", "clip"), tag_or_file(start)
        own = {"patch_size": config.patch, "embed_dim": config.embed_dim, "depth": config.depth}
        own = {key: value for key, value in (own | {"num_heads": config.heads}).items() if value is not None}
        name = f"{config.model}.{tag}" if tag else config.model
        try:
            model: Any = timm.create_model(
                name, pretrained=tag is not None, num_classes=0, img_size=size, in_chans=3 * stack, **own
            )
        except (RuntimeError, TypeError, AssertionError, ValueError, OSError) as error:
            found = f"{name} at {size} pixels: {str(error).splitlines()[0]}"
            expected = "a vision transformer of timm's, with patches that divide the image"
            raise BadInputError("vit", found, expected, "choose one of timm.list_models('vit_*')") from error
        self.vit: nn.Module = model
        if path:
            fit_weights(self.vit, read_weights(path), path)
        self.embed_dim = int(model.num_features)
        for buffer, key in (("mean", "mean"), ("deviation", "std")):
            self.register_buffer(buffer, torch.tensor(model.pretrained_cfg.get(key) or (0.5, 0.5, 0.5)))

    def forward(self, frames: Shaped[Tensor, "N S H W 3"]) -> Float[Tensor, "N D"]:
        """Embed N stacks, uint8 in [0, 255] or float in [0, 1]."""
        embedded: Tensor = self.vit(stack_frames(frames, self.mean, self.deviation))
        return embedded


ObservationKind = Literal["drq", "resnet18", "resnet18_film", "libero", "pretrained", "vit", "none"]

_EMBED_DIM = {"drq": 100, "resnet18": 512, "resnet18_film": 512, "libero": 64}
_FILM = ("resnet18_film", "libero")
_OWN_NORMALISATION = ("pretrained", "vit")
_FOR = {
    "centre": ("drq", "resnet18", *_FILM, "none", "pretrained"),
    "model": ("pretrained",),
    "checkpoint": _OWN_NORMALISATION,
    "vit": ("vit",),
    "width": ("drq",),
    "text_model": _FILM,
}
"""Field of `ObservationConfig` -> the kinds that read it."""
_SMALLEST_DRQ = 15
"""Pixels below which nothing is left after `drq`'s four convolutions."""


class ObservationConfig(FrozenConfig):
    """Architecture and preprocessing of an `ObservationEncoder`.

    Attributes:
        kind: `drq` is the shallow ConvNet of Premier-TACO's Listing 1 (DrQ-v2's, with a trunk); `resnet18` the
            library's ResNet-18; `resnet18_film` the same, modulated by the instruction; `libero` LIBERO's encoder
            (its first four blocks, modulated, and keypoints); `pretrained` one of `PRETRAINED`; `vit` a vision
            transformer, ICon's; `none` is empty, for policies of proprioception alone.
        size: Height and width of frames, in pixels.
        stack: S, frames an observation and camera.
        cameras: C, images of one moment; 0 for `none`. Each camera has its own encoder; embeddings are concatenated.
        embed_dim: Numbers a camera: 100 for `drq`, 512 for the ResNets, 64 for `libero`; for `pretrained` the
            model's width times S; for `vit` the width of its tokens.
        width: Channels of `drq`'s convolutions; 32 in the papers.
        centre: Subtract the training frames' mean image and divide by their deviation, instead of the paper's
            x / 255 - 0.5. For `pretrained`: centre and scale each feature by its mean and deviation there.
        model: For `pretrained`: a key of `PRETRAINED`, such as "r3m".
        checkpoint: For `pretrained`: the file its authors released; for CLIP also a tag of open_clip ("openai"), for
            EfficientNet-Lite0 "package".
            For `vit` a file or a tag of timm's. `None`: random weights. A saved encoder does not need the file again.
        text_model: Sentence encoder of the kinds that take an instruction, frozen and not among the weights.
        vit: For `vit`: the transformer.
    """

    kind: ObservationKind = "drq"
    size: PositiveInt = 84
    stack: PositiveInt = 3
    cameras: NonNegativeInt = 1
    embed_dim: NonNegativeInt | None = None
    width: PositiveInt = 32
    centre: bool = False
    model: str = ""
    checkpoint: str | None = None
    text_model: str = MINILM
    vit: ViTConfig = ViTConfig()

    @model_validator(mode="after")
    def _agree(self) -> Self:
        kind = self.kind
        if kind == "pretrained":
            from counterpoint.encoders.pretrained import PRETRAINED

            if self.model not in PRETRAINED:
                raise ValueError(f"model {self.model!r} is not one of {', '.join(PRETRAINED)}")
        for field, kinds in _FOR.items():
            if kind not in kinds and getattr(self, field) != type(self).model_fields[field].default:
                raise ValueError(f"{field} is for kind {' or '.join(map(repr, kinds))}, not {kind!r}: leave it out")
        if (kind == "none") != (self.cameras == 0):
            raise ValueError("kind 'none' goes with cameras = 0, every other kind with 1 or more")
        if kind == "drq" and self.size < _SMALLEST_DRQ:
            raise ValueError(f"kind 'drq' needs frames of {_SMALLEST_DRQ} pixels or more, not {self.size}")
        return self


class ObservationEncoder(HubEncoder):
    """Embeddings of observations in D dimensions.

    Args:
        config: The configuration; `encoder.config` is the same with every open field resolved.

    Attributes:
        embed_dim: D: `config.embed_dim` for each camera.
        takes_instruction: True when `forward` needs an instruction.

    Raises:
        BadInputError: When a checkpoint cannot be read or does not fit, or `embed_dim` is not the pretrained model's.
        MissingExtraError: When the library behind a pretrained model or the sentence encoder is not installed.
    """

    kind = "observation_encoder"
    config_type = ObservationConfig
    start_field = "checkpoint"
    config: ObservationConfig
    embed_dim: int
    mean_image: Tensor
    deviation: Tensor

    def __init__(self, config: ObservationConfig) -> None:
        super().__init__()
        self.takes_instruction = config.kind in _FILM
        self.body: nn.Module
        if config.cameras > 1:
            one = config.model_copy(update={"cameras": 1})
            each = [ObservationEncoder(one) for _ in range(config.cameras)]
            self.body, width = nn.ModuleList(each), each[0].embed_dim
        else:
            self.body, width = _body(config) if config.cameras else (nn.Identity(), 0)
        self.config = config.model_copy(update={"embed_dim": width})
        self.embed_dim = width * config.cameras
        if config.cameras == 1 and config.kind not in _OWN_NORMALISATION:
            # [H, W, 3] and a scalar, both of pixels in [0, 1]; the paper's x / 255 - 0.5 until `centre_on`.
            self.register_buffer("mean_image", torch.full((config.size, config.size, 3), 0.5))
            self.register_buffer("deviation", torch.ones(()))
            self.body.to(memory_format=torch.channels_last)

    @property
    def vits(self) -> tuple[nn.Module, ...]:
        """timm's model of each camera, in order; for kind `vit`.

        Raises:
            BadInputError: For another kind.
        """
        kind, hint = self.config.kind, 'set encoder.kind = "vit", or leave the term that needs tokens out'
        require(kind == "vit", "encoder", f"kind {kind!r}, which has no tokens", "kind 'vit'", hint)
        if isinstance(self.body, nn.ModuleList):
            return tuple(vit for encoder in self.body for vit in cast(ObservationEncoder, encoder).vits)
        return (cast(ViT, self.body).vit,)

    def centre_on(self, frames: UInt8[Tensor, "N *cameras H W 3"]) -> None:
        """Set mean and deviation, of images or features, from training frames; for `centre` encoders, before training.

        Args:
            frames: N images; with several cameras, [N, C, H, W, 3].

        Raises:
            BadInputError: When frames are empty or of another size, or a pretrained model has no `centre`.
        """
        C, size = self.config.cameras, self.config.size
        expected = (C, size, size, 3) if C > 1 else (size, size, 3)
        own = self.config.kind in _OWN_NORMALISATION
        ok = len(frames) > 0 and frames.shape[1:] == expected and (self.config.centre or not own)
        found = f"shape {list(frames.shape)} for kind {self.config.kind!r}"
        shape = f"[N, {', '.join(map(str, expected))}] for an encoder trained from scratch, or one with `centre`"
        require(ok, "frames", found, shape, "give frames of the encoder's size, or set encoder.centre")
        if isinstance(self.body, nn.ModuleList):
            for camera, encoder in enumerate(self.body):
                cast(ObservationEncoder, encoder).centre_on(frames[:, camera])
            return
        if own:
            cast(Any, self.body).centre_on(frames)
            return
        pixels = frames.float() / 255
        mean = pixels.mean(0)
        self.mean_image.copy_(mean)
        self.deviation.copy_((pixels - mean).std().clamp_min(1e-3))

    def forward(
        self, frames: Shaped[Tensor, "N F H W 3"], instruction: Instruction | None = None
    ) -> Float[Tensor, "N D"]:
        """Embed N observations.

        Args:
            frames: uint8 in [0, 255] or float in [0, 1]; F = C S: the S frames of the first camera, the oldest
                first, then those of the next.
            instruction: For the kinds that take one: B texts, or sentence embeddings [B, E]. N is a multiple of
                B, and each belongs to N / B observations in a row.

        Returns:
            One row an observation, cameras side by side: `.unflatten(1, (C, -1))` separates them.

        Raises:
            BadInputError: When frames have another size, stack or dtype, or an instruction is missing or superfluous.
        """
        if not self.config.cameras:
            return torch.zeros(len(frames), 0, device=frames.device)
        self._check(frames, instruction)
        if isinstance(self.body, nn.ModuleList):
            views = frames.chunk(self.config.cameras, 1)
            each = [encoder(view, instruction) for encoder, view in zip(self.body, views, strict=True)]
            return torch.cat(each, 1)
        own = self.config.kind in _OWN_NORMALISATION
        images = frames if own else stack_frames(frames, self.mean_image, self.deviation)
        embedded: Tensor = self.body(images, *([] if instruction is None else [instruction]))
        # At least single precision, under autocast too: losses divide by temperatures.
        return embedded.to(torch.promote_types(embedded.dtype, torch.float32))

    def describe(self) -> Description:
        """Return usage, facts and preprocessing for the model card."""
        config, size = self.config, self.config.size
        instructions = ", instructions" if self.takes_instruction else ""
        usage = (
            f"state = model(observations{instructions})"
            f"  # [N, {config.cameras * config.stack}, {size}, {size}, 3] -> [N, {self.embed_dim}]"
        )
        facts: dict[str, object] = {
            "Architecture": f"{config.kind} {config.model}",
            "Observation": f"{config.stack} frames, {config.cameras} camera(s), {size} x {size}",
            "Embedding": f"{self.embed_dim} numbers",
        }
        if self.takes_instruction:
            facts["Sentence encoder"] = f"`{config.text_model}`, frozen, **not** part of `model.safetensors`"
        if config.kind in _OWN_NORMALISATION:
            centred = " Features are centred and scaled by training frames (in the weights)." if config.centre else ""
            how = "each frame is resized, cut and normalised as the authors of the model do it."
            return self.description(usage, facts, how + centred)
        if config.centre:
            return self.description(
                usage, facts, "minus the training frames' mean image, divided by their deviation (in the weights)."
            )
        return self.description(usage, facts, "pixels in [0, 255] become x / 255 - 0.5.")

    def _check(self, frames: Tensor, instruction: Instruction | None) -> None:
        check_frames(frames)
        config, size = self.config, self.config.size
        wanted = (config.cameras * config.stack, size, size, 3)
        expected = f"[N, {', '.join(map(str, wanted))}]: stacks of {config.stack} frames"
        expected += f" from each of {config.cameras} cameras" * (config.cameras > 1) + f" of {size} x {size} pixels"
        hint = "use the encoder's stack and size, or build the encoder for the frames' (stack, size)"
        ok = frames.ndim == 5 and frames.shape[1:] == wanted
        require(ok, "frames", f"shape {list(frames.shape)}", expected, hint)
        given = instruction is not None
        expected = ("a text or an embedding" if self.takes_instruction else "none") + f" for kind {self.config.kind!r}"
        hint = "leave it out" if given else "pass the task's instruction"
        require(given == self.takes_instruction, "instruction", "one" if given else "none", expected, hint)


def _body(config: ObservationConfig) -> tuple[nn.Module, int]:
    """Return the network behind the normalisation of one camera, and the width of its embedding."""
    channels = 3 * config.stack
    if config.kind in _OWN_NORMALISATION:
        body: nn.Module
        if config.kind == "vit":
            body = ViT(config.vit, size=config.size, stack=config.stack, start=config.checkpoint)
        else:
            from counterpoint.encoders.pretrained import PretrainedEncoder  # not before a model of the zoo is built

            body = PretrainedEncoder(config.model, config.checkpoint, stack=config.stack, centred=config.centre)
        width = int(body.embed_dim)
        ok = config.embed_dim in (None, width)
        require(ok, "embed_dim", config.embed_dim, f"{width}, the model's own", "leave embed_dim out")
        return body, width
    width = config.embed_dim or _EMBED_DIM[config.kind]
    if config.kind == "drq":
        return DrQConvNet(channels, config.size, width, width=config.width), width
    if config.kind == "resnet18":
        return ResNet18(width, channels=channels), width
    return FilmResNet18(channels, width, keypoints=config.kind == "libero", text_model=config.text_model), width
