"""A real WidowX arm: the Meta-World encoders as they are, and encoders trained with one rollout left out.

    python -m studies.real_robot --data=WIDOWX --runs=runs/metaworld_rewards/runs --out runs/real_robot

The data are a video folder (18 rollouts of 9 instructions). Rows: a random encoder, the encoders of
`studies.metaworld_rewards` (zero-shot, Appendix D.2's question), and DecisionNCE-T trained on 17 rollouts and tested on
the 18th, 18 times over. Intervals are over seeds. Nothing was chosen on these rollouts.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from pydantic import PositiveInt

from counterpoint.data.cache import cached
from counterpoint.data.formats import open_dataset
from counterpoint.data.sampler import Sampler
from counterpoint.data.store import EpisodeStore, SubsetStore
from counterpoint.encoders.dual import DualEncoder
from counterpoint.evaluation.embedded import EmbeddedVideos, embed_store
from counterpoint.evaluation.reward_eval import evaluate_embedded
from counterpoint.training.clips import build_objective
from counterpoint.training.learner import ObjectiveLearner
from studies.harness import Rows, Study, Tree, Trial, main, over_seeds
from studies.metaworld_rewards import RunsConfig, demo_recipe, run_name

RANDOM, ZERO_SHOT = "random encoder", "{} trained on Meta-World, zero-shot"
LEFT_OUT = "decisionnce_t trained on the other 17 rollouts"
SHOWN = (
    "voc.transition", "voc_wrong_instruction.transition", "voc_reversed.transition", "accuracy_whole_video.transition",
    "accuracy_random_segments.transition", "triples_whole_video.transition", "voc.potential",
    "voc_wrong_instruction.potential", "accuracy_whole_video.potential",
)  # fmt: skip


class RealRobotConfig(RunsConfig):
    """Encoders that are tested on real rollouts, the `data`.

    Attributes:
        steps: Gradient steps of 32 clips on 17 rollouts: 120 steps are about 225 passes. Chosen before any result.
    """

    steps: PositiveInt = 120


def real_robot_study(config: RealRobotConfig, out: Path) -> Tree:
    """Test every encoder and write `real_robot.json` and `results.parquet`."""
    study, store, trials = Study("a real robot", out, config), _rollouts(config), []
    for seed in config.seeds:
        trials.append(Trial(f"random-{seed}", partial(_random, config, seed), about={"row": RANDOM, "seed": seed}))
        for name in ("decisionnce_t", "decisionnce_p"):
            run = Path(config.runs) / run_name(name, seed)
            if run.exists():
                about = {"row": ZERO_SHOT.format(name), "seed": seed}
                trials.append(Trial(f"{name}-{seed}", partial(_zero_shot, config, run, seed), about=about))
        trials.append(
            Trial(f"left_out-{seed}", partial(_left_out, config, seed), about={"row": LEFT_OUT, "seed": seed})
        )
    study.run(trials, config.processes)
    chance = 1 / len({info.instruction for info in store.episodes})
    facts = {"data": store.fingerprint, "rollouts": len(store.episodes), "chance": chance}
    return study.finish("real_robot", summary(study.rows()), facts=facts)


def summary(rows: Rows, _: Tree | None = None) -> Tree:
    """Return `rows`: row -> number -> its mean over seeds with a t interval."""
    found: Tree = {}
    for name in (RANDOM, ZERO_SHOT.format("decisionnce_t"), ZERO_SHOT.format("decisionnce_p"), LEFT_OUT):
        if runs := [row for row in rows if row["row"] == name]:
            found[name] = {key: over_seeds([run[key] for run in runs]) for key in SHOWN}
    return {"rows": found}


def _rollouts(config: RealRobotConfig) -> EpisodeStore:
    return cached(open_dataset(config.data), size=demo_recipe().data.size)


def _random(config: RealRobotConfig, seed: int) -> Tree:
    torch.manual_seed(seed)
    return _numbers(embed_store(DualEncoder(demo_recipe().encoder).eval(), _rollouts(config)), seed)


def _zero_shot(config: RealRobotConfig, run: Path, seed: int) -> Tree:
    return _numbers(embed_store(DualEncoder.from_pretrained(run), _rollouts(config)), seed)


def _left_out(config: RealRobotConfig, seed: int) -> Tree:
    """Return means over rollouts, each scored by an encoder that was trained on the others."""
    store, found = _rollouts(config), []
    instructions = tuple(dict.fromkeys(info.instruction for info in store.episodes))
    for number in range(len(store.episodes)):
        others = SubsetStore(store, [episode for episode in range(len(store.episodes)) if episode != number])
        encoder = _fit(others, seed, config.steps)
        found.append(_numbers(embed_store(encoder, SubsetStore(store, [number]), instructions=instructions), seed))
    return {key: float(np.mean([one[key] for one in found])) for key in SHOWN}


def _numbers(embedded: EmbeddedVideos, seed: int) -> dict[str, float]:
    evaluation = evaluate_embedded(embedded, form="transition", seed=seed)
    return {key: evaluation.estimates[key].value for key in SHOWN}


def _fit(store: EpisodeStore, seed: int, steps: int) -> DualEncoder:
    """Train by the demo recipe for a number of steps."""
    recipe = demo_recipe()
    torch.manual_seed(seed)
    objective = build_objective(recipe)
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    learner = ObjectiveLearner(objective, recipe.optimizer, total_steps=steps, accelerator=accelerator)
    loader = Sampler(store, objective.sampling().bind(store), batch_size=recipe.train.batch_size, seed=seed)
    for step, batch in enumerate(loader.batches(0, steps)):
        learner.update(batch, step)
    encoder = learner.exports()["encoder"]
    assert isinstance(encoder, DualEncoder)
    return encoder.eval()


if __name__ == "__main__":
    main("real_robot")
