"""The study of language-conditioned cloning: pretrain encoders, freeze them, clone policies, and roll them out.

DecisionNCE (Li et al., ICML 2024, section 5.1, Appendix E.5) and AcTOL (Zhang et al., 2025, sections 5.3 and 5.6,
Appendix C): an MLP of 256 x 256 reads frozen embeddings of image and instruction, and proprioception.
"""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path

from counterpoint.encoders.dual import DualEncoder
from counterpoint.envs.make import make_env
from studies.harness import Study, Tree, Trial
from studies.lcbc.config import LcbcConfig, suite_of
from studies.lcbc.data import open_demonstrations, open_videos, record_data
from studies.lcbc.summary import summarise, tables
from studies.lcbc.trials import Cloning, Pretraining, clone, cloning_recipe, locate, pretrain, pretraining_recipe


def lcbc_study(config: LcbcConfig, out: Path) -> Tree:
    """Run the study and write `lcbc.json`, `lcbc.md` and `results.parquet`.

    Args:
        config: The configuration.
        out: A folder for only this study; an interrupted run resumes.

    Raises:
        BadInputError: If the folder holds another study, a setting is unknown, or there is no such task.
        MissingExtraError: If a simulator is not installed.
    """
    runs, policies = plan(config)
    for run in runs:
        pretraining_recipe(config, run)
    for policy in policies:
        cloning_recipe(config, policy, config.encoders[policy.encoder].checkpoint)
    for row in config.encoders.values():
        if row.checkpoint is not None:
            DualEncoder.from_pretrained(row.checkpoint)
    for task in (*config.tasks, *config.videos.tasks):
        make_env(task, cameras=config.cameras[suite_of(task)], size=config.size).close()
    study = Study(config.title, out, config)
    first = [Trial(run.name, partial(pretrain, config, out, run), 1, {"pretraining": run.encoder}) for run in runs]
    then = [Trial(one.name, partial(clone, config, out, one), 1, one.about) for one in policies]
    probed = [
        Pretraining(name, seed) for seed in range(config.seeds) for name, row in config.encoders.items() if row.dual
    ]
    probes = [
        Trial(f"places-{run.name}", partial(locate, config, out, run), 1, {"probe": run.encoder, "seed": run.seed})
        for run in probed
    ]
    study.check([*first, *probes, *then])
    record_data(config, out)
    open_videos(config, out)  # decodes all frames before workers need them
    for tasks in config.groups():
        open_demonstrations(config, out, tasks, 1, 0)
    gate = [trial for trial in then if trial.about["encoder"] == config.gate]
    study.run(gate, config.processes)
    reached = summarise(study.rows(), {"config": config.model_dump(mode="json")})["gate"]
    if not reached["passed"]:
        warnings.warn(f"the gate was not passed: {config.gate} reached {reached['reached']}", stacklevel=2)
    study.run(first, config.processes)
    study.run([*probes, *then], config.processes)
    split = {"videos": list(config.videos.tasks), "cloning": list(config.tasks)}
    facts = {"config": config.model_dump(mode="json"), "split": split}
    found = summarise(study.rows(), facts)
    return study.finish("lcbc", found, tables(facts | found), {"split": split})


def plan(config: LcbcConfig) -> tuple[list[Pretraining], list[Cloning]]:
    """Return pretrainings and policies by seed, so that a stopped study has complete tables of the first seeds."""
    trained = [name for name, row in config.encoders.items() if row.recipe is not None]
    runs = [Pretraining(name, seed) for seed in range(config.seeds) for name in trained]
    policies = [
        Cloning(name, tasks, cameras, count, seed)
        for seed in range(config.seeds)
        for tasks in config.groups()
        for count in config.demonstrations
        for name in config.encoders
        for cameras in config.views_of(suite_of(tasks[0]), name)
    ]
    return runs, policies
