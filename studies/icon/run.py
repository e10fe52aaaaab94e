"""`python -m studies.icon`: train diffusion policies with and without ICon, roll them out, look into their encoders.

The experiments of ICon (Wang and Lin, "Grounding Bodily Awareness in Visual Representations for Efficient Policy
Learning", 2025). Demonstrations are recorded and policies trained in parts; each is written when it is finished, so
that an interrupted benchmark goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from counterpoint.errors import import_extra
from studies.harness import Study, Trial
from studies.icon.config import ComparisonConfig
from studies.icon.data import check_tasks, open_episodes, record_data
from studies.icon.measures import Views, evenly_spread
from studies.icon.pace import measure_pace, read_pace, steps_of
from studies.icon.summary import summarise
from studies.icon.table import tables
from studies.icon.training import open_views, train_policy
from studies.icon.trials import PolicyTrial, imitation_config

REPORT = ("scipy.stats", "sklearn.linear_model", "rliable.library", "matplotlib.figure", "jinja2")
"""What probes, tables, figures and the page are made with."""


def icon_study(config: ComparisonConfig, out: Path) -> dict[str, Any]:
    """Run a comparison, or what is left of it, and write `icon.json`, `icon.md`, `icon.html` and the figures.

    Args:
        config: What to run.
        out: A folder for this benchmark alone; one that an interrupted run left is finished.

    Returns:
        What `icon.json` holds.

    Raises:
        BadInputError: When the folder holds a benchmark of another configuration, a setting is unknown, data are
            missing, or a worker process was killed.
        MissingExtraError: When the simulator or what the report is made with is not installed.
    """
    from studies.icon.page import write_report  # needs extras, as what it draws with does

    for module in REPORT:  # a missing one is reported before hours of training
        import_extra(module, "report")
    first, transferred = plan(config)
    for trial in (*first, *transferred):
        imitation_config(config, trial)
    check_tasks(config)
    free = ("processes", "data.workers", "evaluation.envs", "evaluation.processes")
    study = Study(config.title, out, config, free=free)
    study.check([Trial(trial.name, dict) for trial in (*first, *transferred)])
    record_data(config, out)
    views = _views(config, out)  # decodes every frame before workers need them
    measure_pace(config, out, [trial for trial in first if trial.seed == first[0].seed and trial.task == first[0].task])
    for group in (first, transferred):
        study.run([_trial(config, out, trial) for trial in group], config.processes)
    result = _result(config, study, [*first, *transferred])
    result = study.finish("icon", result, tables(result | {"config": config.model_dump(mode="json")}))
    write_report(result, views, out)
    return result


def plan(config: ComparisonConfig) -> tuple[list[PolicyTrial], list[PolicyTrial]]:
    """Policies trained from random weights, and those that begin with one of these.

    Seed after seed, the methods side by side: a benchmark cut short has whole columns of the first seeds.
    """
    first, transferred = [], []
    targets = config.transfer.targets if config.transfer is not None else {}
    for seed in config.seeds:
        for task in config.data.tasks:
            first += [PolicyTrial(method.name, task, seed) for method in config.methods]
            for target in targets.get(task, ()):
                first += [PolicyTrial(method.name, target, seed, "alone") for method in config.methods]
                transferred += [PolicyTrial(method.name, target, seed, "transferred") for method in config.methods]
    return first, transferred


def _trial(config: ComparisonConfig, out: Path, trial: PolicyTrial) -> Trial:
    pace = read_pace(out)
    steps = (
        int(pace["steps"])
        if pace is not None
        else steps_of(imitation_config(config, trial), open_episodes(config, out, trial.task)[0])
    )
    return Trial(trial.name, partial(train_policy, config, out, trial, _source_of(config, trial)), steps)


def _source_of(config: ComparisonConfig, trial: PolicyTrial) -> PolicyTrial | None:
    """The finished part whose policy this one starts from."""
    if trial.start != "transferred" or config.transfer is None:
        return None
    (task,) = (task for task, targets in config.transfer.targets.items() if trial.task in targets)
    return PolicyTrial(trial.method, task, trial.seed)


def _views(config: ComparisonConfig, out: Path) -> dict[str, Views]:
    """Task -> the held-out frames whose attention the report shows."""
    found = {}
    size = imitation_config(config, plan(config)[0][0]).encoder.size
    for task in config.all_tasks:
        _, held_out = open_views(config, *open_episodes(config, out, task), size)
        places = evenly_spread(len(held_out.frames), config.measures.images)
        found[task] = Views(held_out.frames[places], held_out.masks[places], held_out.episodes[places])
    return found


def _result(config: ComparisonConfig, study: Study, trials: Sequence[PolicyTrial]) -> dict[str, Any]:
    """Everything the parts found, and what follows from it."""
    found = {trial: study.read(trial.name) for trial in trials}
    errors = {
        trial.name: told
        for trial, one in found.items()
        if (told := {seed: error for point in one["curve"] for seed, error in point["raised"].items()})
    }
    return {
        **summarise(config, found),
        "pace": read_pace(study.out),
        "simulator_errors": errors,
        "raw": {
            trial.name: {
                "method": trial.method,
                "column": trial.column,
                "seed": trial.seed,
                "curve": one["curve"],
                "inside": one["inside"],
            }
            for trial, one in found.items()
        },
        "evaluation_seeds": {trial.column: one["evaluation_seeds"] for trial, one in found.items()},
        "steps": {trial.name: one["steps"] for trial, one in found.items()},
        "parameters": {trial.method: one["parameters"] for trial, one in found.items()},
        "seconds": {trial.name: one["seconds"] for trial, one in found.items()},
    }
