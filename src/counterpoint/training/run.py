"""A run's folder, claimed by one process for one recipe and one data set, with metrics, checkpoints and the model.

RUN/config.json      format, kind, settings, data, provenance
RUN/metrics.jsonl    one line of numbers per split and step; RUN/tensorboard/ is next to it if asked for
RUN/checkpoints/     checkpoints, which hold safetensors for tensors, JSON for the rest, and no pickle:
    step-00000500/         sealed: see `counterpoint.folder`
        state.safetensors    every tensor of the state
        state.json           the state's structure: nested dicts and lists that refer to tensors by name
        SHA256SUMS           the digests of these two files
    last                   name of the newest checkpoint's folder, updated after the folder is in place
RUN/model/           see `counterpoint.encoders.hub`
RUN/judges/          runs that each learned from all parts of the data but one, and score that part (cross-fitting)
RUN/best/            if `keep_best` is set: the models with the smallest validation errors, in step-NUMBER/model

A checkpoint is written under a temporary name and then renamed, so that older checkpoints stay complete if the process
is killed. When a checkpoint is read, its digests are checked; if the newest is damaged, the next older valid one is
used.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from counterpoint.config import FrozenConfig, bound
from counterpoint.errors import BadInputError, MissingExtraError, import_extra
from counterpoint.files import Beside, flush, read_object, remove, write_atomically
from counterpoint.folder import FORMAT, claim, read_part, seal
from counterpoint.provenance import provenance
from counterpoint.training.settings import LoopConfig, TrainConfig

PREFIX = "step-"
STATE, SKELETON = "state.safetensors", "state.json"
_HINT = "delete this checkpoint; training resumes from an older one"


def save_checkpoint(folder: Path, step: int, state: dict[str, Any], *, keep: int = 2) -> Path:
    """Write `state` as the checkpoint of `step`, and remove all but the newest `keep` checkpoints.

    Args:
        folder: The run's `checkpoints` folder; created if absent.
        step: Optimiser steps done.
        state: Nested dicts, lists and tuples of tensors, numbers, strings, booleans and `None`.
        keep: Number of checkpoints that are kept.

    Returns:
        The checkpoint's folder.
    """
    final = folder / f"{PREFIX}{step:08d}"
    try:
        with Beside(final) as beside:
            made = Path(beside) / final.name
            made.mkdir()
            tensors: dict[str, Tensor] = {}
            skeleton = _take_tensors(state, "", tensors)
            save_file(tensors, made / STATE)
            (made / SKELETON).write_text(json.dumps({"step": step, "state": skeleton}))
            seal(made, [STATE, SKELETON])
            remove(final)
            made.rename(final)
        flush(folder)
    except (OSError, SafetensorError) as error:  # a full disk, which safetensors reports in its own way
        hint = f"free some space, then run the same command again; {last_good(folder)}"
        raise BadInputError(folder, f"no checkpoint could be written ({error})", "a disk with room", hint) from None
    settle(folder, final, keep=keep)
    return final


def settle(folder: Path, path: Path, *, keep: int) -> None:
    """Record `path` as the last checkpoint, and remove old checkpoints until `keep` are left."""
    write_atomically(folder / "last", path.name)
    every = list_checkpoints(folder)
    for old in every[: max(0, every.index(path) + 1 - keep)]:
        remove(old)


def load_checkpoint(path: Path) -> tuple[int, dict[str, Any]]:
    """Return the step and the state of a checkpoint, after checking its digests.

    Raises:
        BadInputError: When a file is missing or does not match its digest.
    """
    try:
        # Read into memory, not mapped: a mapped tensor would change when its file is overwritten.
        tensors = load(read_part(path, STATE, _HINT))
        skeleton = json.loads(read_part(path, SKELETON, _HINT))
        return skeleton["step"], _put_tensors(skeleton["state"], tensors)
    except (OSError, KeyError, TypeError, ValueError, SafetensorError) as error:
        if isinstance(error, BadInputError):
            raise
        raise BadInputError(path, f"{type(error).__name__}: {error}", "a whole checkpoint", _HINT) from None


def newest_valid(folder: Path) -> tuple[Path, int, dict[str, Any], list[BadInputError]] | None:
    """Return the newest complete checkpoint and the errors of newer ones; `None` if there is no checkpoint."""
    troubles: list[BadInputError] = []
    for path in reversed(list_checkpoints(folder)):
        try:
            step, state = load_checkpoint(path)
        except BadInputError as trouble:
            troubles.append(trouble)
            continue
        return path, step, state, troubles
    if troubles:
        raise troubles[0]
    return None


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoint folders, oldest first."""
    return sorted(folder.glob(f"{PREFIX}*")) if folder.is_dir() else []


