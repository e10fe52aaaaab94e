"""The trials of the comparison with ICon: each trains one policy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from counterpoint.config import validate
from counterpoint.errors import require
from counterpoint.training.imitation import ImitationRecipe
from studies.harness import file_name
from studies.icon.config import ComparisonConfig, nested

Start = Literal["scratch", "alone", "transferred"]
TRAINED, UNTRAINED = "trained", "untrained"
"""Encoders that are measured: after training and, for the reference, also before training."""
POSITIONS = "positions alone"
"""The control of separability: no encoder."""


@dataclass(frozen=True)
class PolicyTrial:
    """One method on one task with one seed.

    Attributes:
        start: `scratch` trains random weights on the demonstrations of a task. `alone` trains random weights on the few
            demonstrations of another robot. `transferred` starts from the policy of the first robot.
    """

    method: str
    task: str
    seed: int
    start: Start = "scratch"

    @property
    def name(self) -> str:
        """Name of its files."""
        return file_name(self.method, self.task, *(() if self.start == "scratch" else (self.start,)), self.seed)

    @property
    def column(self) -> str:
        """Column of the table."""
        return self.task if self.start == "scratch" else f"{self.task} ({self.start})"

    @property
    def about(self) -> dict[str, object]:
        """Columns of its row."""
        return vars(self) | {"column": self.column}

    def run(self, out: Path) -> Path:
        """Return the folder of its training."""
        return out / "runs" / self.name


def imitation_config(config: ComparisonConfig, trial: PolicyTrial) -> ImitationRecipe:
    """Return the recipe of a policy; if `minutes` are given, without the number of steps.

    Raises:
        BadInputError: If a setting is unknown.
    """
    defaults = ImitationRecipe().model_dump(mode="json", exclude={"diffusion", "icon", "crossway"})
    defaults["train"]["epochs"] = None  # the benchmark says how long, in epochs or in steps
    tree = nested(config.training, defaults)
    tree = nested(config.method(trial.method).training, tree)
    if trial.start != "scratch" and config.transfer is not None:
        tree = nested(config.transfer.training, tree)
    own = {"frame": config.data.frame, "data.camera": config.data.cameras, "train.seed": trial.seed}
    tree = nested(own | {"train.trackers": ()}, tree)
    found = validate(ImitationRecipe, tree, f"training of {trial.method}")
    if config.minutes is None:
        found.train.total_steps(1)
    where, cameras = f"training of {trial.method}", len(config.data.cameras)
    shown, expected = f"encoder.cameras = {found.encoder.cameras}", f"{cameras}, as many as data.cameras"
    require(found.encoder.cameras == cameras, where, shown, expected, "correct one of the two")
    return found
