"""The observation encoder of policies: maps a stack of frames, and for some kinds an instruction, to a vector."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, cast

import torch
from jaxtyping import Float, Shaped, UInt8
from pydantic import NonNegativeInt, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional
from tyro.conf import Suppress

from counterpoint.config import FrozenConfig
from counterpoint.encoders.card import Description
from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder, check_frames
from counterpoint.encoders.hub import HubEncoder
from counterpoint.encoders.observation_networks import (
    DrQConvNet,
    FilmResNet18,
    Instruction,
    ViT,
    ViTConfig,
    stack_frames,
)
from counterpoint.encoders.towers import ResNet18
from counterpoint.encoders.weights import MINILM
from counterpoint.errors import relocated, require

ObservationKind = Literal["drq", "resnet18", "resnet18_film", "libero", "pretrained", "vit", "dual", "none"]

_EMBED_DIM = {"drq": 100, "resnet18": 512, "resnet18_film": 512, "libero": 64}
_FILM = ("resnet18_film", "libero")
_OWN_NORMALISATION = ("pretrained", "vit", "dual")
_FOR = {
    "centre": ("drq", "resnet18", *_FILM, "none", "pretrained"),
    "model": ("pretrained",),
    "checkpoint": _OWN_NORMALISATION,
    "vit": ("vit",),
    "width": ("drq",),
    "text_model": _FILM,
    "dual": ("dual",),
}
"""Field of `ObservationConfig` -> the kinds that use it."""
_SMALLEST_DRQ = 15
"""Minimum image side in pixels: with smaller images nothing is left after `drq`'s four convolutions."""


