"""A run's folder: claimed by one process for one recipe and one data set; numbers, checkpoints and the model in it.

RUN/config.json      format, kind, settings, data, provenance
RUN/metrics.jsonl    one line of numbers a split and step; RUN/tensorboard/ beside it
RUN/checkpoints/     see `checkpoint.py`
RUN/model/           see `counterpoint.encoders.hub`
RUN/best/            the models of least validation error, a folder with a `model` each, where `keep_best` asks for them
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from counterpoint.config import FrozenConfig, bound
from counterpoint.errors import BadInputError, MissingExtraError, import_extra
from counterpoint.files import read_object, remove, write_atomically
from counterpoint.folder import FORMAT, claim
from counterpoint.provenance import provenance
from counterpoint.training.checkpoint import PREFIX, last_good, newest_valid, save_checkpoint, settle
from counterpoint.training.loop import LoopConfig, TrainConfig

NOTE = "config.json"
METRICS = "metrics.jsonl"


class Run:
    """A folder that one process trains in. A context manager: leaving it gives the folder free.

    Attributes:
        folder: The folder.
        loop: The loop's settings.
        settings: The content of `config.json`.
        main: True in the process that writes: the first of several ranks.
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
        """Claim a folder, or continue the run in it; `record` writes `config.json` once the training is ready.

        Args:
            out: The folder, made when absent.
            recipe: The recipe; its fields that are marked `free` may differ from those of the run to be continued.
            identity: Further values that must be the same, such as the data's fingerprint.
            loop: The loop's settings.
            facts: Further entries for `config.json`.
            main: True in the process that writes.

        Raises:
            BadInputError: When another process trains there, or the folder holds a run of another kind, format,
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

    def record(self, **facts: Any) -> None:
        """Write `config.json`, with further entries."""
        self.settings |= facts
        if self.main:
            write_atomically(self.folder / NOTE, json.dumps(self.settings, indent=1) + "\n")

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write a checkpoint, which holds the logged numbers too; the newest `loop.keep` stay."""
        if self.main:
            log = self.folder / METRICS
            logged = log.read_text(errors="replace") if log.exists() else ""
            save_checkpoint(self.checkpoints, step, {**state, METRICS: logged}, keep=self.loop.keep)
        self.last_saved = step

    def keep_best(self, step: int, error: float, save: Callable[[Path], object]) -> None:
        """Save the model as `best/step-NUMBER/model` if its validation error is among the least; drop the others.

        Args:
            step: Steps done.
            error: The validation's.
            save: Writes the model's folder.
        """
        most = self.loop.keep_best if isinstance(self.loop, TrainConfig) else 0
        if not most:
            return
        folder, path = self.folder / "best", self.folder / "best" / "errors.json"
        again = f"remove {folder}: the best of the validations to come are kept"
        before = read_object(path, "an error a step", again) if path.exists() else {}
        # Later ones are from before an interruption and come again.
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
        """Return step and state of the newest whole checkpoint; `None` in a fresh run."""
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
        """Return the error of a training whose numbers stopped being finite."""
        hint = f"lower the learning rate, clip gradients, or look at the data; {last_good(self.checkpoints)}"
        return BadInputError(f"training step {update}", str(error), "a finite loss and finite gradients", hint)

    def close(self) -> None:
        """Let other processes have the folder."""
        if self._lock is not None:
            self._lock.close()


class MetricsLog:
    """One JSON object a line in `RUN/metrics.jsonl`, and in the chosen trackers.

    Args:
        run: The run's folder.
        trackers: Any of `tensorboard` and `wandb`.
        settings: The resolved configuration, shown by trackers.
        start: Steps already done; later lines, which a kill may have left behind, are dropped.

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
        """Flush everything."""
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
