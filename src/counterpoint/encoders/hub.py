"""The folder every model is saved in: `config.json`, `model.safetensors`, `digests.json` of the two, `README.md`.

`config.json` holds `kind` (one of `KINDS`) and `config`. A run keeps this folder as `RUN/model/`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from huggingface_hub import ModelCard, ModelCardData, PyTorchModelHubMixin, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, OfflineModeIsEnabled
from torch import Tensor, nn

from counterpoint.config import FrozenConfig, validate
from counterpoint.encoders.towers import EncoderConfig
from counterpoint.encoders.weights import fit_weights, read_weights, write_weights
from counterpoint.errors import BadInputError, require
from counterpoint.files import sha256_of, write_atomically

__all__ = [
    "KINDS",
    "HubEncoder",
    "SavedModel",
    "load",
    "model_card",
    "observation_card",
    "read_model",
    "saved_kind",
    "write_digests",
    "write_model",
]

CONFIG, WEIGHTS, DIGESTS = "config.json", "model.safetensors", "digests.json"

KINDS = {
    "dual_encoder": "counterpoint.encoders.base:DualEncoder.from_pretrained",
    "observation_encoder": "counterpoint.encoders.observation:ObservationEncoder.from_pretrained",
    "cloned_policy": "counterpoint.policies.cloned:ClonedPolicy.from_pretrained",
    "diffusion_policy": "counterpoint.policies.diffusion_policy:DiffusionPolicy.from_pretrained",
    "agent": "counterpoint.agents:SavedAgent.from_pretrained",
}
"""Kind of a saved model -> what loads it."""

Config = TypeVar("Config", bound=FrozenConfig)
Module = TypeVar("Module", bound=nn.Module)


def load(path_or_hub_id: str | Path, *, map_location: str = "cpu", **hub: Any) -> Any:
    """Return the encoder, policy or agent that was saved.

    Args:
        path_or_hub_id: A run, a folder that `save_pretrained` wrote, or a Hub id.
        map_location: The device it goes to.
        hub: Options of `huggingface_hub`: `revision`, `token`, `cache_dir`, `force_download`, `local_files_only`.

    Raises:
        BadInputError: When nothing is saved there, or a file is damaged or of an unknown kind.
    """
    module, _, name = KINDS[saved_kind(path_or_hub_id, **hub)].partition(":")
    return attrgetter(name)(import_module(module))(path_or_hub_id, map_location=map_location, **hub)


def saved_kind(path_or_hub_id: str | Path, **hub: Any) -> str:
    """Return the kind of the model saved there, one of `KINDS`."""
    return _read_config(_files(path_or_hub_id, (CONFIG, DIGESTS), **hub))[0]


@dataclass(frozen=True)
class SavedModel:
    """A model's folder as it was read.

    Attributes:
        file: Its `config.json`, for messages.
        config: The configuration in it.
        weights: Name -> tensor.
        weights_file: Its `model.safetensors`, for messages.
    """

    file: Path
    config: dict[str, Any]
    weights: dict[str, Tensor]
    weights_file: Path

    def settings(self, kind: type[Config]) -> Config:
        """Return the configuration as an instance of its class."""
        return validate(kind, self.config, str(self.file))

    def fill(self, module: Module, map_location: str = "cpu") -> Module:
        """Return the module with the saved weights, on its device and in evaluation mode."""
        fit_weights(module, self.weights, self.weights_file)
        return module.to(map_location).eval()


def read_model(path_or_hub_id: str | Path, kind: str, **hub: Any) -> SavedModel:
    """Read a folder of one kind; digests are checked first.

    Raises:
        BadInputError: When a file is missing or damaged, or the model is of another kind.
    """
    files = _files(path_or_hub_id, (CONFIG, DIGESTS, WEIGHTS), **hub)
    found, config = _read_config(files)
    require(found == kind, files[CONFIG], f"kind {found!r}", repr(kind), "load any kind with counterpoint.load")
    _check_digest(files, WEIGHTS)
    return SavedModel(files[CONFIG], config, read_weights(files[WEIGHTS]), files[WEIGHTS])


def write_model(
    folder: Path, kind: str, config: Mapping[str, Any], weights: Mapping[str, Tensor], *, card: bool = True
) -> Path:
    """Write a model's folder, made when absent; digests come last.

    Args:
        folder: The folder.
        kind: One of `KINDS`.
        config: JSON values; all that is needed to build the model again.
        weights: Name -> tensor.
        card: Write a short `README.md` too.

    Returns:
        The folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(weights, folder / WEIGHTS)
    write_atomically(folder / CONFIG, json.dumps({"kind": kind, "config": config}, indent=2) + "\n")
    if card:
        write_atomically(folder / "README.md", _SHORT_CARD.format(kind=kind.replace("_", " ")))
    write_digests(folder)
    return folder


