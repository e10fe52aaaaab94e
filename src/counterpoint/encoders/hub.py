"""The folder an encoder is saved in: where it is and what its configuration says.

The model card written beside saved weights.

The model card written beside a saved observation encoder.

Saving and loading of encoders, as the Hugging Face Hub expects a model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from huggingface_hub import ModelCard, ModelCardData, PyTorchModelHubMixin, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, OfflineModeIsEnabled
from pydantic import ValidationError
from torch import nn

from counterpoint.config import FrozenConfig
from counterpoint.encoders.towers import EncoderConfig
from counterpoint.encoders.weights import fit_weights, read_weights, write_weights
from counterpoint.errors import BadInputError

__all__ = [
    "CONFIG",
    "WEIGHTS",
    "HubEncoder",
    "model_card",
    "observation_card",
    "parse_config",
    "read_config",
    "saved_folder",
]


CONFIG = "config.json"
WEIGHTS = "model.safetensors"

Config = TypeVar("Config", bound=FrozenConfig)


def saved_folder(path: str | Path) -> Path:
    """The folder of the encoder saved at `path`: `path` itself, or what a run keeps in `pretrained/`.

    Raises:
        BadInputError: No encoder is saved there.
    """
    folder = Path(path).expanduser()
    if (folder / "pretrained").is_dir():
        folder = folder / "pretrained"
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise BadInputError(
                folder / name,
                "no such file",
                "a folder written by save_pretrained, or a run that holds one",
                "check the path; a run writes pretrained/ when it ends",
            )
    return folder


def read_config(folder: Path, kind: type[Config]) -> Config:
    """The configuration of the encoder saved in `folder`, of the class `kind`.

    Raises:
        BadInputError: It is damaged, or was written for something else.
    """
    where = folder / CONFIG
    try:
        found = json.loads(where.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadInputError(where, f"no JSON ({error})", "an encoder's configuration", "copy it again") from error
    return parse_config(found, where, kind)


def parse_config(found: Mapping[str, Any], where: str | Path, kind: type[Config]) -> Config:
    """The configuration read from `where`, of the class `kind`.

    Raises:
        BadInputError: An unknown or ill-typed entry.
    """
    try:
        return kind.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInputError(
            where,
            f"{'.'.join(map(str, first['loc'])) or 'the whole'}: {first['msg']}",
            "an encoder's configuration",
            "save the encoder again with this version of the library",
        ) from error


_TEMPLATE = """\
---
{{ card_data }}
---

# {{ title }}

