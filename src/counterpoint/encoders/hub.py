"""The folder of a saved model; its repository on the Hub has the same content.

The folder holds `config.json`, with the keys `format`, `kind` (one of `KINDS`) and `config`; `model.safetensors`;
further weights that were trained with the model; the digests of all these files in `SHA256SUMS`; and the model card
`README.md`. In a training run, this folder is `RUN/model/`.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, ClassVar, Self, TypeVar, Unpack

from huggingface_hub import ModelCard, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError
from torch import Tensor, nn
from tyro.conf import Positional, arg

from counterpoint.config import FrozenConfig, validate
from counterpoint.encoders.card import ANY_ID, README, Card, Description, model_card, with_results
from counterpoint.encoders.weights import fit_weights, read_weights, write_weights
from counterpoint.errors import BadInputError, require, suggestion, usable_device
from counterpoint.files import read_object, write_atomically
from counterpoint.folder import DIGESTS, FORMAT, check_part, digests_of, require_format, seal
from counterpoint.parameter_types import Name, PythonOnly
from counterpoint.provenance import note_download
from counterpoint.registry import LazyTable
from counterpoint.repositories import first_words, hub_errors, hub_id, id_advice, require_id, upload

CONFIG, WEIGHTS = "config.json", "model.safetensors"

KINDS = LazyTable(
    "kind",
    {
        "dual_encoder": "counterpoint.encoders.dual:DualEncoder",
        "observation_encoder": "counterpoint.encoders.observation:ObservationEncoder",
        "cloned_policy": "counterpoint.policies.cloned:ClonedPolicy",
        "diffusion_policy": "counterpoint.policies.diffusion_policy:DiffusionPolicy",
        "agent": "counterpoint.agents:SavedAgent",
    },
)
"""Kind of a saved model -> its class, whose `from_pretrained` reads the folder."""

MAKERS = {
    "dual_encoder": "`counterpoint train decisionnce_t-demo`, or another recipe of kind clips, trains one",
    "observation_encoder": "`counterpoint train premier_taco-metaworld`, or another of kind transitions, trains one",
    "cloned_policy": "`counterpoint train cloning` trains one",
    "diffusion_policy": "`counterpoint train diff_c-robosuite`, or another recipe of kind imitation, trains one",
    "agent": "`counterpoint train td_infonce`, or another agent, trains one",
}
"""Kind of a saved model -> the command that makes one, for hints."""

Config = TypeVar("Config", bound=FrozenConfig)
Module = TypeVar("Module", bound=nn.Module)
Value = TypeVar("Value")


def load(path_or_hub_id: str | Path, *, map_location: str = "cpu", **hub: Any) -> Any:
    """Return a saved encoder, policy or agent.

    Args:
        path_or_hub_id: A run, a folder that `save_pretrained` wrote, a Hub id ORG/NAME or ORG/NAME@COMMIT, or the name
            of a model that its authors released: decisionnce-p, decisionnce-t, actol, liv, vip, r3m, r3m-34 or r3m-18.
            It is read as a Hub id only if there is no local folder ORG. A released model is fetched and converted at
            first use.
        map_location: The device that the model is loaded on.
        hub: Options of `huggingface_hub`: `revision`, `token`, `cache_dir`, `force_download`, `local_files_only`. For
            released models, only the last has a meaning.

    Raises:
        BadInputError: If the source holds no saved model, a file is damaged, the kind is unknown, the model was saved
            by another version, or the device is absent. If a released model cannot be fetched; the message says which
            file to put where.
    """
    kind: type[Any] = KINDS[saved_kind(path_or_hub_id, **hub)]
    return kind.from_pretrained(path_or_hub_id, map_location=map_location, **hub)


def is_foreign(source: str) -> bool:
    """Return whether a source names a model of others: `module:name`, or the folder of a LeRobot reward model."""
    config = Path(source) / "config.json"
    if re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", source):
        return True
    settings = read_object(config, "a configuration", "restore the file") if config.is_file() else {}
    return "type" in settings and "kind" not in settings


def saved_kind(path_or_hub_id: str | Path, **hub: Any) -> str:
    """Return the kind of a saved model, one of `KINDS`."""
    return _read_config(_fetched(path_or_hub_id, (CONFIG, DIGESTS), **hub))[0]


def saved_digests(path_or_hub_id: str | Path, **hub: Any) -> dict[str, str]:
    """Return the digests, by file name, of the saved configuration and of all saved weights."""
    return digests_of(_fetched(path_or_hub_id, (CONFIG, DIGESTS), **hub))


@dataclass(frozen=True)
class ModelFiles:
    """The content of a model's folder.

    Attributes:
        file: The path of `config.json`, for error messages.
        config: The configuration in `config.json`.
        weights: Tensors by name.
        weights_file: The path of `model.safetensors`, for error messages.
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


