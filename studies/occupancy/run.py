"""`python -m studies.occupancy`: how much data each method needs to estimate a discounted occupancy measure.

The tabular study of TD InfoNCE (Zheng et al., ICLR 2024, section 4.3, Appendices E.2 and E.3) with the comparisons
that say where its ratios come from: closed-form floors, three rules for the end of an episode, one trajectory that is
never cut, and a step size that decays beside one that does not. `docs/results/occupancy.md` reads the results.

A trial is one method on one amount of data.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, model_validator

from counterpoint.config import FrozenConfig
from counterpoint.evaluation.statistics import seeds_interval
from studies.gridworld import GridWorld
from studies.harness import Study, Trial
from studies.occupancy.analysis import summarise
from studies.occupancy.data import Counted, count_data
from studies.occupancy.floors import floors
from studies.occupancy.known import train_known
from studies.occupancy.methods import METHODS
from studies.occupancy.training import SCHEDULES, Setting, train

CUTS = ("episodes", "trajectory")
BATCH_RATE = 3e-3
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
    batches: tuple[int, ...] = Field(default=(), description="batch sizes compared at the most data")
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


def occupancy_study(config: OccupancyConfig, out: Path) -> dict[str, Any]:
    """Run the study and write `occupancy.json`, `results.parquet` and the figures.

    Args:
        config: The configuration.
        out: A folder for this study alone; an interrupted run continues.

    Returns:
        The content of `occupancy.json`.

    Raises:
        BadInputError: When the folder holds a study of another configuration.
    """
    from studies.occupancy.figures import plot_all  # matplotlib is an extra

    study = Study("occupancy study", out, config)
    trials = [Trial("known", partial(_train_known, config))]
    trials += [_trial(config, out, "episodes", size, method) for size in config.sizes for method in METHODS]
    trials += [_trial(config, out, "trajectory", size, method) for size in config.sizes for method in ON_A_TRAJECTORY]
    by_batch = {
        (method, batch): Trial(f"batch-{batch}-{method}", partial(_train_batch, config, out, method, batch))
        for method in ("c_learning_both", "c_learning_pairs", "td_infonce")
        for batch in config.batches
    }
    study.run([*trials, *by_batch.values()], config.processes)
    limits = {
        f"{cut}-{size}-{seed}": floors(recording(config, out, cut, size, seed), config.truth(), config.discount)
        for cut in CUTS
        for size in config.sizes
        for seed in range(config.seeds)
    }
    trained = {trial.name: study.read(trial.name) for trial in trials[1:]}
    found = summarise(trained, limits, study.read("known")["methods"], sizes=config.sizes, curve_size=config.curve_size)
    for (method, batch), trial in by_batch.items():
        final = seeds_interval(np.array(study.read(trial.name)["error"][-1])[:, 0])
        kept = {"mean": final.value, "low": final.low, "high": final.high}
        found.setdefault("by_batch", {}).setdefault(method, {})[str(batch)] = kept
    found["known_model_error"] = {name: curve["error"][-1] for name, curve in found["known_model"].items()}
    result = study.finish("occupancy", found)
    plot_all(result, out)
    return result


def recording(config: OccupancyConfig, out: Path, cut: str, size: int, seed: int) -> Counted:
    """Return the data of one seed, counted once; no recording is a part of another."""
    path = out / "data" / f"{cut}-{size}-{seed}.npz"
    if path.exists():
        return Counted.load(path)
    length = config.episode_length if cut == "episodes" else None
    own = int(np.random.SeedSequence([seed, size, CUTS.index(cut)]).generate_state(1)[0])
    found = count_data(config.grid, size, episode_length=length, discount=config.discount, seed=own)
    path.parent.mkdir(exist_ok=True)
    found.save(path)
    return found


def _trial(config: OccupancyConfig, out: Path, cut: str, size: int, method: str) -> Trial:
    return Trial(f"{cut}-{size}-{method}", partial(_train, config, out, cut, size, method))


def _train(config: OccupancyConfig, out: Path, cut: str, size: int, method: str) -> dict[str, Any]:
    """Train one method on one amount of data, all seeds and settings side by side."""
    own = np.random.SeedSequence([size, CUTS.index(cut), list(METHODS).index(method)])
    found = train(
        method,
        [recording(config, out, cut, size, seed) for seed in range(config.seeds)],
        config.truth(),
        config.settings(method),
        discount=config.discount,
        steps=config.steps,
        size=config.batch,
        seed=int(own.generate_state(1)[0]),
    )
    return {**found, "settings": [asdict(setting) for setting in config.settings(method)]}


def _train_batch(config: OccupancyConfig, out: Path, method: str, batch: int) -> dict[str, Any]:
    """Train at the most data with another batch size and one decayed learning rate."""
    data = [recording(config, out, "episodes", config.sizes[-1], seed) for seed in range(config.seeds)]
    settings = [Setting(BATCH_RATE, "decayed")]
    return train(
        method, data, config.truth(), settings, discount=config.discount, steps=config.steps // 2, size=batch, seed=0
    )


def _train_known(config: OccupancyConfig) -> dict[str, Any]:
    settings, steps = config.settings("td_infonce"), config.known_steps
    return {"methods": train_known(config.grid, settings, discount=config.discount, steps=steps, size=config.batch)}