class ObservationConfig(FrozenConfig):
    """Architecture and preprocessing of an `ObservationEncoder`.

    Attributes:
        kind: The network. `drq`: the shallow ConvNet of Premier-TACO's Listing 1 (DrQ-v2's ConvNet with a trunk).
            `resnet18`: this library's ResNet-18. `resnet18_film`: the same ResNet-18, modulated by the instruction.
            `libero`: LIBERO's encoder (the first four modulated blocks of this ResNet-18, and keypoints). `pretrained`:
            a model of `PRETRAINED`. `vit`: a vision transformer, as in ICon. `dual`: a `DualEncoder`, such as that of a
            reward model; embeddings of images and instruction are concatenated. `none`: no encoder, for policies that
            read only proprioception.
        size: Height and width of frames, in pixels.
        stack: Number of frames per observation and camera (S).
        cameras: Number of cameras (C); 0 for `none`. Each camera has its own encoder; embeddings are concatenated.
        embed_dim: Dimensions of the embedding of each camera; by default 100 for `drq`, 512 for the ResNets and 64 for
            `libero`. Other kinds have fixed dimensions: the model's width times S for `pretrained`, the width of the
            tokens for `vit`, and S + 1 times the dual encoder's dimensions for `dual`.
        width: Channels of `drq`'s convolutions; 32 in the papers.
        centre: True to subtract the mean image of the training frames and divide by their deviation, instead of the
            paper's x / 255 - 0.5. For `pretrained`: True to centre and scale each feature of an image by its mean and
            deviation over the training frames.
        model: For `pretrained`: a key of `PRETRAINED`, such as "r3m".
        checkpoint: Initial weights; `None` for random weights. For `pretrained`: the file that the authors released;
            for CLIP also a tag of open_clip ("openai"), for EfficientNet-Lite0 "package". For `vit`: a file or a tag of
            timm. For `dual`: a folder or Hub id of a reward model or dual encoder. The file is not needed to load a
            saved encoder.
        text_model: For kinds that take an instruction: the sentence encoder, which is frozen and not saved as weights.
        vit: For `vit`: settings of the transformer.
        dual: For `dual`: the dual encoder's configuration, which is read from `checkpoint`.
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
    dual: Annotated[EncoderConfig | None, Suppress] = None

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


class InstructedImages(nn.Module):
    """A dual encoder's embeddings of a stack's images, followed by its embedding of the instruction.

    All embeddings are scaled to unit length, because their length differs between methods, and long embeddings would
    outweigh proprioception.

    Args:
        dual: The encoder.
        stack: Number of frames per observation (S).

    Attributes:
        embed_dim: Dimensions of the result, (S + 1) D.

    Raises:
        BadInputError: If the encoder reads proprioception, which the policy already reads.
    """

    def __init__(self, dual: DualEncoder, *, stack: int = 1) -> None:
        super().__init__()
        hint = "train it without data.state; the policy reads proprioception by itself (use_state)"
        require(
            not dual.reads_state, "encoder.checkpoint", "an encoder that reads proprioception", "images alone", hint
        )
        self.dual, self.embed_dim = dual, (stack + 1) * dual.embed_dim

    def forward(self, frames: Shaped[Tensor, "N S H W 3"], instruction: Instruction) -> Float[Tensor, "N D"]:
        """Embed N observations with B instructions; each instruction belongs to N / B consecutive observations.

        Raises:
            BadInputError: If an instruction is not a text, or the number of instructions does not divide the number of
                observations.
        """
        count = len(instruction)
        texts = not isinstance(instruction, Tensor) and count > 0 and len(frames) % count == 0
        hint = "pass the instruction of every observation"
        require(texts, "instruction", f"{count} for {len(frames)}", "a text for each, or each run", hint)
        seen = functional.normalize(self.dual.encode_image(frames), dim=-1)
        told = functional.normalize(self.dual.encode_text(cast(list[str], list(instruction))), dim=-1)
        return torch.cat([seen.flatten(1), told.repeat_interleave(len(frames) // len(told), 0)], 1)


class ObservationEncoder(HubEncoder):
    """Maps observations to embeddings of D dimensions.

    Args:
        config: The configuration; `encoder.config` is a copy with defaults filled in for fields left `None`.

    Attributes:
        embed_dim: Dimensions of the embedding (D): `config.embed_dim` times the number of cameras.
        takes_instruction: True if `forward` needs an instruction.

    Raises:
        BadInputError: If a checkpoint cannot be read or does not fit, or `embed_dim` is not the pretrained model's.
        MissingExtraError: If the library of a pretrained model or of the sentence encoder is not installed.
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
        self.takes_instruction = config.kind in (*_FILM, "dual")
        self.body: nn.Module
        if config.cameras > 1:
            one = config.model_copy(update={"cameras": 1})
            each = [ObservationEncoder(one) for _ in range(config.cameras)]
            self.body, width = nn.ModuleList(each), each[0].embed_dim
        else:
            self.body, width = _body(config) if config.cameras else (nn.Identity(), 0)
        first = self.body[0].body if isinstance(self.body, nn.ModuleList) else self.body
        dual = {"dual": first.dual.config} if isinstance(first, InstructedImages) else {}
        self.config = config.model_copy(update={"embed_dim": width, **dual})
        self.embed_dim = width * config.cameras
        if config.cameras == 1 and config.kind not in _OWN_NORMALISATION:
            # [H, W, 3] and a scalar, for pixels in [0, 1]; the paper's x / 255 - 0.5 until `centre_on` is called.
            self.register_buffer("mean_image", torch.full((config.size, config.size, 3), 0.5))
            self.register_buffer("deviation", torch.ones(()))
            self.body.to(memory_format=torch.channels_last)

    @property
    def vits(self) -> tuple[nn.Module, ...]:
        """The timm model of each camera, in order; only for kind `vit`.

        Raises:
            BadInputError: If the kind is not `vit`.
        """
        kind, hint = self.config.kind, 'set encoder.kind = "vit", or leave the term that needs tokens out'
        require(kind == "vit", "encoder", f"kind {kind!r}, which has no tokens", "kind 'vit'", hint)
        if isinstance(self.body, nn.ModuleList):
            return tuple(vit for encoder in self.body for vit in cast(ObservationEncoder, encoder).vits)
        return (cast(ViT, self.body).vit,)

    def centre_on(self, frames: UInt8[Tensor, "N *cameras H W 3"]) -> None:
        """Measure mean and deviation of images or features on training frames, before training, if `centre` is set.

        Args:
            frames: N images; with several cameras, [N, C, H, W, 3].

        Raises:
            BadInputError: If frames are empty or have the wrong size, or a pretrained model was built without `centre`.
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
            frames: uint8 in [0, 255] or float in [0, 1]; F = C S: the S frames of the first camera, the oldest first,
                then the frames of the next camera.
            instruction: For kinds that take an instruction: B texts, or sentence embeddings [B, E]. N is a multiple of
                B, and each instruction belongs to N / B consecutive observations.

        Returns:
            The embedding of each observation, concatenated over cameras: `.unflatten(1, (C, -1))` separates them.

        Raises:
            BadInputError: If frames have the wrong size, stack or dtype, or an instruction is missing or superfluous.
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
        # Single precision or higher, also under autocast, since losses divide by temperatures.
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
        if self.takes_instruction and (config.dual is None or config.dual.text == "minilm"):
            model = config.text_model if config.dual is None else config.dual.text_model
            facts["Sentence encoder"] = f"`{model}`, frozen, **not** part of `model.safetensors`"
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
    """Return the network of one camera, without the normalisation before it, and the width of its embedding."""
    channels = 3 * config.stack
    if config.kind in _OWN_NORMALISATION:
        body: nn.Module
        if config.kind == "vit":
            body = ViT(config.vit, size=config.size, stack=config.stack, start=config.checkpoint)
        elif config.kind == "dual":
            start, own = config.checkpoint, config.dual
            expected, hint = "a folder or Hub id of a reward model or dual encoder", "set encoder.checkpoint"
            require(start is not None or own is not None, "encoder of kind 'dual'", "no checkpoint", expected, hint)
            with relocated("--encoder.checkpoint, "):
                dual = DualEncoder.from_pretrained(start) if start is not None else DualEncoder.rebuilt(cast(Any, own))
            body = InstructedImages(dual, stack=config.stack)
        else:
            from counterpoint.encoders.pretrained import PretrainedEncoder  # imported only when such a model is built

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