def read_model(path_or_hub_id: str | Path, kind: str, map_location: str, **hub: Any) -> ModelFiles:
    """Read the folder of a model of this kind, after checking the device and the digests.

    Raises:
        BadInputError: If the device is absent, a file is missing or damaged, or the model is of another kind.
    """
    usable_device(map_location)
    folder = _fetched(path_or_hub_id, (CONFIG, DIGESTS, WEIGHTS), **hub)
    found, config = _read_config(folder)
    code = None if Path(path_or_hub_id).expanduser().exists() else _code_in(config)
    hint = "look at what it names, then download the folder and load it by its path"
    expected = "a model of the Hub that names no code"
    require(code is None, path_or_hub_id, f"a model that runs {code!r} of an installed package", expected, hint)
    require(found == kind, folder / CONFIG, f"kind {found!r}", repr(kind), MAKERS[kind])
    weights = check_part(folder, WEIGHTS, _HINT)
    return ModelFiles(folder / CONFIG, config, read_weights(weights), weights)


def _code_in(config: Any) -> str | None:
    """Return the first function that would be imported and called to build a model from this configuration.

    The function is the setting `image_model`; `None` if the configuration names no function.
    """
    if not isinstance(config, dict):
        return None
    if config.get("image") == "module":
        return str(config.get("image_model"))
    return next((code for part in config.values() if (code := _code_in(part)) is not None), None)


def further_weights(path_or_hub_id: str | Path, name: str, **hub: Any) -> tuple[Path, dict[str, Tensor]] | None:
    """Return the path and content of further weights that were saved with a model; `None` if there are none.

    Raises:
        BadInputError: If the file is listed in `SHA256SUMS` but missing, or is damaged.
    """
    file = f"{name}.safetensors"
    if file not in saved_digests(path_or_hub_id, **hub):
        return None
    path = check_part(_fetched(path_or_hub_id, (CONFIG, DIGESTS, file), **hub), file, _HINT)
    return path, read_weights(path)


