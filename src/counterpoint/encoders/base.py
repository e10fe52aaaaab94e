"""The dual encoder: camera frames and instructions into one space."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from huggingface_hub import ModelCard, PyTorchModelHubMixin, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, OfflineModeIsEnabled
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from counterpoint.encoders.build import build_towers
from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.model_card import model_card
from counterpoint.encoders.preprocess import preprocess
from counterpoint.encoders.saved import CONFIG, WEIGHTS, parse_config, read_config, saved_folder
from counterpoint.encoders.weights import fit_weights, read_weights, write_weights
from counterpoint.errors import BadInputError

__all__ = ["DualEncoder", "EncoderConfig"]

_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")


class DualEncoder(nn.Module, PyTorchModelHubMixin):
    """An image tower and a text tower that meet in D dimensions.

    Saved as the Hugging Face Hub expects a model: `config.json` (the `EncoderConfig`), `model.safetensors`
    and `README.md` (the model card). A frozen sentence encoder is not among the weights; it is loaded from
    its package.

    Args:
        config: What to build. `encoder.config` is the same with every open field resolved.

    Raises:
        BadInputError: An unknown model or tag, or weights that do not fit.
        MissingExtraError: The library behind a tower is not installed.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        towers = build_towers(config)
        tower = towers.image
        self.config = config.model_copy(
            update={
                "embed_dim": tower.embed_dim,
                "image_size": tower.image_size,
                "mean": config.mean or tower.mean,
                "std": config.std or tower.std,
            }
        )
        self.embed_dim = tower.embed_dim
        self.image_size = tower.image_size
        self.image = tower.module
        self.text = towers.text
        self.register_buffer("mean", torch.tensor(self.config.mean), persistent=False)
        self.register_buffer("std", torch.tensor(self.config.std), persistent=False)

    def encode_image(self, frames: Shaped[Tensor, "*lead H W 3"]) -> Float[Tensor, "*lead D"]:
        """Embed images; raw, not normalised.

        Args:
            frames: uint8 in [0, 255] or float in [0, 1], any size, any leading dimensions, any device.

        Returns:
            Same leading dimensions; at least single precision, under autocast too.

        Raises:
            BadInputError: Another dtype or shape, or floats outside [0, 1].
        """
        images = preprocess(frames, size=self.image_size, mean=self.mean, std=self.std)
        return _full(self.image(images)).reshape(*frames.shape[:-3], self.embed_dim)

    def encode_text(self, texts: Sequence[str]) -> Float[Tensor, "N D"]:
        """Embed N instructions; raw, not normalised, at least single precision.

        Raises:
            BadInputError: One string instead of a sequence of them, none at all, or something that is no
                string.
        """
        if isinstance(texts, str) or not texts or not all(isinstance(text, str) for text in texts):
            raise BadInputError(
                "texts",
                found=repr(texts)[:80],
                expected="a sequence of one or more strings",
                mend="wrap a single instruction in a list",
            )
        return _full(self.text(list(texts)))

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **options: Any) -> Self:
        """Load a saved encoder, in evaluation mode.

        Args:
            pretrained_model_name_or_path: A folder written by `save_pretrained`, a run folder, or a Hub id.
            options: `map_location` ("cpu"), `strict` (True), and what `huggingface_hub` takes: `revision`,
                `token`, `cache_dir`, `force_download`, `local_files_only`.

        Raises:
            BadInputError: Nothing there, or something damaged; the message names the file.
            MissingExtraError: The library behind a tower is not installed.
        """
        source = str(pretrained_model_name_or_path)
        if Path(source).expanduser().exists() or not _HUB_ID.fullmatch(source):
            folder = saved_folder(source)
            read_config(folder)  # the Hub's loader reads it again, but does not say which file is at fault
            source = str(folder)
        try:
            return super().from_pretrained(source, **options)
        except (HfHubHTTPError, EntryNotFoundError, HFValidationError, OfflineModeIsEnabled) as error:
            raise BadInputError(
                source,
                found=f"no such folder, and nothing on the Hub ({str(error).splitlines()[0]})",
                expected="a saved encoder, a run, or the Hub id of one",
                mend="check the path or the id, and that the Hub can be reached",
            ) from error

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: str | Path | None,
        force_download: bool,
        local_files_only: bool,
        token: str | bool | None,
        map_location: str = "cpu",
        strict: bool = True,
        config: Mapping[str, Any] | None = None,
        **unknown: Any,
    ) -> Self:
        if unknown:
            raise TypeError(f"from_pretrained got unknown options: {', '.join(unknown)}")
        folder = Path(model_id)
        settings = parse_config(config or {}, folder / CONFIG)
        # The saved weights replace the starting point: it is neither fetched nor needed again.
        encoder = cls(settings.model_copy(update={"pretrained": None}))
        encoder.config = encoder.config.model_copy(update={"pretrained": settings.pretrained})
        file = folder / WEIGHTS
        if not folder.is_dir():
            file = Path(
                hf_hub_download(
                    model_id,
                    WEIGHTS,
                    revision=revision,
                    cache_dir=cache_dir,
                    force_download=force_download,
                    local_files_only=local_files_only,
                    token=token,
                )
            )
        weights = read_weights(file)
        if strict:
            fit_weights(encoder, weights, file)
        else:
            encoder.load_state_dict(weights, strict=False)
        return encoder.to(map_location).eval()

    def _save_pretrained(self, save_directory: Path) -> None:
        write_weights(self.state_dict(), save_directory / WEIGHTS)
        draft = save_directory / f"{CONFIG}.tmp"
        draft.write_text(self.config.model_dump_json(indent=2) + "\n", encoding="utf-8")
        draft.replace(save_directory / CONFIG)

    def generate_model_card(self, *args: Any, **sections: Any) -> ModelCard:
        """The model card `save_pretrained` writes; `sections` are those of `model_card.model_card`."""
        return model_card(self.config, sum(value.numel() for value in self.state_dict().values()), **sections)


def _full(embeddings: Tensor) -> Tensor:
    """At least single precision: losses divide by temperatures that half precision does not survive."""
    return embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
