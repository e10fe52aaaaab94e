"""The folder every model is saved in: `config.json`, `model.safetensors`, `digests.json` of the two, `README.md`.

`config.json` holds `kind` (one of `KINDS`) and `config`. A run keeps this folder as `RUN/model/`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from huggingface_hub import ModelCard, ModelCardData, PyTorchModelHubMixin, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError, OfflineModeIsEnabled
from torch import Tensor, nn

from counterpoint.config import FrozenConfig, validate
from counterpoint.encoders.weights import fit_weights, read_weights, write_weights
from counterpoint.errors import BadInputError, require
from counterpoint.files import sha256_of, write_atomically

CONFIG, WEIGHTS, DIGESTS = "config.json", "model.safetensors", "digests.json"

KINDS = {
    "dual_encoder": "counterpoint.encoders.dual:DualEncoder.from_pretrained",
    "observation_encoder": "counterpoint.encoders.observation:ObservationEncoder.from_pretrained",
    "cloned_policy": "counterpoint.policies.cloned:ClonedPolicy.from_pretrained",
    "diffusion_policy": "counterpoint.policies.diffusion_policy:DiffusionPolicy.from_pretrained",
    "agent": "counterpoint.agents:SavedAgent.from_pretrained",
}
"""Kind of a saved model -> what loads it."""

Config = TypeVar("Config", bound=FrozenConfig)
Module = TypeVar("Module", bound=nn.Module)
Value = TypeVar("Value")


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


def saved_digests(path_or_hub_id: str | Path, **hub: Any) -> str:
    """Return the digests of the configuration and the weights saved there, as text."""
    return _files(path_or_hub_id, (DIGESTS,), **hub)[DIGESTS].read_text(encoding="utf-8")


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
        usage = 'import counterpoint\n\nmodel = counterpoint.load("path/or/hub-id")'
        write_atomically(folder / "README.md", str(model_card(f"Counterpoint {kind.replace('_', ' ')}", usage)))
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
        hint = "check the path; a run writes model/ when it ends"
        for file in (folder / name for name in names):
            require(file.is_file(), file, "no such file", "a saved model, or a run that holds one", hint)
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
    kind, config = _json(files[CONFIG], lambda tree: (tree["kind"], dict(tree["config"])), "model's configuration")
    require(kind in KINDS, files[CONFIG], f"kind {kind!r}", f"one of {', '.join(KINDS)}", "save the model again")
    return kind, config


def _check_digest(files: Mapping[str, Path], name: str) -> None:
    expected = _json(files[DIGESTS], lambda tree: str(tree[name]), f"sha256 of {name}")
    found = sha256_of(files[name])
    hint = "copy or download the folder again; the file was changed or cut short"
    require(found == expected, files[name], f"sha256 {found[:12]}", f"{expected[:12]}, as in {DIGESTS}", hint)


def _json(file: Path, pick: Callable[[Any], Value], what: str) -> Value:
    try:
        return pick(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError) as error:
        hint = "copy the folder again, or save the model again"
        raise BadInputError(file, f"no {what} ({type(error).__name__}: {error})", f"a {what}", hint) from None


def model_card(
    title: str,
    usage: str,
    *,
    facts: Mapping[str, object] | None = None,
    sections: Mapping[str, str] | None = None,
    license: str | None = None,
) -> ModelCard:
    """Return the `README.md` of a saved model.

    Args:
        title: First heading.
        usage: Python code that loads and calls the model.
        facts: Rows of a table: name -> value.
        sections: Heading -> Markdown.
        license: Identifier of the weights' licence; left out when not given.
    """
    tags = ["counterpoint", "robotics", "representation-learning", "contrastive-learning"]
    data = ModelCardData(library_name="counterpoint", license=license, pipeline_tag="robotics", tags=tags)
    parts = [f"---\n{data.to_yaml()}\n---", f"# {title}"]
    parts += ["Written by [Counterpoint](https://counterpoint.readthedocs.io).", f"```python\n{usage}\n```"]
    if facts:
        parts.append("\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in facts.items())]))
    parts += [f"## {heading}\n\n{text}" for heading, text in (sections or {}).items()]
    return ModelCard("\n\n".join(parts) + "\n")


_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")


class HubEncoder(nn.Module, PyTorchModelHubMixin):
    """Base of encoders that are built from one configuration.

    Attributes:
        kind: Its name in `KINDS`.
        config_type: Class of `config`.
        start_field: The field of `config` with the weights that training starts from; saved as a record.
        config: The configuration it was built from, every open field resolved.
    """

    kind: ClassVar[str]
    config_type: ClassVar[type[FrozenConfig]]
    start_field: ClassVar[str]
    config: FrozenConfig

    def describe(self) -> tuple[str, dict[str, object], str]:
        """Return code that uses `encoder`, facts about it and its preprocessing, for the model card."""
        raise NotImplementedError

    def generate_model_card(
        self,
        title: str | None = None,
        start: str | None = None,
        repo_id: str = "path/or/hub-id",
        method: str = "Not stated.",
        data: str = "Not stated.",
        results: str = "None stated.",
        license: str | None = None,
        **_: Any,
    ) -> ModelCard:
        """Return the model card that `save_pretrained` writes, with what `model_card_kwargs` gives.

        Args:
            title: First heading.
            start: The weights that training started from; by default the configuration's.
            repo_id: The id that the usage example loads.
            method: Markdown about the training, with the paper.
            data: Markdown about the training data.
            results: Markdown about measurements, with the command.
            license: Identifier of the weights' licence.
        """
        usage, facts, preprocessing = self.describe()
        name = type(self).__name__
        load = f'from counterpoint.encoders import {name}\n\nencoder = {name}.from_pretrained("{repo_id}")\n{usage}'
        size = sum(value.numel() for value in self.state_dict().values())
        facts = {"Kind": self.kind.replace("_", " ")} | facts
        facts["Weights in `model.safetensors`"] = f"{size:,} numbers"
        facts["Started from"] = start or getattr(self.config, self.start_field) or "random weights"
        sections = {"Preprocessing": f"Done by the encoder: {preprocessing} Do not normalise before."}
        sections |= {"Method": method, "Training data": data, "Results": results}
        title = title or f"Counterpoint {self.kind.replace('_', ' ')}"
        return model_card(title, load, facts=facts, sections=sections, license=license)

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
            strict: Require all weights.
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