def write_model(
    folder: Path,
    kind: str,
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    further: Mapping[str, Mapping[str, Tensor]] | None = None,
) -> Path:
    """Write a model's folder without its card. The folder is created if necessary; digests are written last.

    Args:
        folder: The folder.
        kind: One of `KINDS`.
        config: The settings from which the model can be rebuilt, as JSON values.
        weights: Tensors by name.
        further: Further weights: for each name, tensors by their names, saved as NAME.safetensors.

    Returns:
        The folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(weights, folder / WEIGHTS)
    for name, others in (further or {}).items():
        write_weights(others, folder / f"{name}.safetensors")
    about = {"format": FORMAT, "kind": kind, "config": config}
    write_atomically(folder / CONFIG, json.dumps(about, indent=2) + "\n")
    seal(folder, [CONFIG, WEIGHTS, *(f"{name}.safetensors" for name in further or {})])
    return folder


def _fetched(
    source: str | Path,
    names: tuple[str, ...],
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    force_download: bool = False,
    local_files_only: bool = False,
) -> Path:
    """Return the folder of a saved model that has these files; files on the Hub are downloaded."""
    folder, named = Path(source).expanduser(), None
    found, hint = "no such file", "check the path; a run writes model/ when it ends"
    if not folder.exists():
        from counterpoint.encoders.released import RELEASED, is_released, released_folder

        if is_released(source):
            return released_folder(str(source), offline=local_files_only)
        named = hub_id(source)
        hint = suggestion(source, RELEASED) or hint
    if named is None:
        folder = folder / "model" if (folder / "model").is_dir() else folder
        if (folder / "checkpoints").is_dir():
            found, hint = "a run that has not ended", "repeat its `counterpoint train` command, which continues it"
        for file in (folder / name for name in names):
            if file.name == DIGESTS and not file.is_file():
                _refuse_another_version(folder / CONFIG)
            if not file.is_file():
                advice = f"{hint}{id_advice(source, 'model')}"
                raise BadInputError(file, found, "a saved model, or a run that holds one", advice)
        return folder
    name, pinned = named
    options: dict[str, Any] = {"revision": revision or pinned, "token": token, "cache_dir": cache_dir}
    options |= {"force_download": force_download, "local_files_only": local_files_only}
    commit: Path | None = None
    try:
        for file_name in names:
            commit = Path(str(hf_hub_download(name, file_name, **options))).parent
    except hub_errors() as error:
        if isinstance(error, EntryNotFoundError) and commit is not None:
            _refuse_another_version(commit / CONFIG)
        found = f"no such folder, and nothing on the Hub ({first_words(error)})"
        hint = "check the path or the id, and that the Hub can be reached; offline, runs, saved folders and ids that "
        hint += "were downloaded before work"
        raise BadInputError(source, found, "a saved model, a run, or a Hub id", hint) from error
    assert commit is not None
    if commit.parent.name == "snapshots":  # the layout of the Hub's cache
        note_download(name, commit.name)
    return commit


def _read_config(folder: Path) -> tuple[str, dict[str, Any]]:
    file = check_part(folder, CONFIG, _HINT)
    _refuse_another_version(file)
    kind, config = _json(file, lambda tree: (tree["kind"], dict(tree["config"])), "model's configuration")
    require(kind in KINDS, file, f"kind {kind!r}", f"one of {', '.join(KINDS)}", "save the model again")
    return kind, config


def _refuse_another_version(config: Path) -> None:
    tree = _json(config, lambda tree: {**tree}, "model's configuration")
    require_format(config, tree.get("format"), "a model")


def _json(file: Path, pick: Callable[[Any], Value], what: str) -> Value:
    try:
        return pick(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError) as error:
        hint = "copy the folder again, or save the model again"
        raise BadInputError(file, f"no {what} ({type(error).__name__}: {error})", f"a {what}", hint) from None


_HINT = "copy or download the folder again; the file was changed or cut short"


class SavedModel:
    """Base of everything that is saved: encoders, policies and agents.

    Attributes:
        kind: The model's name in `KINDS`.
    """

    kind: ClassVar[str]

    def contents(self) -> tuple[Mapping[str, Any], Mapping[str, Tensor]]:
        """Return the configuration, as JSON values, and the weights."""
        raise NotImplementedError

    def describe(self) -> Description:
        """Return the model's description for the model card."""
        raise NotImplementedError

    def save_pretrained(
        self, folder: str | Path, *, further: Mapping[str, nn.Module] | None = None, **card: Unpack[Card]
    ) -> Path:
        """Write the model's folder, which is created if necessary, and return it. An existing `README.md` is kept.

        Args:
            folder: The folder.
            further: Modules that were trained with the model, by name; each is saved as NAME.safetensors.
            **card: Parts of the model card; see `Card`.
        """
        config, weights = self.contents()
        others = {name: module.state_dict() for name, module in (further or {}).items()}
        written = write_model(Path(folder), self.kind, config, weights, others)
        if not (written / README).exists():
            write_atomically(written / README, model_card(self, weights, card))
        return written

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool = False,
        token: str | None = None,
        revision: str | None = None,
        **card: Unpack[Card],
    ) -> str:
        """Upload the model with its card to the Hub; arguments, result and errors are those of `push`."""
        with TemporaryDirectory() as place:
            folder = self.save_pretrained(Path(place) / "model", **card)
            return push(folder, repo_id, private=private, token=token, revision=revision)