def last_good(folder: Path) -> str:
    """Describe the newest checkpoint in words, for a run that cannot continue."""
    last = folder / "last"
    if not last.exists():
        return "none was saved yet"
    return f"the last good checkpoint is {folder / last.read_text()}"


def _take_tensors(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return `value` in JSON form, and put its tensors into `tensors` under their paths."""
    if isinstance(value, Tensor):
        tensors[name] = value.detach().contiguous().clone()
        return {"tensor": name}
    if isinstance(value, dict):
        return {"dict": [[key, _take_tensors(item, f"{name}/{key}", tensors)] for key, item in value.items()]}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_take_tensors(item, f"{name}/{i}", tensors) for i, item in enumerate(value)]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    raise TypeError(f"a checkpoint cannot hold {type(value).__name__} (at {name})")


def _put_tensors(skeleton: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    ((kind, content),) = skeleton.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: _put_tensors(item, tensors) for key, item in content}
    if kind == "list":
        return [_put_tensors(item, tensors) for item in content]
    if kind == "tuple":
        return tuple(_put_tensors(item, tensors) for item in content)
    return content


NOTE = "config.json"
METRICS = "metrics.jsonl"


class Run:
    """A folder that one process trains in; as a context manager, it releases the folder at the end.

    Attributes:
        folder: The folder.
        loop: The loop's settings.
        settings: The content of `config.json`.
        main: True in the process that writes, which is the first rank.
    """

    def __init__(self, folder: Path, loop: LoopConfig, settings: dict[str, Any], lock: IO[str] | None) -> None:
        self.folder, self.loop, self.settings = folder, loop, settings
        self.main = lock is not None
        self._lock = lock
        self.last_saved = -1

    @classmethod
    def open(
        cls,
        out: str | Path,
        recipe: FrozenConfig,
        identity: Mapping[str, Any],
        *,
        loop: LoopConfig,
        facts: Mapping[str, Any] | None = None,
        main: bool = True,
    ) -> Run:
        """Claim a folder, or continue the run in it; `record` writes `config.json` once the training run is ready.

        Args:
            out: The folder; created if absent.
            recipe: The recipe; fields that are marked `free` may differ from those of the run that is continued.
            identity: Further values that must stay the same, such as the data's fingerprint.
            loop: The loop's settings.
            facts: Further entries for `config.json`.
            main: True in the process that writes.

        Raises:
            BadInputError: When another process trains in the folder, or the folder holds a run of another kind, format,
                recipe or data set.
        """
        folder = Path(out)
        settings = {
            "format": FORMAT,
            **recipe.model_dump(mode="json"),
            "identity": {"recipe": bound(recipe), **copy.deepcopy(dict(identity))},
            **(facts or {}),
            "provenance": provenance(),
        }
        if not main:
            return cls(folder, loop, settings, None)
        own = {key: settings[key] for key in ("kind", "identity")}
        held = claim(folder, NOTE, own, what="a run", does="trains", begin=False)
        return cls(folder, loop, settings, held)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.folder / "checkpoints"

    @property
    def model(self) -> Path:
        """The folder of the trained model."""
        return self.folder / "model"

    def judge(self, number: int) -> Path:
        """Return the folder of the judge that scores this part of the data."""
        return self.folder / "judges" / str(number)

    def record(self, **facts: Any) -> None:
        """Write `config.json`, with further entries."""
        self.settings |= facts
        if self.main:
            write_atomically(self.folder / NOTE, json.dumps(self.settings, indent=1) + "\n")

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write a checkpoint, which also holds the logged numbers; only the newest `loop.keep` checkpoints stay."""
        if self.main:
            log = self.folder / METRICS
            logged = log.read_text(errors="replace") if log.exists() else ""
            save_checkpoint(self.checkpoints, step, {**state, METRICS: logged}, keep=self.loop.keep)
        self.last_saved = step

    def keep_best(self, step: int, error: float, save: Callable[[Path], object]) -> None:
        """Save the model as `best/step-NUMBER/model` if its validation error is among the smallest; remove the others.

        Args:
            step: Steps done.
            error: The validation error.
            save: A function that writes the model's folder.
        """
        most = self.loop.keep_best if isinstance(self.loop, TrainConfig) else 0
        if not most:
            return
        folder, path = self.folder / "best", self.folder / "best" / "errors.json"
        again = f"remove {folder}: the best of the validations to come are kept"
        before = read_object(path, "an error a step", again) if path.exists() else {}
        # Models of later steps are left from before an interruption; those steps will be repeated.
        errors = {int(at): value for at, value in before.items() if int(at) < step} | {step: error}
        kept = sorted(errors, key=lambda at: (errors[at], at))[:most]
        if step in kept:
            save(folder / f"{PREFIX}{step:08d}" / "model")
        for old in folder.glob(f"{PREFIX}*"):
            if int(old.name.removeprefix(PREFIX)) not in kept:
                remove(old)
        folder.mkdir(exist_ok=True)
        write_atomically(path, json.dumps(errors, indent=1) + "\n")

    def resume(self) -> tuple[int, dict[str, Any]] | None:
        """Return the step and the state of the newest complete checkpoint; `None` for a fresh run."""
        found = newest_valid(self.checkpoints)
        if found is None:
            return None
        path, self.last_saved, state, troubles = found
        logged = state.pop(METRICS, "")
        if self.main:
            write_atomically(self.folder / METRICS, logged)
            settle(self.checkpoints, path, keep=self.loop.keep)
            for trouble in troubles:
                print(f"Skipped a damaged checkpoint. {trouble}", flush=True)
            print(f"Resumed from {path}", flush=True)
        return self.last_saved, state

    def diverged(self, error: ArithmeticError, update: int) -> BadInputError:
        """Return the error for a training run whose numbers stopped being finite."""
        hint = f"lower the learning rate, clip gradients, or look at the data; {last_good(self.checkpoints)}"
        return BadInputError(f"training step {update}", str(error), "a finite loss and finite gradients", hint)

    def close(self) -> None:
        """Release the folder to other processes."""
        if self._lock is not None:
            self._lock.close()


class MetricsLog:
    """A log in `RUN/metrics.jsonl` with one JSON object per line, copied to the chosen trackers.

    Args:
        run: The run's folder.
        trackers: Any of `tensorboard` and `wandb`.
        settings: The resolved configuration, shown by trackers.
        start: Number of steps already done; later lines, which a killed run may have left, are removed.

    Raises:
        MissingExtraError: When a tracker is not installed.
    """

    def __init__(self, run: Path, trackers: tuple[str, ...], settings: Mapping[str, Any], start: int) -> None:
        path = run / METRICS
        if path.exists():
            kept = [line for line in path.read_text(errors="replace").splitlines() if _step(line) <= start]
            write_atomically(path, "".join(f"{line}\n" for line in kept))
        self._file = path.open("a", buffering=1)
        self._board = _tensorboard(run, start) if "tensorboard" in trackers else None
        self._wandb: Any = None
        if "wandb" in trackers:
            options = {"dir": str(run), "name": run.name, "id": run.name, "resume": "allow"}
            self._wandb = import_extra("wandb", "track").init(config=dict(settings), **options)

    def write(self, step: int, split: str, metrics: Mapping[str, float]) -> None:
        """Log the metrics of one split after `step` steps."""
        self._file.write(json.dumps({"step": step, "split": split, **metrics}) + "\n")
        if self._board is not None:
            for name, value in metrics.items():
                self._board.add_scalar(f"{split}/{name}", value, step)
        if self._wandb is not None:
            self._wandb.log({f"{split}/{name}": value for name, value in metrics.items()}, step=step)

    def close(self) -> None:
        """Flush and close all logs."""
        self._file.close()
        if self._board is not None:
            self._board.close()
        if self._wandb is not None:
            self._wandb.finish()


def _step(line: str) -> float:
    """Return the step of a logged line; infinity for a half-written last line."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def _tensorboard(run: Path, start: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise MissingExtraError("tensorboard", "track") from None
    return SummaryWriter(str(run / "tensorboard"), purge_step=start + 1)
