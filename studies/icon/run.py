"""`python -m studies.icon`: train diffusion policies with and without ICon, roll them out, measure their encoders.

The experiments of ICon (Wang and Lin, "Grounding Bodily Awareness in Visual Representations for Efficient Policy
Learning", 2025).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from counterpoint.errors import import_extra
from studies.harness import Rows, Study, Tree, Trial
from studies.icon.config import ComparisonConfig
from studies.icon.data import check_tasks, open_episodes, record_data
from studies.icon.figures import plot_all
from studies.icon.measures import Views, evenly_spread
from studies.icon.pace import measure_pace, read_pace, steps_of
from studies.icon.summary import summarise
from studies.icon.table import page
from studies.icon.training import open_views, train_policy
from studies.icon.trials import PolicyTrial, imitation_config

REPORT = ("scipy.stats", "sklearn.linear_model", "rliable.library", "matplotlib.figure")
"""Packages that probes, tables and figures need."""


def icon_study(config: ComparisonConfig, out: Path) -> Tree:
    """Run a comparison and write `icon.json`, `icon.md`, `results.parquet` and the figures.

    Args:
        config: The configuration.
        out: A folder for only this study; an interrupted run resumes.

    Returns:
        The content of `icon.json`.

    Raises:
        BadInputError: If the folder holds another study, a setting is unknown, data are missing, or a worker
            process was killed.
        MissingExtraError: If the simulator or the report's packages are not installed.
    """
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
    rows, about = study.rows(), {"config": config.model_dump(mode="json")}
    result = {**summarise(rows, about), "pace": read_pace(out), "simulator_errors": _errors(rows)}
    figures = plot_all(about | result, rows, views, out)
    facts = {key: result[key] for key in ("aggregate", "improvement", "pace")}
    return study.finish("icon", result, page(about | result, figures), facts)


def plan(config: ComparisonConfig) -> tuple[list[PolicyTrial], list[PolicyTrial]]:
    """Return the policies trained from random weights, and the policies that start from one of these.

    They are ordered by seed and then by method, so that a stopped study has complete columns of the first seeds.
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
    return Trial(trial.name, partial(train_policy, config, out, trial, _source_of(config, trial)), steps, trial.about)


def _source_of(config: ComparisonConfig, trial: PolicyTrial) -> PolicyTrial | None:
    """Return the finished trial whose policy this one starts from."""
    if trial.start != "transferred" or config.transfer is None:
        return None
    (task,) = (task for task, targets in config.transfer.targets.items() if trial.task in targets)
    return PolicyTrial(trial.method, task, trial.seed)


def _views(config: ComparisonConfig, out: Path) -> dict[str, Views]:
    """Return, for each task, the held-out frames whose attention the report shows."""
    found = {}
    size = imitation_config(config, plan(config)[0][0]).encoder.size
    for task in config.all_tasks:
        _, held_out = open_views(config, *open_episodes(config, out, task), size)
        places = evenly_spread(len(held_out.frames), config.measures.images)
        found[task] = Views(held_out.frames[places], held_out.masks[places], held_out.episodes[places])
    return found


def _errors(rows: Rows) -> Tree:
    """Return the errors that simulators raised, by trial and seed of the episode."""
    found = {row["trial"]: {k: v for point in row["curve"] for k, v in point["raised"].items()} for row in rows}
    return {trial: errors for trial, errors in found.items() if errors}
