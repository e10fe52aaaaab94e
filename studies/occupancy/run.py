"""`python -m studies.occupancy`: how much data each method needs to estimate a discounted occupancy measure.

The tabular study of TD InfoNCE (Zheng et al., ICLR 2024, section 4.3, Appendices E.2 and E.3) with the comparisons
that say where its ratios come from: closed-form floors, three rules for the end of an episode, one trajectory that is
never cut, and a step size that decays beside one that does not. `docs/studies/occupancy.md` reads the results.

Work is cut into cells, one method on one amount of data; each is written when it is finished, so that an interrupted
study goes on where it stopped and ends with the same numbers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field, model_validator

from counterpoint.config import FrozenConfig
from counterpoint.envs.goal.gridworld import GridWorld
from counterpoint.errors import BadInputError
from counterpoint.progress import ProgressBar
from counterpoint.provenance import provenance
from studies.occupancy.analysis import summarise
from studies.occupancy.data import Counted, count_data
from studies.occupancy.floors import floors
from studies.occupancy.known import train_known
from studies.occupancy.methods import METHODS
from studies.occupancy.training import SCHEDULES, Setting, train
from studies.pool import Tick, run_side_by_side

__all__ = ["CUTS", "OccupancyConfig", "occupancy_study"]

CUTS = ("episodes", "trajectory")
ON_A_TRAJECTORY = ("td_infonce", "sr", "c_learning", "mc_infonce_renormalise", "c_learning_both")


class OccupancyConfig(FrozenConfig):
    """The study; the defaults are the paper's where it states them (grid, steps, sizes, seeds)."""

    width: int = Field(default=5, ge=2)
    height: int = Field(default=5, ge=2)
    discount: float = Field(default=0.9, gt=0, lt=1)  # the paper gives none
    sizes: tuple[int, ...] = Field(default=(10**3, 10**4, 10**5, 10**6, 10**7), min_length=2)
    seeds: int = Field(default=5, ge=1)
    steps: int = Field(default=50_000, ge=1)
    batch: int = Field(default=256, ge=2)
    learning_rates: tuple[float, ...] = Field(default=(3e-4, 1e-3, 3e-3, 1e-2), min_length=1)
    # SR's table holds probabilities and not logits: smaller steps too, until its best one is not the smallest.
    sr_learning_rates: tuple[float, ...] = Field(default=(1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2), min_length=1)
    episode_length: int = Field(default=100, ge=2)  # the paper gives none
    curve_size: int = Field(default=10**5, description="transitions of the learning curves")
    known_steps: int = Field(default=5_000, ge=1)
    processes: int = Field(default=2, ge=1)

    @model_validator(mode="after")
    def _consistent(self) -> OccupancyConfig:
        if list(self.sizes) != sorted(set(self.sizes)):
            raise ValueError("sizes must grow")
        if any(size % self.episode_length for size in self.sizes):
            raise ValueError(f"sizes must be multiples of the episode length, {self.episode_length}")
        if self.curve_size not in self.sizes:
            raise ValueError(f"curve_size must be one of the sizes, {list(self.sizes)}")
        return self

    @classmethod
    def quick(cls) -> OccupancyConfig:
        """A look at the study in about a minute: less data, fewer seeds and steps. Its numbers are not the study's."""
        return cls(
            sizes=(10**3, 10**4, 10**5),
            seeds=2,
            steps=5_000,
            learning_rates=(3e-3, 1e-2),
            sr_learning_rates=(3e-4, 3e-3),
            known_steps=500,
        )

    @property
    def grid(self) -> GridWorld:
        """Where."""
        return GridWorld(self.width, self.height)

    def settings(self, method: str) -> list[Setting]:
        """Of the optimiser: every learning rate under every schedule."""
        rates = self.sr_learning_rates if method == "sr" else self.learning_rates
        return [Setting(rate, schedule) for schedule in SCHEDULES for rate in rates]

    def truth(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """[P, S], in closed form."""
        exact = self.grid.exact_occupancy(self.grid.uniform_policy(), self.discount)
        return exact.reshape(-1, self.grid.states)


@dataclass(frozen=True)
class Cell:
    """One method on one amount of data, all seeds and settings."""

    cut: str
    size: int
    method: str

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.cut}-{self.size}-{self.method}"


