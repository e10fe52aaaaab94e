"""`python -m studies.fewshot`: pretrain, adapt to unseen tasks from a few demonstrations, roll out, and tabulate.

The experiments of Premier-TACO (Zheng et al., ICML 2024, section 4 and Appendices B to D) with its baselines. Data are
recorded, encoders pretrained and policies cloned in parts; each is written when it is finished, so that an interrupted
benchmark goes on where it stopped.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from counterpoint.files import write_atomically
from counterpoint.progress import ProgressBar
from counterpoint.provenance import provenance
from counterpoint.rewards.extras import report_package
from counterpoint.training.pretrain_steps import load_encoder
from studies.fewshot.cells import (
    Adaptation,
    PretrainingRun,
    adapt,
    clone_config,
    encoder_config,
    pretrain,
    pretraining_config,
    read_part,
)
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
from studies.fewshot.summary import summarise
from studies.fewshot.table import markdown
from studies.parts import claim_folder, dump
from studies.pool import Part, run_side_by_side

__all__ = ["fewshot_benchmark", "parts"]

REPORT = ("scipy.stats", "rliable.library", "rliable.metrics", "matplotlib.figure")
"""What tables and figures are made with."""
CHANCE, LEFT_CHANCE = 0.5, 0.55
"""Window accuracy of an encoder that learned nothing, and below which a run is said to have stayed there."""


def fewshot_benchmark(config: FewshotConfig, out: Path) -> dict[str, Any]:
    """Run a benchmark, or what is left of it, and write `fewshot.json`, `fewshot.md` and the figures.

    Args:
        config: What to run.
        out: A folder for this benchmark alone; one that an interrupted run left is finished.

    Returns:
        What `fewshot.json` holds.

    Raises:
        BadInputError: When the folder holds a benchmark of another configuration, a setting is unknown, data are
            missing, or a worker process was killed.
        MissingExtraError: When the simulator or what tables and figures are made with is not installed.
    """
    from studies.fewshot.figures import draw_all  # matplotlib is an extra

    for module in REPORT:  # missing ones are told now, not after days of training
        report_package(module)
    runs, cells = parts(config)
    _check(config, runs, cells)
    start_simulations(config)
    _claim(config, out)
    everything: list[PretrainingRun | Adaptation] = [*runs, *cells]
    for part in everything:
        if part.path(out).exists():
            read_part(part, out)
    record_data(config, out)
    told = _prepare(config, out)
    for message in told:
        warnings.warn(message, stacklevel=2)
    _run(config, out, runs, cells)
    result = _result(config, out, runs, cells) | {"warnings": told}
    write_atomically(out / "fewshot.json", dump(result))
    write_atomically(out / "fewshot.md", markdown(result))
    draw_all(result, out)
    return result


def parts(config: FewshotConfig) -> tuple[list[PretrainingRun], list[Adaptation]]:
    """What is pretrained and what is cloned, seed after seed: a benchmark cut short has whole rows of the first."""
    runs = [PretrainingRun(name, seed) for seed in range(config.seeds) for name in config.used_pretrainings]
    cells = [
        Adaptation(row.name, task, seed)
        for seed in range(config.seeds)
        for task in config.data.unseen_tasks
        for row in config.rows
    ]
    return runs, cells


def _check(config: FewshotConfig, runs: Sequence[PretrainingRun], cells: Sequence[Adaptation]) -> None:
    """Wrong settings are told before anything is recorded."""
    check_data(config)
    for name in config.pretrainings:
        settings = pretraining_config(config, PretrainingRun(name, 0))
        if settings.initialize_from and any(run.pretraining == name for run in runs):
            load_encoder(settings.initialize_from, settings.encoder, f"encoder of pretraining {name}")
    for row in config.rows:
        encoder = encoder_config(config, row.name)
        if row.initialize_from is not None:
            load_encoder(row.initialize_from, encoder, f"encoder of {row.name}")
    for cell in cells:
        clone_config(config, cell)


def _claim(config: FewshotConfig, out: Path) -> None:
    """Make the folder this benchmark's; numbers of processes may differ when it goes on."""
    own = config.model_dump(mode="json", exclude={"processes", "pretraining_processes"})
    del own["data"]["workers"]
    claim_folder(out, own)