def push(
    source: Positional[Annotated[str | Path, arg(metavar="RUN")]],
    repo_id: Positional[Annotated[str, arg(metavar="OWNER/MODEL")]],
    *,
    private: bool = False,
    license: Name = None,
    token: PythonOnly[str | None] = None,
    revision: PythonOnly[str | None] = None,
) -> str:
    """Upload a run's model to the Hub, with its card: method, data, numbers.

    The upload is one commit; then `counterpoint.load(repo_id)` loads the same model. The card is the folder's
    `README.md`, with `repo_id` in its example. The numbers of a run's report or evaluation are added under "Results",
    unless that section already has text.

    Time: as long as the upload of the weights takes. Disk: nothing is kept.

    Args:
        source: The run's folder, or a folder that `save_pretrained` wrote.
        repo_id: The model's name on the Hub; its repository is created if necessary.
        private: Make a new repository private; by default the account's settings decide.
        license: Licence of the weights, for the card, such as apache-2.0.
        token: A token with write access; by default the token of `hf auth login`.
        revision: The branch; `main` by default.

    Returns:
        The address of the commit.

    Raises:
        BadInputError: If the folder is damaged, or the Hub cannot be reached or rejects the upload.
    """
    require_id(repo_id, "repo id")
    require(Path(source).exists(), source, "no such folder", "a run, or a saved model", "check the path")
    saved = _fetched(source, (CONFIG, DIGESTS, WEIGHTS))
    kind, _ = _read_config(saved)
    for name in digests_of(saved):
        check_part(saved, name, _HINT)
    with TemporaryDirectory() as place:
        folder = shutil.copytree(saved, Path(place) / "model")
        readme = folder / README
        card = ModelCard(readme.read_text(encoding="utf-8") if readme.exists() else f"# Counterpoint {kind}\n")
        card.text = card.text.replace(ANY_ID, repo_id)
        card.text = with_results(card.text, Path(source))
        if license:
            card.data["license"] = license
        card.save(readme)
        hint = "check the id, `hf auth login` and the connection; offline, copy the folder: it loads by its path"
        message = f"Upload a {kind.replace('_', ' ')}"
        options: dict[str, Any] = {"private": private, "token": token, "revision": revision}
        return upload(folder, repo_id, kind="model", message=message, hint=hint, **options)


class HubEncoder(nn.Module, SavedModel):
    """Base of encoders that are built from one configuration.

    Attributes:
        config_type: Class of `config`.
        start_field: Name of the field of `config` that names the weights that training started from; saved only as a
            record.
        config: The configuration of the encoder, with defaults filled in for fields left `None`.
    """

    config_type: ClassVar[type[FrozenConfig]]
    start_field: ClassVar[str]
    config: FrozenConfig

    def contents(self) -> tuple[Mapping[str, Any], Mapping[str, Tensor]]:
        """Return the configuration and the weights."""
        return self.config.model_dump(mode="json"), self.state_dict()

    def description(self, usage: str, facts: Mapping[str, object], preprocessing: str) -> Description:
        """Return a `Description` with `facts`, the encoder's initial weights, and a section on preprocessing."""
        start = {"Started from": getattr(self.config, self.start_field) or "random weights"}
        done = {"Preprocessing": f"Done by the encoder: {preprocessing} Do not normalise before."}
        return Description(usage, {**facts, **start}, done)

    @classmethod
    def rebuilt(cls, config: FrozenConfig) -> Self:
        """Return an encoder to load saved weights into, without reading the weights that training started from."""
        encoder = cls(config.model_copy(update={cls.start_field: None}))
        start = {cls.start_field: getattr(config, cls.start_field)}
        encoder.config = encoder.config.model_copy(update=start)
        return encoder

    @classmethod
    def from_pretrained(
        cls, path_or_hub_id: str | Path, *, map_location: str = "cpu", strict: bool = True, **hub: Any
    ) -> Self:
        """Load a saved encoder, in evaluation mode.

        Args:
            path_or_hub_id: A folder written by `save_pretrained`, a run, or a Hub id.
            map_location: The device that the model is loaded on.
            strict: True to raise an error unless the names and shapes of all weights agree.
            hub: Options of `huggingface_hub`, as in `load`.

        Raises:
            BadInputError: If nothing is saved there, a file is damaged (the message names it), or the device is absent.
            MissingExtraError: If the library that a tower needs is not installed.
        """
        saved = read_model(path_or_hub_id, cls.kind, map_location, **hub)
        encoder = cls.rebuilt(saved.settings(cls.config_type))
        if strict:
            return saved.fill(encoder, map_location)
        encoder.load_state_dict(saved.weights, strict=False)
        return encoder.to(map_location).eval()
