"""How much a segment teaches the text tower, by its length: DecisionNCE's Appendix C as a figure.

    python -m studies.gradient_by_length --data runs/demo-data --runs runs/study

For each length m, batches of 32 segments of exactly m steps, and the norm of the loss's gradient with respect to the
text tower's projection, at random weights and at the end of training (`--runs` of `studies.metaworld_rewards`). The
appendix argues that it grows with m, since o_{n+m} and o_n then differ more.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from counterpoint.data.sampler import Sampler
from counterpoint.data.spec import Spec
from counterpoint.data.store import EpisodeStore
from counterpoint.encoders.dual import DualEncoder
from counterpoint.objectives import decisionnce_p_loss, decisionnce_t_loss
from counterpoint.provenance import provenance
from counterpoint.training.clips import ClipsRecipe, prepared_clips
from counterpoint.training.recipe import load_recipe
from studies.harness import RESULTS

LENGTHS = (1, 2, 4, 8, 16, 32)
LOSSES = {"DecisionNCE-P": decisionnce_p_loss, "DecisionNCE-T": decisionnce_t_loss}
TRAINED = {"DecisionNCE-P": "decisionnce_p", "DecisionNCE-T": "decisionnce_t"}


@dataclass(frozen=True)
class OfLength:
    """A segment of exactly m steps, its start uniform."""

    steps: int
    count: ClassVar[int] = 2

    @property
    def min_length(self) -> int:
        """One frame more than steps."""
        return self.steps + 1

    def __call__(self, lengths: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Pick start and goal."""
        start = rng.integers(lengths - self.steps)
        return np.stack([start, start + self.steps], 1)


def main() -> None:
    """Measure, and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--result", type=Path, default=RESULTS / "gradient_by_length.json")
    parser.add_argument("--figure", type=Path, default=Path("docs/assets/gradient_by_length.svg"))
    arguments = parser.parse_args()
    config = load_recipe("decisionnce_t-demo")
    assert isinstance(config, ClipsRecipe)
    store, _ = prepared_clips(arguments.data, config.data)
    norms: dict[str, dict[str, list[list[float]]]] = {}
    for name in LOSSES:
        of_method: dict[str, list[list[float]]] = {"random weights": [], "after training": []}
        for seed in arguments.seeds:
            torch.manual_seed(seed)
            fresh = DualEncoder(config.encoder)
            of_method["random weights"].append(by_length(fresh, store, name, seed, arguments.batches))
            run = arguments.runs / f"{TRAINED[name]}-seed{seed}"
            if run.exists():
                trained = DualEncoder.from_pretrained(run)
                of_method["after training"].append(by_length(trained, store, name, seed, arguments.batches))
        norms[name] = of_method
    about: dict[str, Any] = {
        "command": "python -m studies.gradient_by_length --data DATA --runs RUNS",
        "data": store.fingerprint,
        "lengths": LENGTHS,
        "seeds": arguments.seeds,
        "batches": arguments.batches,
        "temperature": config.objective["temperature"],
    }
    arguments.result.write_text(json.dumps(about | {"norms": norms, "provenance": provenance()}, indent=1) + "\n")
    plot(norms, arguments.figure)
    print(f"Wrote {arguments.result} and {arguments.figure}")


def by_length(encoder: DualEncoder, store: EpisodeStore, name: str, seed: int, batches: int) -> list[float]:
    """Mean norm of the gradient in the text projection, one value a length."""
    found = []
    weights = [p for p in encoder.text.parameters() if p.requires_grad]
    for steps in LENGTHS:
        spec = Spec.clips(OfLength(steps))
        norms = []
        for batch in Sampler(store, spec.bind(store), batch_size=32, seed=seed).batches(0, batches):
            with torch.no_grad():
                frames = encoder.encode_image(batch["frames"])
            loss = LOSSES[name](frames, encoder.encode_text(batch["instruction"]), temperature=0.1)
            gradients = torch.autograd.grad(loss, weights)
            norms.append(float(torch.stack([g.norm() for g in gradients]).norm()))
        found.append(float(np.mean(norms)))
    return found


def plot(norms: dict[str, dict[str, list[list[float]]]], path: Path) -> None:
    """One panel a state of the encoder; the band spans the seeds."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams |= {"font.size": 10, "svg.hashsalt": "counterpoint"}
    figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    for axis, state in zip(axes, ("random weights", "after training"), strict=True):
        for name, colour in (("DecisionNCE-P", "#0072B2"), ("DecisionNCE-T", "#D55E00")):
            values = np.array(norms[name][state])
            if not len(values):
                continue
            axis.fill_between(LENGTHS, values.min(0), values.max(0), color=colour, alpha=0.2, linewidth=0)
            axis.plot(LENGTHS, values.mean(0), color=colour, marker="o", markersize=3)
            axis.annotate(
                name, (LENGTHS[-1], values.mean(0)[-1]), xytext=(4, 0), textcoords="offset points", color=colour
            )
        axis.set(xscale="log", title=state, xlabel="segment length m (frames)", xticks=LENGTHS, xlim=(0.9, 130))
        axis.set_xticklabels([str(m) for m in LENGTHS])
        axis.minorticks_off()
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("gradient norm, text projection")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