A dual encoder of camera frames and instructions, written by
[Counterpoint](https://counterpoint.readthedocs.io).

```python
from counterpoint.encoders import DualEncoder

encoder = DualEncoder.from_pretrained("{{ repo_id }}")
# uint8 or float in [0, 1], [..., H, W, 3] -> [..., {{ config.embed_dim }}]
frames = encoder.encode_image(images)
# [1, {{ config.embed_dim }}]
text = encoder.encode_text(["open the drawer"])
```

## Architecture

| | |
|---|---|
| Image tower | {{ config.image }} {{ config.image_model }} |
| Text tower | {{ text_tower }} |
| Embedding | {{ config.embed_dim }} numbers, raw (not normalised) |
| Weights in `model.safetensors` | {{ "{:,}".format(size) }} numbers |
| Started from | {{ start }} |
{% if config.text == "minilm" %}
The sentence encoder is frozen and is **not** part of `model.safetensors`: it is loaded from
`{{ config.text_model }}`.
{% endif %}
## Preprocessing

Done by the encoder: pixels to [0, 1] by dtype, stretched to {{ config.image_size }} x {{ config.image_size }}
(bilinear, antialiased), minus {{ config.mean }}, divided by {{ config.std }}. Do not normalise before.

## Method

{{ method }}

## Training data

{{ data }}

## Results

{{ results }}
"""


def model_card(
    config: EncoderConfig,
    size: int,
    *,
    title: str = "Counterpoint dual encoder",
    start: str | None = None,
    repo_id: str = "path/or/hub-id",
    method: str = "Not stated.",
    data: str = "Not stated.",
    results: str = "None stated.",
    license: str | None = None,
) -> ModelCard:
    """The card of an encoder.

    Args:
        config: The resolved configuration.
        size: How many numbers the weight file holds.
        title: First heading.
        start: Where training started; when not given, what the configuration says.
        repo_id: What the usage example loads.
        method: Markdown: how it was trained, with the paper.
        data: Markdown: on what.
        results: Markdown: what was measured, with the command.
        license: Identifier of the weights' licence; left out when not given.
    """
    metadata = ModelCardData(
        library_name="counterpoint",
        license=license,
        pipeline_tag="robotics",
        tags=["counterpoint", "robotics", "representation-learning", "contrastive-learning", "vision-language"],
    )
    towers = {
        "minilm": f"{config.text_model} (frozen), learned linear map",
        "open_clip": f"that of {config.image_model}",
    }
    card: ModelCard = ModelCard.from_template(
        card_data=metadata,
        template_str=_TEMPLATE,
        config=config,
        size=size,
        text_tower=towers[config.text] + (" (frozen)" if config.freeze_text else ""),
        title=title,
        start=start or config.pretrained or "random weights",
        repo_id=repo_id,
        method=method,
        data=data,
        results=results,
    )
    return card


_TEMPLATE_OBSERVATION_CARD = """\
---
{{ card_data }}
---

# {{ title }}

An encoder of camera observations for control, written by
[Counterpoint](https://counterpoint.readthedocs.io).

```python
from counterpoint.encoders.observation import ObservationEncoder

encoder = ObservationEncoder.from_pretrained("{{ repo_id }}")
# uint8 or float in [0, 1], [N, {{ frames }}, {{ config.size }}, {{ config.size }}, 3] -> [N, {{ width }}]
state = encoder(observations{{ ", instructions" if film }})
```

## Architecture

| | |
|---|---|
| Kind | {{ config.kind }} {{ config.model }} |
| Observation | {{ config.stack }} frames, {{ config.cameras }} camera(s), {{ config.size }} x {{ config.size }} |
| Embedding | {{ width }} numbers |
| Weights in `model.safetensors` | {{ "{:,}".format(size) }} numbers |
| Started from | {{ start }} |
{% if film %}
The sentence encoder is frozen and is **not** part of `model.safetensors`: it is loaded from
`{{ config.text_model }}`.
{% endif %}
## Preprocessing

Done by the encoder: {{ preprocessing }} Do not normalise before.

## Method

{{ method }}

## Training data

{{ data }}

## Results

{{ results }}
"""

_PREPROCESSING = {
    "pretrained": "each frame is resized, cut and normalised as the authors of the model do it.",
    "centred": "the training frames' mean image is taken off, then their deviation divided out; both are in the "
    "weights.",
    "plain": "pixels in [0, 255] become x / 255 - 0.5.",
}


def observation_card(
    config: Mapping[str, Any],
    width: int,
    size: int,
    *,
    title: str = "Counterpoint observation encoder",
    start: str | None = None,
    repo_id: str = "path/or/hub-id",
    method: str = "Not stated.",
    data: str = "Not stated.",
    results: str = "None stated.",
    license: str | None = None,
) -> ModelCard:
    """The card of an observation encoder.

    Args:
        config: The resolved configuration, as a mapping.
        width: D.
        size: How many numbers the weight file holds.
        title: First heading.
        start: Where training started; when not given, what the configuration says.
        repo_id: What the usage example loads.
        method: Markdown: how it was trained, with the paper.
        data: Markdown: on what.
        results: Markdown: what was measured, with the command.
        license: Identifier of the weights' licence; left out when not given.
    """
    metadata = ModelCardData(
        library_name="counterpoint",
        license=license,
        pipeline_tag="robotics",
        tags=["counterpoint", "robotics", "representation-learning", "contrastive-learning", "control"],
    )
    kind = "pretrained" if config["kind"] == "pretrained" else "centred" if config["centre"] else "plain"
    card: ModelCard = ModelCard.from_template(
        card_data=metadata,
        template_str=_TEMPLATE_OBSERVATION_CARD,
        config=config,
        frames=config["cameras"] * config["stack"],
        film=config["kind"] in ("resnet18_film", "libero"),
        width=width,
        size=size,
        preprocessing=_PREPROCESSING[kind],
        title=title,
        start=start or config["checkpoint"] or "random weights",
        repo_id=repo_id,
        method=method,
        data=data,
        results=results,
    )
    return card


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
                f"no such folder, and nothing on the Hub ({str(error).splitlines()[0]})",
                "a saved encoder, a run, or the Hub id of one",
                "check the path or the id, and that the Hub can be reached",
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