def write_digests(folder: Path) -> None:
    """Write `digests.json` of the files that are there."""
    digests = {name: sha256_of(folder / name) for name in (CONFIG, WEIGHTS)}
    write_atomically(folder / DIGESTS, json.dumps(digests, indent=1) + "\n")


def _files(
    source: str | Path,
    names: tuple[str, ...],
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    force_download: bool = False,
    local_files_only: bool = False,
) -> dict[str, Path]:
    folder = Path(source).expanduser()
    if folder.exists() or not _HUB_ID.fullmatch(str(source)):
        folder = folder / "model" if (folder / "model").is_dir() else folder
        for name in names:
            there = (folder / name).is_file()
            hint = "check the path; a run writes model/ when it ends"
            require(there, folder / name, "no such file", "a saved model, or a run that holds one", hint)
        return {name: folder / name for name in names}
    options: dict[str, Any] = {"revision": revision, "token": token, "cache_dir": cache_dir}
    options |= {"force_download": force_download, "local_files_only": local_files_only}
    try:
        return {name: Path(str(hf_hub_download(str(source), name, **options))) for name in names}
    except (HfHubHTTPError, EntryNotFoundError, HFValidationError, OfflineModeIsEnabled) as error:
        found = f"no such folder, and nothing on the Hub ({str(error).splitlines()[0]})"
        hint = "check the path or the id, and that the Hub can be reached"
        raise BadInputError(source, found, "a saved model, a run, or a Hub id", hint) from error


def _read_config(files: Mapping[str, Path]) -> tuple[str, dict[str, Any]]:
    _check_digest(files, CONFIG)
    try:
        tree = json.loads(files[CONFIG].read_text(encoding="utf-8"))
        kind, config = tree["kind"], dict(tree["config"])
    except (ValueError, KeyError, TypeError) as error:
        found = f"no model's configuration ({type(error).__name__}: {error})"
        raise BadInputError(files[CONFIG], found, '{"kind": ..., "config": ...}', "save the model again") from None
    require(kind in KINDS, files[CONFIG], f"kind {kind!r}", f"one of {', '.join(KINDS)}", "save the model again")
    return kind, config


def _check_digest(files: Mapping[str, Path], name: str) -> None:
    try:
        expected = str(json.loads(files[DIGESTS].read_text())[name])
    except (ValueError, KeyError, TypeError) as error:
        found = f"no digest ({type(error).__name__}: {error})"
        raise BadInputError(files[DIGESTS], found, f"the sha256 of {name}", "copy the folder again") from None
    found = sha256_of(files[name])
    hint = "copy or download the folder again; the file was changed or cut short"
    require(found == expected, files[name], f"sha256 {found[:12]}", f"{expected[:12]}, as in {DIGESTS}", hint)


_SHORT_CARD = """\
---
library_name: counterpoint
pipeline_tag: robotics
---

# Counterpoint {kind}

```python
import counterpoint

model = counterpoint.load("path/or/hub-id")
```
"""

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

    Attributes:
        kind: Its name in `KINDS`.
        config_type: Class of `config`.
        start_field: The field of `config` that says where weights start; a saved encoder keeps it as a record.
        config: The configuration it was built from, every open field resolved.
    """

    kind: ClassVar[str]
    config_type: ClassVar[type[FrozenConfig]]
    start_field: ClassVar[str]
    config: FrozenConfig

    @classmethod
    def rebuilt(cls, config: FrozenConfig) -> Self:
        """Return an encoder for saved weights: the starting point is neither fetched nor needed again."""
        encoder = cls(config.model_copy(update={cls.start_field: None}))
        start = {cls.start_field: getattr(config, cls.start_field)}
        encoder.config = encoder.config.model_copy(update=start)
        return encoder

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | Path, *, map_location: str = "cpu", strict: bool = True, **hub: Any
    ) -> Self:
        """Load a saved encoder, in evaluation mode.

        Args:
            pretrained_model_name_or_path: A folder written by `save_pretrained`, a run, or a Hub id.
            map_location: The device it goes to.
            strict: Whether all weights must be there.
            hub: Options of `huggingface_hub`, as in `load`.

        Raises:
            BadInputError: When nothing is there, or a file is damaged; the message names the file.
            MissingExtraError: When the library behind a tower is not installed.
        """
        saved = read_model(pretrained_model_name_or_path, cls.kind, **hub)
        encoder = cls.rebuilt(saved.settings(cls.config_type))
        if strict:
            return saved.fill(encoder, map_location)
        encoder.load_state_dict(saved.weights, strict=False)
        return encoder.to(map_location).eval()

    def _save_pretrained(self, save_directory: Path) -> None:
        write_model(save_directory, self.kind, self.config.model_dump(mode="json"), self.state_dict(), card=False)
