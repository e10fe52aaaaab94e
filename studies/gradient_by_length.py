"""The text tower's gradient by the length of segments: DecisionNCE's Appendix C as a figure.

    python -m studies.gradient_by_length --data=runs/demo-data --runs=runs/metaworld_rewards/runs --out runs/lengths

For each length m, batches of 32 segments of exactly m steps are drawn. The study measures the norm of the loss's
gradient with respect to the text tower's projection, at random weights and at the end of training (the runs of
`studies.metaworld_rewards`). The appendix argues that this norm grows with m, since o_{n+m} and o_n then differ more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import PositiveInt

from counterpoint.data.sampler import Sampler
from counterpoint.data.spec import Spec
from counterpoint.encoders.dual import DualEncoder
from counterpoint.objectives import decisionnce_p_loss, decisionnce_t_loss
from counterpoint.training.clips import prepared_clips
from studies.harness import Rows, Study, Tree, Trial, file_name, main
from studies.metaworld_rewards import RunsConfig, demo_recipe, run_name
from studies.plots import BLUE, VERMILLION, curve, panels, plain, save

LOSSES = {"decisionnce_p": decisionnce_p_loss, "decisionnce_t": decisionnce_t_loss}
TITLES = {"decisionnce_p": "DecisionNCE-P", "decisionnce_t": "DecisionNCE-T"}
RANDOM, TRAINED = "random weights", "after training"


class GradientByLengthConfig(RunsConfig):
    """Lengths and encoders.

    Attributes:
        lengths: Lengths of segments, m, in steps.
        batches: Number of batches per length.
    """

    lengths: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    batches: PositiveInt = 8


@dataclass(frozen=True)
class OfLength:
    """A segment of exactly m steps with a uniformly drawn start."""

    steps: int
    count: ClassVar[int] = 2

    @property
    def min_length(self) -> int:
        """Minimum number of frames of an episode."""
        return self.steps + 1

    def __call__(self, lengths: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Pick start and goal."""
        start = rng.integers(lengths - self.steps)
        return np.stack([start, start + self.steps], 1)


def gradient_by_length_study(config: GradientByLengthConfig, out: Path) -> Tree:
    """Measure every encoder and write `gradient_by_length.json`, `.svg` and `results.parquet`."""
    study = Study("gradient by length", out, config)
    every = [(loss, weights, seed) for loss in LOSSES for weights in (RANDOM, TRAINED) for seed in config.seeds]
    trials = [
        Trial(
            file_name(*one), partial(measure, config, *one), about={"loss": one[0], "weights": one[1], "seed": one[2]}
        )
        for one in every
        if one[1] == RANDOM or (Path(config.runs) / run_name(one[0], one[2])).exists()
    ]
    study.run(trials, config.processes)
    rows = study.rows()
    save(figure(rows, config.lengths), out / "gradient_by_length.svg")
    return study.finish("gradient_by_length", {"norms": rows})


def measure(config: GradientByLengthConfig, loss: str, weights: str, seed: int) -> Tree:
    """Return the mean norm of the gradient in the text projection, one value per length."""
    recipe = demo_recipe()
    torch.manual_seed(seed)
    trained = Path(config.runs) / run_name(loss, seed)
    encoder = DualEncoder(recipe.encoder) if weights == RANDOM else DualEncoder.from_pretrained(trained)
    store, _ = prepared_clips(Path(config.data), recipe.data)
    parameters = [p for p in encoder.text.parameters() if p.requires_grad]
    found = []
    for steps in config.lengths:
        spec = Spec.clips(OfLength(steps))
        norms = []
        for batch in Sampler(store, spec.bind(store), batch_size=32, seed=seed).batches(0, config.batches):
            with torch.no_grad():
                frames = encoder.encode_image(batch["frames"])
            value = LOSSES[loss](frames, encoder.encode_text(batch["instruction"]), temperature=0.1)
            gradients = torch.autograd.grad(value, parameters)
            norms.append(float(torch.stack([g.norm() for g in gradients]).norm()))
        found.append(float(np.mean(norms)))
    return {"norms": found}


def figure(rows: Rows, lengths: tuple[int, ...]) -> Any:
    """Plot one panel for each state of the encoder; the band spans the seeds."""
    plotted, made = panels(1, 2, 8, 3.2)
    for panel, state in zip(made[0], (RANDOM, TRAINED), strict=True):
        for loss, colour in zip(LOSSES, (BLUE, VERMILLION), strict=True):
            values = [row["norms"] for row in rows if (row["loss"], row["weights"]) == (loss, state)]
            if values:
                curve(panel, lengths, values, colour, marker="o", markersize=3)
                end = (lengths[-1], float(np.mean(values, 0)[-1]))
                panel.annotate(TITLES[loss], end, xytext=(4, 0), textcoords="offset points", color=colour, fontsize=9)
        plain(panel, state, "segment length m (frames)", xscale="log", xlim=(0.9, 4 * lengths[-1]))
        panel.set_xticks(lengths, [str(m) for m in lengths])
        panel.minorticks_off()
    made[0][0].set_ylabel("gradient norm, text projection", fontsize=8)
    return plotted


if __name__ == "__main__":
    main("gradient_by_length")
