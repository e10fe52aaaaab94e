"""The shallow ConvNet of DrQ-v2 with Premier-TACO's trunk (Appendix C, Listing 1).

ResNet-18 that an instruction modulates: feature-wise linear modulation (FiLM; Perez et al., AAAI 2018).

The observation encoder of control: a stack of camera frames into a state vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Literal, Self, cast

import torch
from huggingface_hub import ModelCard
from jaxtyping import Float, Shaped, UInt8
from pydantic import PositiveInt, model_validator
from torch import Tensor, nn

from counterpoint.config import FrozenConfig
from counterpoint.encoders.hub import HubEncoder, observation_card
from counterpoint.encoders.preprocess import check_frames
from counterpoint.encoders.pretrained import PRETRAINED, PretrainedEncoder
from counterpoint.encoders.text import SentenceTower
from counterpoint.encoders.towers import MINILM, ResNet18
from counterpoint.encoders.vit import ViT, ViTConfig
from counterpoint.errors import BadInputError

__all__ = [
    "DrQConvNet",
    "FilmResNet18",
    "Instruction",
    "ObservationConfig",
    "ObservationEncoder",
    "ObservationKind",
    "SpatialSoftmax",
]


class DrQConvNet(nn.Module):
    """Four 3 x 3 convolutions, the first of stride 2, then linear, layer normalisation and tanh.

    At 9 x 84 x 84, width 32 and D = 100 it has 3.95 million parameters, as the paper says. (Listing 1 writes
    `Conv2d(84, 32, ...)`: 84 is the picture's side; the channels are nine.)

    Args:
        channels: Of the input: three a frame of the stack.
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

    def forward(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N D"]:
        """Embed normalised images."""
        embedded: Tensor = self.trunk(self.convnet(images).flatten(1))
        return embedded


Instruction = Sequence[str] | Tensor
"""Texts, or their sentence embeddings [B, E]."""

_WIDTHS = (64, 64, 128, 128, 256, 256, 512, 512)
"""Channels of the eight blocks."""


class SpatialSoftmax(nn.Module):
    """Where a learned map lies, on average, for each of K maps: x and y in [-1, 1] (Levine et al., 2016).

    Args:
        channels: Of the input.
        keypoints: K.
    """

    def __init__(self, channels: int, keypoints: int) -> None:
        super().__init__()
        self.maps = nn.Conv2d(channels, keypoints, 1)

    def forward(self, images: Float[Tensor, "N C H W"]) -> Float[Tensor, "N L"]:
        """L = 2 K: the x of all maps, then the y."""
        attention = self.maps(images).float().flatten(2).softmax(-1).unflatten(-1, images.shape[-2:])
        y, x = (torch.linspace(-1, 1, side, device=images.device) for side in images.shape[-2:])
        return torch.cat([attention.sum(-2) @ x, attention.sum(-1) @ y], 1)


class FilmResNet18(nn.Module):
    """ResNet-18 with FiLM after every block: h <- (1 + gamma) h + beta, gamma and beta linear in the text.

    Modulation and, with `keypoints`, the whole follow LIBERO (Liu et al., 2023): its encoder keeps the first four
    of the eight blocks, then takes D / 2 keypoints and a linear layer. Unlike LIBERO's, normalisation is by
    group, so that no frame sees another, and the sentence encoder is MiniLM where LIBERO has BERT (both frozen;
    another is a name away). Premier-TACO (Appendix C) takes one such encoder a camera.

    Args:
        channels: Of the input: three a frame of the stack.
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
        """Beta and gamma, side by side, of every block: one row an observation."""
        projection = self.language.projection
        if isinstance(instruction, Tensor):
            found, fits = (f"embeddings {list(instruction.shape)}", instruction.shape[1:] == (projection.in_features,))
        else:
            # A single string would be taken for its letters.
            found, fits = f"{len(instruction)} texts", not isinstance(instruction, str)
        if not fits or len(instruction) == 0 or count % len(instruction):
            raise BadInputError(
                "instruction",
                f"{found} for {count} observations",
                "a list of texts, or embeddings "
                f"[B, {projection.in_features}]: one for each observation, or for each of equal runs of them",
                "pass the instruction of every observation",
            )
        rows: Tensor = (
            projection(instruction.to(projection.weight))
            if isinstance(instruction, Tensor)
            else self.language(list(instruction))
        )
        ends = list(accumulate(2 * width for width in self.widths))[:-1]
        return torch.tensor_split(rows.repeat_interleave(count // len(instruction), 0), ends, 1)


ObservationKind = Literal["drq", "resnet18", "resnet18_film", "libero", "pretrained", "vit"]

_EMBED_DIM = {"drq": 100, "resnet18": 512, "resnet18_film": 512, "libero": 64}
_FILM = ("resnet18_film", "libero")
_OWN_NORMALISATION = ("pretrained", "vit")
_SMALLEST_DRQ = 15
"""Pixels below which nothing is left after `drq`'s four convolutions."""


class ObservationConfig(FrozenConfig):
    """Architecture and preprocessing of an `ObservationEncoder`.

    Attributes:
        kind: `drq` is the shallow ConvNet of Premier-TACO's Listing 1 (DrQ-v2's, with a trunk); `resnet18` the
            library's ResNet-18; `resnet18_film` the same, modulated by the instruction; `libero` LIBERO's encoder
            (its first four blocks, modulated, and keypoints); `pretrained` one of `PRETRAINED`; `vit` a vision
            transformer, ICon's.
        size: Height and width of frames, in pixels.
        stack: S, frames an observation and camera.
        cameras: C, pictures of one moment. Each has an encoder of its own, and their embeddings stand side by
            side.
        embed_dim: Numbers a camera: 100 for `drq`, 512 for the ResNets, 64 for `libero`; for `pretrained` what
            the model gives, times S; for `vit` the width of its tokens.
        width: Channels of `drq`'s convolutions; 32 in the papers.
        centre: Subtract the training frames' mean image and divide by their deviation, instead of the paper's
            x / 255 - 0.5. Without it the window loss of Premier-TACO does not start to learn at small scale.
        model: For `pretrained`: a key of `PRETRAINED`, such as "r3m".
        checkpoint: For `pretrained`: the file its authors released; for CLIP also a tag of open_clip ("openai").
            `None`: random weights. A saved encoder holds its weights and needs the file no more. For `vit` a file
            or a tag of timm's.
        text_model: Sentence encoder of the two that take an instruction, frozen and not among the weights.
        vit: For `vit`: which.
    """

    kind: ObservationKind = "drq"
    size: PositiveInt = 84
    stack: PositiveInt = 3
    cameras: PositiveInt = 1
    embed_dim: PositiveInt | None = None
    width: PositiveInt = 32
    centre: bool = False
    model: str = ""
    checkpoint: str | None = None
    text_model: str = MINILM
    vit: ViTConfig = ViTConfig()

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.kind == "pretrained":
            if self.model not in PRETRAINED:
                raise ValueError(f"model {self.model!r} is not one of {', '.join(PRETRAINED)}")
            if self.centre:
                raise ValueError("centre has no meaning for a pretrained model: it has its own normalisation")
        elif self.model or (self.checkpoint and self.kind != "vit"):
            raise ValueError(f"model and checkpoint have no meaning for kind {self.kind!r}: leave them out")
        if self.kind == "vit" and self.centre:
            raise ValueError("centre has no meaning for kind 'vit': it has the normalisation of its model")
        if self.kind != "vit" and self.vit != ViTConfig():
            raise ValueError(f"vit is for kind 'vit', not {self.kind!r}: leave it out")
        if self.kind != "drq" and self.width != 32:
            raise ValueError(f"width is that of kind 'drq', not of {self.kind!r}: leave it out")
        if self.kind not in _FILM and self.text_model != MINILM:
            raise ValueError(f"text_model has no meaning for kind {self.kind!r}, which takes no instruction")
        if self.kind == "drq" and self.size < _SMALLEST_DRQ:
            raise ValueError(f"kind 'drq' needs frames of {_SMALLEST_DRQ} pixels or more, not {self.size}")
        return self


class ObservationEncoder(HubEncoder):
    """Observations into D dimensions.

    Args:
        config: What to build. `encoder.config` is the same with every open field resolved.

    Attributes:
        embed_dim: D: `config.embed_dim` for each camera.
        takes_instruction: Whether `forward` needs one.

    Raises:
        BadInputError: A checkpoint that cannot be read or does not fit, or an `embed_dim` that is not the
            pretrained model's.
        MissingExtraError: The library behind a pretrained model or the sentence encoder is not installed.
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
            self.body, width = _body(config)
        self.config = config.model_copy(update={"embed_dim": width})
        self.embed_dim = width * config.cameras
        if config.cameras > 1:
            return
        if config.kind not in _OWN_NORMALISATION:
            # [H, W, 3] and a scalar, both of pixels in [0, 1]; the paper's x / 255 - 0.5 until `centre_on`.
            self.register_buffer("mean_image", torch.full((config.size, config.size, 3), 0.5))
            self.register_buffer("deviation", torch.ones(()))
            self.body.to(memory_format=torch.channels_last)

    @property
    def vits(self) -> tuple[nn.Module, ...]:
        """timm's model of each camera, in order; for kind `vit`.

        Raises:
            BadInputError: Of another kind.
        """
        if self.config.kind != "vit":
            raise BadInputError(
                "encoder",
                f"kind {self.config.kind!r}, which has no tokens",
                "kind 'vit'",
                'set encoder.kind = "vit", or leave the term that needs tokens out',
            )
        if isinstance(self.body, nn.ModuleList):
            return tuple(vit for encoder in self.body for vit in cast(ObservationEncoder, encoder).vits)
        return (cast(ViT, self.body).vit,)

    def centre_on(self, frames: UInt8[Tensor, "N *cameras H W 3"]) -> None:
        """Take mean image and deviation from training frames; for `centre` encoders, before training.

        Args:
            frames: N pictures; with several cameras, [N, C, H, W, 3].

        Raises:
            BadInputError: Frames of another size, none, or a pretrained model, which has its own normalisation.
        """
        C, size = self.config.cameras, self.config.size
        expected = (C, size, size, 3) if C > 1 else (size, size, 3)
        if len(frames) == 0 or frames.shape[1:] != expected or self.config.kind in _OWN_NORMALISATION:
            raise BadInputError(
                "frames",
                f"shape {list(frames.shape)} for kind {self.config.kind!r}",
                f"[N, {', '.join(map(str, expected))}] for an encoder trained from scratch",
                "give frames of the encoder's size; pretrained models are not centred",
            )
        if isinstance(self.body, nn.ModuleList):
            for camera, encoder in enumerate(self.body):
                assert isinstance(encoder, ObservationEncoder)
                encoder.centre_on(frames[:, camera])
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
            One row an observation, cameras side by side: `.unflatten(1, (C, -1))` parts them.

        Raises:
            BadInputError: Frames of another size, stack or dtype, or an instruction missing or not asked for.
        """
        self._check(frames, instruction)
        if isinstance(self.body, nn.ModuleList):
            views = frames.chunk(self.config.cameras, 1)
            each = [encoder(view, instruction) for encoder, view in zip(self.body, views, strict=True)]
            return torch.cat(each, 1)
        arguments = (frames if self.config.kind in _OWN_NORMALISATION else self._images(frames),)
        embedded: Tensor = self.body(*arguments, *([] if instruction is None else [instruction]))
        # At least single precision, under autocast too: losses divide by temperatures.
        return embedded.to(torch.promote_types(embedded.dtype, torch.float32))

    def generate_model_card(self, *args: Any, **sections: Any) -> ModelCard:
        """The model card `save_pretrained` writes; `sections` are those of `observation_card`."""
        size = sum(value.numel() for value in self.state_dict().values())
        return observation_card(self.config.model_dump(), self.embed_dim, size, **sections)

    def _images(self, frames: Tensor) -> Tensor:
        """Normalised images [N, 3 S, H, W] in channels-last memory, the oldest frame's channels first.

        Bytes are reordered before they become four times as many, and one fused operation normalises them.
        """
        unit = 255.0 if frames.dtype == torch.uint8 else 1.0
        pixels = torch.cat(frames.unbind(1), -1).to(self.mean_image.dtype)  # [N, H, W, 3 S]
        offset = (-self.mean_image / self.deviation).repeat(1, 1, self.config.stack)
        return torch.addcmul(offset, pixels, 1 / (unit * self.deviation)).permute(0, 3, 1, 2)

    def _check(self, frames: Tensor, instruction: Instruction | None) -> None:
        check_frames(frames)
        F, size = self.config.cameras * self.config.stack, self.config.size
        if frames.ndim != 5 or frames.shape[1:] != (F, size, size, 3):
            cameras = f" from each of {self.config.cameras} cameras" if self.config.cameras > 1 else ""
            raise BadInputError(
                "frames",
                f"shape {list(frames.shape)}" + _depth(frames),
                f"[N, {F}, {size}, {size}, 3]: stacks of {self.config.stack} frames{cameras} of {size} x {size} pixels",
                "collect or read the frames with the encoder's stack and size, or build the encoder for "
                "theirs (stack, size)",
            )
        if (instruction is not None) != self.takes_instruction:
            raise BadInputError(
                "instruction",
                "none" if instruction is None else "one",
                ("a text or an embedding" if self.takes_instruction else "none") + f" for kind {self.config.kind!r}",
                "pass the task's instruction" if instruction is None else "leave it out",
            )


def _depth(frames: Tensor) -> str:
    if frames.ndim != 5:
        return ""
    return f", stacks of {frames.shape[1]} frames of {frames.shape[2]} x {frames.shape[3]} pixels"


def _body(config: ObservationConfig) -> tuple[nn.Module, int]:
    """What lies behind the normalisation of one camera, and how many numbers it gives."""
    channels = 3 * config.stack
    if config.kind in _OWN_NORMALISATION:
        body = _whole_model(config)
        return body, _its_width(config, body.embed_dim)
    width = config.embed_dim or _EMBED_DIM[config.kind]
    if config.kind == "drq":
        return DrQConvNet(channels, config.size, width, width=config.width), width
    if config.kind == "resnet18":
        return ResNet18(width, channels=channels), width
    keypoints = config.kind == "libero"
    return FilmResNet18(channels, width, keypoints=keypoints, text_model=config.text_model), width


def _whole_model(config: ObservationConfig) -> ViT | PretrainedEncoder:
    if config.kind == "vit":
        return ViT(config.vit, size=config.size, stack=config.stack, start=config.checkpoint)
    return PretrainedEncoder(config.model, config.checkpoint, stack=config.stack)


def _its_width(config: ObservationConfig, width: int) -> int:
    if config.embed_dim not in (None, width):
        raise BadInputError("embed_dim", str(config.embed_dim), f"{width}, what the model gives", "leave embed_dim out")
    return width
