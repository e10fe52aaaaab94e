"""The few-shot study: pretrain, adapt to unseen tasks from a few demonstrations, roll out, and tabulate.

The experiments of Premier-TACO (Zheng et al., ICML 2024, section 4 and Appendices B to D) with its baselines.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from counterpoint.errors import import_extra
from counterpoint.training.transitions import load_encoder
from studies.fewshot import figures
from studies.fewshot.check import check_data
from studies.fewshot.config import FewshotConfig
from studies.fewshot.data import (
    demonstrations_of,
    expert_returns,
    open_demonstrations,
    open_pretraining,
    record_data,
    start_simulations,
    task_instruction,
)
from studies.fewshot.summary import result
from studies.fewshot.tables import tables
from studies.fewshot.trials import (
    Adaptation,
    PretrainingRun,
    adapt,
    clone_config,
    encoder_config,
    pretrain,
    pretraining_config,
)
from studies.harness import Study, Tree, Trial

REPORT = ("scipy.stats", "rliable.library", "rliable.metrics", "matplotlib.figure")
"""Packages that tables and figures need."""


def fewshot_study(config: FewshotConfig, out: Path) -> Tree:
    """Run the study and write `fewshot.json`, `fewshot.md`, `results.parquet` and the figures.

    Args:
        config: The configuration.
        out: A folder for only this study; an interrupted run resumes.

    Returns:
        The content of `fewshot.json`.

    Raises:
        BadInputError: If the folder holds another study, a setting is unknown, data are missing, or a worker
            process was killed.
        MissingExtraError: If the simulator or the report's packages are not installed.
    """
    for module in REPORT:  # a missing one is reported before days of training
        import_extra(module, "report")
    runs, adaptations = plan(config)
    _check(config, runs, adaptations)
    start_simulations(config)
    study = Study(config.title, out, config, free=("processes", "pretraining_processes", "data.workers"))
    steps = [pretraining_config(config, run).train.steps or 1 for run in runs]
    first = [
        Trial(one.name, partial(pretrain, config, out, one), weight, vars(one))
        for one, weight in zip(runs, steps, strict=True)
    ]
    steps = [clone_config(config, one).train.steps or 1 for one in adaptations]
    then = [
        Trial(one.name, partial(adapt, config, out, one), weight, vars(one))
        for one, weight in zip(adaptations, steps, strict=True)
    ]
    study.check([*first, *then])
    record_data(config, out)
    warned = _prepare(config, out)
    for message in warned:
        warnings.warn(message, stacklevel=2)
    study.run(first, config.pretraining_processes)
    study.run(then, config.processes)
    facts: Tree = {"expert_return": expert_returns(config, out)} if config.data.suite == "dmc" else {}
    about = {"config": config.model_dump(mode="json"), **facts}
    found = result(study.rows(), about) | {"warnings": warned}
    facts |= {key: found[key] for key in ("aggregate", "improvement")}
    found = study.finish("fewshot", found, tables(about | found), facts)
    figures.plot_all(found, out)
    return found


def plan(config: FewshotConfig) -> tuple[list[PretrainingRun], list[Adaptation]]:
    """Return pretrainings and policies by seed, so that a stopped study has complete tables of the first seeds."""
    runs = [PretrainingRun(name, seed) for seed in range(config.seeds) for name in config.used_pretrainings]
    adaptations = [
        Adaptation(row.name, task, seed)
        for seed in range(config.seeds)
        for task in config.data.unseen_tasks
        for row in config.rows
    ]
    return runs, adaptations


def _check(config: FewshotConfig, runs: Sequence[PretrainingRun], adaptations: Sequence[Adaptation]) -> None:
    """Raise an error for wrong settings before anything is recorded."""
    check_data(config)
    for name in config.pretrainings:
        settings = pretraining_config(config, PretrainingRun(name, 0))
        if settings.initialize_from and any(run.pretraining == name for run in runs):
            load_encoder(settings.initialize_from, settings.encoder, f"encoder of pretraining {name}")
    for row in config.rows:
        encoder = encoder_config(config, row.name)
        if row.initialize_from is not None:
            load_encoder(row.initialize_from, encoder, f"encoder of {row.name}")
    for one in adaptations:
        clone_config(config, one)


def _prepare(config: FewshotConfig, out: Path) -> list[str]:
    """Decode all frames before workers need them, and return warnings about the tasks.

    Raises:
        BadInputError: If a task has too few demonstrations, or an expert without a return to compare with.
    """
    own = {task: task_instruction(config, task) for task in config.data.unseen_tasks}
    seen: set[str] = set()
    for size in sorted({encoder_config(config, row.name).size for row in config.rows}):
        for task, instruction in own.items():
            store = open_demonstrations(config, out, size, task)
            demonstrations_of(store, instruction, 0, config.data.demonstrations_for(task))
        if config.used_pretrainings:
            seen |= {info.instruction for info in open_pretraining(config, out, size)[0].episodes}
    if config.data.suite == "dmc":
        expert_returns(config, out)
    both = seen & set(own.values()) - {""}
    return [f"not unseen: the pretraining data hold episodes of {one!r}" for one in sorted(both)]