def _prepare(config: FewshotConfig, out: Path) -> list[str]:
    """Decode all frames before workers ask for them; tell what is wrong with the tasks.

    Raises:
        BadInputError: When a task has too few demonstrations, or an expert that returns cannot be compared with.
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


def _run(config: FewshotConfig, out: Path, runs: Sequence[PretrainingRun], cells: Sequence[Adaptation]) -> None:
    """First what waits for nothing, then the policies on pretrained encoders."""

    def steps(cell: Adaptation) -> int:
        return clone_config(config, cell).steps

    encoders: list[Part] = [partial(pretrain, config, out, run) for run in runs if not run.path(out).exists()]
    left = [cell for cell in cells if not cell.path(out).exists()]
    alone = [cell for cell in left if config.row(cell.row).pretraining is None]
    waiting = [cell for cell in left if config.row(cell.row).pretraining is not None]
    total = sum(pretraining_config(config, run).train.steps or 0 for run in runs) + sum(map(steps, cells))
    missing = sum(pretraining_config(config, run).train.steps or 0 for run in runs if not run.path(out).exists())
    done = total - missing - sum(map(steps, left))
    with ProgressBar(config.title, total, "gradient steps", done=done) as bar:
        policies = [[partial(adapt, config, out, cell) for cell in group] for group in (alone, waiting)]
        if config.pretraining_processes == config.processes:
            run_side_by_side(config.title, [*encoders, *policies[0]], config.processes, bar)
        else:
            run_side_by_side(config.title, encoders, config.pretraining_processes, bar)
            run_side_by_side(config.title, policies[0], config.processes, bar)
        run_side_by_side(config.title, policies[1], config.processes, bar)


def _result(
    config: FewshotConfig, out: Path, runs: Sequence[PretrainingRun], cells: Sequence[Adaptation]
) -> dict[str, Any]:
    """Everything the parts found, and what follows from it."""
    tasks, rows = config.data.unseen_tasks, [row.name for row in config.rows]
    found = {cell: read_part(cell, out) for cell in cells}
    raw = {
        row: {task: [found[Adaptation(row, task, seed)]["curve"] for seed in range(config.seeds)] for task in tasks}
        for row in rows
    }
    expert = expert_returns(config, out) if config.data.suite == "dmc" else None
    pretrained = {run: read_part(run, out) for run in runs}
    return {
        "config": config.model_dump(mode="json"),
        "score": "success rate" if expert is None else "return / expert return",
        "expert_return": expert,
        **summarise(raw, config.reference, expert, reps=config.resamples),
        "pretraining": {
            run.name: _about(one, pretraining_config(config, run).train.batch_size) for run, one in pretrained.items()
        },
        "raw": raw,
        "evaluation_seeds": {
            task: [found[Adaptation(rows[0], task, seed)]["evaluation_seeds"] for seed in range(config.seeds)]
            for task in tasks
        },
        "seconds": {cell.name: one["seconds"] for cell, one in found.items()},
        "processor_seconds": round(sum(one["processor_seconds"] for one in (*found.values(), *pretrained.values()))),
        "provenance": provenance(),
    }


def _about(run: dict[str, Any], batch: int) -> dict[str, Any]:
    """A pretraining's last numbers; of a contrastive one, whether it learned at all.

    Args:
        run: What it wrote.
        batch: Its batch size: guessing among the batch's rows is right once in so many times.
    """
    last = run["metrics"].get("val") or run["metrics"].get("train", {})
    about: dict[str, Any] = {"metrics": run["metrics"], "seconds": run["seconds"]}
    window, among = last.get("window_accuracy"), last.get("categorical_accuracy")
    if window is not None:
        about["window_accuracy"] = window
        if window < LEFT_CHANCE:
            about["note"] = f"stayed at chance: window accuracy {window:.2f}, where {CHANCE} is guessing"
    elif among is not None:
        about["batch_accuracy"] = among
        if among < 2 / batch:
            about["note"] = f"stayed at chance: accuracy {among:.4f} among {batch} rows"
    return about
