"""`python -m studies.occupancy`: data that each method needs to estimate a discounted occupancy measure.

The tabular study of TD InfoNCE (Zheng et al., ICLR 2024, section 4.3, Appendices E.2 and E.3) with comparisons that
explain its ratios: the methods' limits in closed form, three rules for the end of an episode, one trajectory that is
never cut, and decaying against constant step sizes. `docs/results/occupancy.md` discusses the results.

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
from studies.gridworld import GridWorld
from studies.harness import Study, Tree, Trial
from studies.occupancy import figures
from studies.occupancy.analysis import CUTS, summarise
from studies.occupancy.data import Counted, count_data
from studies.occupancy.known import train_known
from studies.occupancy.limits import limit_errors
from studies.occupancy.methods import METHODS
from studies.occupancy.training import SCHEDULES, Setting, train

BATCH_RATE = 3e-3
ON_A_TRAJECTORY = ("td_infonce", "sr", "c_learning", "mc_infonce_renormalise", "c_learning_both")


class OccupancyConfig(FrozenConfig):
    """The configuration of the study; the defaults are the paper's if it states them (grid, steps, sizes, seeds)."""

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
    limit_sizes: tuple[int, ...] = Field(default=(), description="more data, of which only the limits are computed")
    curve_size: int = Field(default=10**5, description="transitions of the learning curves")
    known_steps: int = Field(default=5_000, ge=1)
    batches: tuple[int, ...] = Field(default=(), description="batch sizes compared at the most data")
    processes: int = Field(default=2, ge=1)

    @model_validator(mode="after")
    def _consistent(self) -> OccupancyConfig:
        if [*self.sizes, *self.limit_sizes] != sorted({*self.sizes, *self.limit_sizes}):
            raise ValueError("sizes must grow")
        if any(size % self.episode_length for size in (*self.sizes, *self.limit_sizes)):
            raise ValueError(f"sizes must be multiples of the episode length, {self.episode_length}")
        if self.curve_size not in self.sizes:
            raise ValueError(f"curve_size must be one of the sizes, {list(self.sizes)}")
        return self

    @property
    def grid(self) -> GridWorld:
        """The grid."""
        return GridWorld(self.width, self.height)

    def settings(self, method: str) -> list[Setting]:
        """Return the optimiser's settings: every learning rate under every schedule."""
        rates = self.sr_learning_rates if method == "sr" else self.learning_rates
        return [Setting(rate, schedule) for schedule in SCHEDULES for rate in rates]

    def truth(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return p(s+ | s, a) [P, S] in closed form."""
        exact = self.grid.exact_occupancy(self.grid.uniform_policy(), self.discount)
        return exact.reshape(-1, self.grid.states)


def occupancy_study(config: OccupancyConfig, out: Path) -> Tree:
    """Run the study and write `occupancy.json`, `results.parquet` and the figures.

    Args:
        config: The configuration.
        out: A folder for only this study; an interrupted run resumes.

    Returns:
        The content of `occupancy.json`.

    Raises:
        BadInputError: If the folder holds a study of another configuration.
    """
    study = Study("occupancy study", out, config)
    cells = [("episodes", size, method) for size in config.sizes for method in METHODS]
    cells += [("trajectory", size, method) for size in config.sizes for method in ON_A_TRAJECTORY]
    trials = [Trial("known", partial(_train_known, config))]
    trials += [
        Trial(
            f"{cut}-{n}-{method}",
            partial(_train, config, out, cut, n, method),
            about={"cut": cut, "size": n, "method": method},
        )
        for cut, n, method in cells
    ]
    trials += [
        Trial(
            f"batch-{n}-{method}", partial(_train_batch, config, out, method, n), about={"method": method, "batch": n}
        )
        for method in ("c_learning_both", "c_learning_pairs", "td_infonce")
        for n in config.batches
    ]
    study.run(trials, config.processes)
    limits = {
        f"{cut}-{size}-{seed}": limit_errors(recording(config, out, cut, size, seed), config.truth(), config.discount)
        for cut in CUTS
        for size in (*config.sizes, *config.limit_sizes)
        for seed in range(config.seeds)
    }
    about = {"config": config.model_dump(mode="json"), "limits": limits}
    found = summarise(study.rows(), about)
    figures.plot_all(about | found, out)
    return study.finish("occupancy", found, facts={"limits": limits})


def recording(config: OccupancyConfig, out: Path, cut: str, size: int, seed: int) -> Counted:
    """Return the counted data of one seed; recordings of different sizes are independent."""
    path = out / "data" / f"{cut}-{size}-{seed}.npz"
    if path.exists():
        return Counted.load(path)
    length = config.episode_length if cut == "episodes" else None
    own = int(np.random.SeedSequence([seed, size, CUTS.index(cut)]).generate_state(1)[0])
    found = count_data(config.grid, size, episode_length=length, discount=config.discount, seed=own)
    path.parent.mkdir(exist_ok=True)
    found.save(path)
    return found


def _train(config: OccupancyConfig, out: Path, cut: str, size: int, method: str) -> Tree:
    """Train one method on one amount of data, with all seeds and settings in parallel."""
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


def _train_batch(config: OccupancyConfig, out: Path, method: str, batch: int) -> Tree:
    """Train on the largest amount of data with another batch size and one decaying learning rate."""
    data = [recording(config, out, "episodes", config.sizes[-1], seed) for seed in range(config.seeds)]
    settings = [Setting(BATCH_RATE, "decayed")]
    return train(
        method, data, config.truth(), settings, discount=config.discount, steps=config.steps // 2, size=batch, seed=0
    )


def _train_known(config: OccupancyConfig) -> Tree:
    settings, steps = config.settings("td_infonce"), config.known_steps
    return {"methods": train_known(config.grid, settings, discount=config.discount, steps=steps, size=config.batch)}
