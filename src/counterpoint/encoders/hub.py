"""Saving and loading of encoders, as the Hugging Face Hub expects a model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from huggingface_hub import PyTorchModelHubMixin, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, OfflineModeIsEnabled
from torch import nn

from counterpoint.config import FrozenConfig
from counterpoint.encoders.saved import CONFIG, WEIGHTS, parse_config, read_config, saved_folder
from counterpoint.encoders.weights import fit_weights, read_weights, write_weights
from counterpoint.errors import BadInputError

__all__ = ["HubEncoder"]

_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")


class HubEncoder(nn.Module, PyTorchModelHubMixin):
    """Base of encoders that are built from one configuration.

    A saved one is a folder of `config.json`, `model.safetensors` and `README.md` (the model card).

    Attributes:
        config_type: Class of `config`.
        start_field: The field of `config` that says where weights start; a saved encoder remembers it, and
            needs it no more.
        config: What it was built from, every open field resolved.
    """

    config_type: ClassVar[type[FrozenConfig]]
    start_field: ClassVar[str]
    config: FrozenConfig

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
            # The Hub's loader reads it again, but does not say which file is at fault.
            read_config(folder, cls.config_type)
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
        settings = parse_config(config or {}, folder / CONFIG, cls.config_type)
        # The saved weights replace the starting point: it is neither fetched nor needed again.
        encoder = cls(settings.model_copy(update={cls.start_field: None}))
        start = {cls.start_field: getattr(settings, cls.start_field)}
        encoder.config = encoder.config.model_copy(update=start)
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
