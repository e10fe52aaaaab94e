"""Where numbers go while a run trains: `metrics.jsonl` always, TensorBoard by default, Weights & Biases when asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from counterpoint.errors import MissingExtraError
from counterpoint.files import write_atomically

__all__ = ["MetricsLog"]


class MetricsLog:
    """One JSON object a line in `RUN/metrics.jsonl`, and the trackers that were asked for.

    Args:
        run: The run's folder.
        trackers: Any of `tensorboard` and `wandb`.
        config: The resolved configuration, shown by trackers.
        start: Steps already done; later lines, which a kill may have left behind, are dropped.

    Raises:
        MissingExtraError: When a tracker is not installed.
    """

    def __init__(self, run: Path, trackers: tuple[str, ...], config: Mapping[str, Any], start: int) -> None:
        path = run / "metrics.jsonl"
        if path.exists():
            kept = [line for line in path.read_text().splitlines() if _step(line) <= start]
            write_atomically(path, "".join(f"{line}\n" for line in kept))
        self._file = path.open("a", buffering=1)
        self._board = _tensorboard(run, start) if "tensorboard" in trackers else None
        self._wandb = _wandb(run, config) if "wandb" in trackers else None

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
    """The step of a logged line; a half-written last line counts as beyond every step."""
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


def _wandb(run: Path, config: Mapping[str, Any]) -> Any:
    try:
        import wandb
    except ImportError:
        raise MissingExtraError("wandb", "track") from None
    return wandb.init(dir=str(run), name=run.name, config=dict(config), resume="allow", id=run.name)
