"""A real WidowX arm: the Meta-World encoders as they are, and encoders trained with one rollout left out.

    python -m studies.real_robot --data WIDOWX --runs runs/study

`--data` is a video folder (18 rollouts of 9 instructions). Rows: a random encoder, the Meta-World encoders that
`studies.metaworld_rewards` left under `--runs` (zero-shot, Appendix D.2's question), and DecisionNCE-T trained on 17
rollouts and asked about the 18th, 18 times over. Three seeds each; intervals are over seeds. Nothing was chosen on
these rollouts.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from counterpoint.data.cache import cached
from counterpoint.data.formats import open_dataset
from counterpoint.data.sampler import Sampler
from counterpoint.data.store import EpisodeStore, SubsetStore
from counterpoint.encoders.dual import DualEncoder
from counterpoint.evaluation.embedded import EmbeddedVideos, embed_store
from counterpoint.evaluation.reward_eval import evaluate_embedded
from counterpoint.evaluation.statistics import seeds_interval
from counterpoint.progress import ProgressBar
from counterpoint.provenance import provenance
from counterpoint.training.clips import ClipsRecipe, build_objective
from counterpoint.training.learner import ObjectiveLearner
from counterpoint.training.recipe import load_recipe
from studies.harness import RESULTS

RECIPE = "decisionnce_t-demo"
STEPS = 120  # 17 rollouts: about 225 passes at 32 clips a step; fixed beforehand
SHOWN = (
    "voc.transition", "voc_wrong_instruction.transition", "voc_reversed.transition", "accuracy_whole_video.transition",
    "accuracy_random_segments.transition", "triples_whole_video.transition", "voc.potential",
    "voc_wrong_instruction.potential", "accuracy_whole_video.potential",
)  # fmt: skip


def main() -> None:
    """Measure every row and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--result", type=Path, default=RESULTS / "real_robot.json")
    arguments = parser.parse_args()
    config = load_recipe(RECIPE)
    assert isinstance(config, ClipsRecipe)
    store = cached(open_dataset(arguments.data), size=config.data.size)
    rows: dict[str, list[dict[str, float]]] = {}
    for seed in arguments.seeds:
        torch.manual_seed(seed)
        rows.setdefault("random encoder", []).append(score(DualEncoder(config.encoder).eval(), store, seed))
        for name in ("decisionnce_t", "decisionnce_p"):
            run = arguments.runs / f"{name}-seed{seed}"
            if run.exists():
                found = score(DualEncoder.from_pretrained(run), store, seed)
                rows.setdefault(f"{name} trained on Meta-World, zero-shot", []).append(found)
        left_out = left_out_numbers(store, seed, arguments.steps, arguments.runs)
        rows.setdefault("decisionnce_t trained on the other 17 rollouts", []).append(left_out)
    table = {name: {key: interval([found[key] for found in seeds]) for key in SHOWN} for name, seeds in rows.items()}
    about: dict[str, Any] = {
        "command": "python -m studies.real_robot --data WIDOWX --runs runs/study",
        "data": store.fingerprint,
        "rollouts": len(store.episodes),
        "seeds": arguments.seeds,
        "steps": arguments.steps,
        "chance": 1 / len({info.instruction for info in store.episodes}),
    }
    arguments.result.write_text(json.dumps(about | {"rows": table, "provenance": provenance()}, indent=1) + "\n")
    print(json.dumps({name: {k: round(v["mean"], 3) for k, v in row.items()} for name, row in table.items()}, indent=1))


def score(encoder: DualEncoder, store: EpisodeStore, seed: int) -> dict[str, float]:
    """What one encoder says of all rollouts."""
    return numbers(embed_store(encoder, store), seed)


def numbers(embedded: EmbeddedVideos, seed: int) -> dict[str, float]:
    """The shown estimates, without their intervals over videos."""
    evaluation = evaluate_embedded(embedded, form="transition", seed=seed)
    return {key: evaluation.estimates[key].value for key in SHOWN}


def left_out_numbers(store: EpisodeStore, seed: int, steps: int, runs: Path) -> dict[str, float]:
    """Mean over rollouts, each scored by an encoder that was trained on the others; kept, since it takes minutes."""
    kept = runs / f"left_one_out-{store.fingerprint[:8]}-{steps}-seed{seed}.json"
    if kept.exists():
        measured: dict[str, float] = json.loads(kept.read_text())
        return measured
    instructions = tuple(dict.fromkeys(info.instruction for info in store.episodes))
    found = []
    with ProgressBar(f"Leaving one out, seed {seed}", len(store.episodes), "rollouts") as progress:
        for number in range(len(store.episodes)):
            encoder = fit(SubsetStore(store, [e for e in range(len(store.episodes)) if e != number]), seed, steps)
            held_out = embed_store(encoder, SubsetStore(store, [number]), instructions=instructions)
            found.append(numbers(held_out, seed))
            progress.advance()
    means = {key: float(np.mean([of_one[key] for of_one in found])) for key in SHOWN}
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(means))
    return means


def fit(store: EpisodeStore, seed: int, steps: int) -> DualEncoder:
    """The demo recipe on a store, for a number of steps."""
    config = load_recipe(RECIPE)
    assert isinstance(config, ClipsRecipe)
    torch.manual_seed(seed)
    objective = build_objective(config)
    learner = ObjectiveLearner(
        objective, config.optimizer, total_steps=steps, accelerator=Accelerator(cpu=not torch.cuda.is_available())
    )
    loader = Sampler(store, objective.sampling().bind(store), batch_size=config.train.batch_size, seed=seed)
    for step, batch in enumerate(loader.batches(0, steps)):
        learner.update(batch, step)
    encoder = learner.exports()["encoder"]
    assert isinstance(encoder, DualEncoder)
    return encoder.eval()


def interval(values: list[float]) -> dict[str, Any]:
    """Mean, interval over seeds, and the values."""
    estimate = seeds_interval(np.array(values))
    return {"mean": estimate.value, "low": estimate.low, "high": estimate.high, "values": values}


if __name__ == "__main__":
    main()