def occupancy_study(config: OccupancyConfig, out: Path) -> dict[str, Any]:
    """Run the study, or what is left of it, and write `occupancy.json` and the figures.

    Args:
        config: What to run.
        out: A folder for this study alone; one that an interrupted run left is finished.

    Returns:
        What `occupancy.json` holds.

    Raises:
        BadInputError: When the folder holds a study of another configuration.
    """
    from studies.occupancy.figures import draw_all  # matplotlib is an extra

    _claim(config, out)
    cells = [Cell("episodes", size, method) for size in config.sizes for method in METHODS]
    cells += [Cell("trajectory", size, method) for size in config.sizes for method in ON_A_TRAJECTORY]
    recordings = [(cut, size, seed) for cut in CUTS for size in config.sizes for seed in range(config.seeds)]
    record = [partial(_record, config, out, *one) for one in recordings if not _data_path(out, *one).exists()]
    work = [] if (out / "known.json").exists() else [partial(_run_known, config, out)]
    work += [partial(_run_cell, config, out, cell) for cell in cells if not _cell_path(out, cell).exists()]
    total = len(recordings) + len(cells) + 1
    with ProgressBar("occupancy study", total, "parts", done=total - len(record) - len(work)) as bar:
        _do(record, config.processes, bar)
        _do(work, config.processes, bar)
    found = summarise(
        {cell.name: json.loads(_cell_path(out, cell).read_text()) for cell in cells},
        _all_floors(config, out, recordings),
        json.loads((out / "known.json").read_text()),
        sizes=config.sizes,
        curve_size=config.curve_size,
    )
    result = {
        "config": config.model_dump(mode="json"),
        **found,
        "processor_seconds": round(_processor_seconds(out), 1),
        "provenance": provenance(),
    }
    _write(out / "occupancy.json", result)
    draw_all(result, out)
    return result


def _claim(config: OccupancyConfig, out: Path) -> None:
    """Make the folder this study's; the number of processes may differ when it goes on."""
    for part in ("data", "cells"):
        (out / part).mkdir(parents=True, exist_ok=True)
    own = config.model_dump(mode="json", exclude={"processes"})
    path = out / "config.json"
    if not path.exists():
        _write(path, own)
    elif json.loads(path.read_text()) != own:
        raise BadInputError(
            out,
            "a study of another configuration",
            "an empty folder, or one this configuration began",
            "choose another folder, or remove this one",
        )


def _record(config: OccupancyConfig, out: Path, cut: str, size: int, seed: int) -> None:
    length = config.episode_length if cut == "episodes" else None
    # Sizes and cuts get recordings of their own: no data set is a part of another.
    own = int(np.random.SeedSequence([seed, size, CUTS.index(cut)]).generate_state(1)[0])
    found = count_data(config.grid, size, episode_length=length, discount=config.discount, seed=own)
    found.save(_data_path(out, cut, size, seed))


def _run_cell(config: OccupancyConfig, out: Path, cell: Cell) -> None:
    started = time.process_time()
    data = [Counted.load(_data_path(out, cell.cut, cell.size, seed)) for seed in range(config.seeds)]
    own = [cell.size, CUTS.index(cell.cut), list(METHODS).index(cell.method)]
    found = train(
        cell.method,
        data,
        config.truth(),
        config.settings(cell.method),
        discount=config.discount,
        steps=config.steps,
        size=config.batch,
        seed=int(np.random.SeedSequence(own).generate_state(1)[0]),
    )
    settings = [asdict(setting) for setting in config.settings(cell.method)]
    spent = time.process_time() - started
    _write(_cell_path(out, cell), {**found, "settings": settings, "processor_seconds": spent})


def _run_known(config: OccupancyConfig, out: Path) -> None:
    settings, steps = config.settings("td_infonce"), config.known_steps
    found = train_known(config.grid, settings, discount=config.discount, steps=steps, size=config.batch)
    _write(out / "known.json", found)


def _all_floors(
    config: OccupancyConfig, out: Path, recordings: Iterable[tuple[str, int, int]]
) -> dict[str, dict[str, float]]:
    truth = config.truth()
    return {
        f"{cut}-{size}-{seed}": floors(Counted.load(_data_path(out, cut, size, seed)), truth, config.discount)
        for cut, size, seed in recordings
    }


def _do(tasks: Sequence[Callable[[], None]], processes: int, bar: ProgressBar) -> None:
    """Run tasks side by side; an interruption loses only those under way."""
    parts = [partial(_counted, task) for task in tasks]
    run_side_by_side("occupancy study", parts, processes, bar, begin=_alone)


def _counted(task: Callable[[], None], tick: Tick) -> None:
    task()
    tick(1)


def _alone() -> None:
    """One thread: tables are small. Moments that fade to denormal numbers would slow Adam down many times."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def _processor_seconds(out: Path) -> float:
    return sum(float(json.loads(path.read_text())["processor_seconds"]) for path in (out / "cells").glob("*.json"))


def _data_path(out: Path, cut: str, size: int, seed: int) -> Path:
    return out / "data" / f"{cut}-{size}-{seed}.npz"


def _cell_path(out: Path, cell: Cell) -> Path:
    return out / "cells" / f"{cell.name}.json"


def _write(path: Path, content: dict[str, Any]) -> None:
    """Whole or not at all."""
    partial_path = path.with_suffix(".partial")
    partial_path.write_text(json.dumps(content, indent=1) + "\n")
    partial_path.replace(path)
