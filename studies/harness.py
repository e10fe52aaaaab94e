"""The harness of every study: runs a grid of trials in parallel, resumes after the finished ones, and returns rows.

study = Study("few-shot policies", out, config)
study.run([Trial("scratch-hammer-0", partial(clone_one, ...), steps, {"row": "scratch", "seed": 0}), ...], processes=2)
study.finish("fewshot", summary(study.rows()))      # fewshot.json, and results.parquet with one row per trial
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import re
import sys
import time
import tomllib
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import joblib
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from jaxtyping import Float
from joblib.externals.loky.process_executor import TerminatedWorkerError
from numpy.typing import NDArray

import counterpoint.envs
from counterpoint.blocks import ray_cluster
from counterpoint.config import Config, FrozenConfig, override, validate
from counterpoint.errors import BadInputError, one_message, require
from counterpoint.evaluation.statistics import Estimate, from_resamples, seeds_interval, wider
from counterpoint.files import write_atomically
from counterpoint.progress import ProgressBar
from counterpoint.provenance import provenance

Tree = dict[str, Any]
Rows = Sequence[Tree]
Differences = Float[np.ndarray[Any, np.dtype[np.float64]], "seeds tasks"]  # numpy 2.5's NDArray is no class
Scores = Mapping[str, Differences]
RESAMPLES = 4000
RESULTS = Path(__file__).parent / "results"
"""Result files that the documentation reads."""
ALLOWED = re.compile(r"[A-Za-z0-9_./-]+")
"""The characters that are allowed in the name of a trial."""
COSTS = {"core_hours": "core-hours", "gpu_hours": "hours of a GPU"}
"""Keys of a preset that state its cost, with their units."""


def file_name(*parts: str | int) -> str:
    """Return the file name of a trial from the parts of its name."""
    return "-".join(str(part).replace("/", "-").replace(" ", "_") for part in parts)


def check_names(groups: Iterable[Iterable[Sequence[str]]]) -> None:
    """Raise an error for names with characters other than `ALLOWED`, and for names of a group that share a file.

    Raises:
        ValueError: If there is such a name; the message has the first one.
    """
    for group in groups:
        taken: dict[str, Sequence[str]] = {}
        for parts in group:
            for name in parts:
                if not ALLOWED.fullmatch(name):
                    raise ValueError(f"names may hold letters, digits and -_./ only, not {name!r}")
            other = taken.setdefault(file_name(*parts), parts)
            if other is not parts:
                pair = f"{' on '.join(other)} and {' on '.join(parts)}"
                raise ValueError(f"names that differ as files: {pair} would both be {file_name(*parts)}")


def refuse_keys(tree: Mapping[str, Any], keys: Mapping[str, str], where: str) -> None:
    """Raise an error for keys, dotted or nested, that a study sets itself.

    Raises:
        ValueError: If there is such a key; the message has the key and the reason.
    """
    for dotted, why in keys.items():
        node: Any = tree
        section, _, last = dotted.rpartition(".")
        if section:
            node = tree.get(section)
        if dotted in tree or (isinstance(node, Mapping) and last in node):
            raise ValueError(f"{where} cannot say {dotted}: {why}")


@dataclass(frozen=True)
class Trial:
    """One trial of a study.

    Attributes:
        name: Name of the file with the trial's result.
        run: Function that returns the result as JSON values; picklable, such as a `partial` of a module's function.
        weight: Number of units of the progress bar, such as gradient steps.
        about: Columns that identify the trial, stored with its result.
    """

    name: str
    run: Callable[[], Tree]
    weight: int = 1
    about: Mapping[str, Any] = field(default_factory=dict)


class Study:
    """A folder with the results of one configuration's trials.

    Args:
        title: Name of the study in messages and on the progress bar.
        out: The folder. If it belongs to an interrupted run, the run is resumed.
        config: The configuration; a resumed run needs the same one.
        free: Dotted keys of the configuration that a resumed run may change.

    Raises:
        BadInputError: If the folder holds something else or another configuration.
    """

    def __init__(self, title: str, out: Path, config: FrozenConfig, *, free: Collection[str] = ("processes",)) -> None:
        self.title, self.out, self.config = title, out, config
        own, path = config.model_dump(mode="json"), out / "config.json"
        for section, _, key in (dotted.rpartition(".") for dotted in free):
            del (own[section] if section else own)[key]
        require(not out.exists() or out.is_dir(), out, "a file", "a folder", "choose another --out")
        try:
            begun = json.loads(path.read_text()) if path.exists() else own
        except ValueError:
            begun = None
        ours = isinstance(begun, dict) and own.keys() <= begun.keys()
        found = "a study of another configuration" if ours else "a config.json of something else"
        expected = "an empty folder, or one of this configuration"
        require(begun == own, out, found, expected, "choose another --out")
        (out / "trials").mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write_atomically(path, json.dumps(own, indent=1))

    def path(self, name: str) -> Path:
        """Return the file of a trial's result."""
        return self.out / "trials" / f"{name}.json"

    def read(self, name: str) -> Tree:
        """Return the result of a finished trial, with `seconds` and `processor_seconds`.

        Raises:
            BadInputError: If the file is damaged.
        """
        return read_result(self.out, name)

    def check(self, trials: Sequence[Trial]) -> None:
        """Read the results of all finished trials, so that a damaged file is reported before anything runs."""
        for trial in trials:
            if self.path(trial.name).exists():
                self.read(trial.name)

    def run(self, trials: Sequence[Trial], processes: int = 1) -> None:
        """Run the trials that have no result yet, in order, several in parallel.

        Every trial uses one torch thread, so that its numbers do not depend on the other trials.

        Raises:
            BadInputError: If a worker process was killed.
        """
        left = [trial for trial in trials if not self.path(trial.name).exists()]
        total, waiting = sum(trial.weight for trial in trials), sum(trial.weight for trial in left)
        jobs = min(processes, len(left))
        with ProgressBar(self.title, total, "steps", done=total - waiting) as bar:
            if jobs <= 1:
                for trial in left:
                    bar.advance(_run(trial, self.path(trial.name), self.out / "logs"))
                return
            parallel = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered", pre_dispatch=jobs, batch_size=1)
            calls = (joblib.delayed(_run)(trial, self.path(trial.name), self.out / "logs") for trial in left)
            try:
                for weight in parallel(calls):
                    bar.advance(weight)
            except Exception as error:  # Ray's need not be installed
                if not isinstance(error, TerminatedWorkerError) and type(error).__name__ != "ActorDiedError":
                    raise
                hint = "run the same command again, with fewer processes if memory was short"
                raise BadInputError(self.title, "a worker process that was killed", "running workers", hint) from None

    def rows(self) -> list[Tree]:
        """Return one row per finished trial: `trial`, its columns, the result's keys and the times."""
        names = sorted(path.stem for path in (self.out / "trials").glob("*.json"))
        return [{"trial": name, **self.read(name)} for name in names]

    def finish(self, name: str, result: Tree, text: str | None = None, facts: Tree | None = None) -> Tree:
        """Write `results.parquet` (one row per trial), NAME.json and, if there is a text, NAME.md.

        Args:
            name: Name of the files.
            result: The summary of the rows.
            text: The tables in Markdown.
            facts: Facts about all trials, such as the data's fingerprint.

        Returns:
            The result with the configuration, the facts and the provenance.
        """
        rows, config = self.rows(), self.config.model_dump(mode="json")
        about = {"config": config, **(facts or {}), "environments": environments(), "provenance": provenance()}
        write_rows(self.out / "results.parquet", rows, about)
        result = {**about, **result, "processor_seconds": round(sum(row["processor_seconds"] for row in rows))}
        write_atomically(self.out / f"{name}.json", json.dumps(result, indent=1) + "\n")
        if text is not None:
            write_atomically(self.out / f"{name}.md", text)
        return result


def environments(folder: Path = Path(counterpoint.envs.__path__[0])) -> dict[str, str]:
    """Return a digest of each suite's code, with the code that all suites share; a fault is traced by these digests."""
    shared = sorted(folder.glob("*.py"))
    found = {}
    for suite in sorted(path for path in folder.iterdir() if path.is_dir() and any(path.glob("*.py"))):
        digest = hashlib.sha256()
        for path in (*shared, *sorted(suite.rglob("*.py"))):
            digest.update(path.read_bytes())
        found[suite.name] = digest.hexdigest()[:16]
    return found


def write_rows(path: Path, rows: Sequence[Tree], about: Tree) -> None:
    """Write rows as a Parquet file, with lists and trees as JSON, and `about` in the file's metadata."""
    keys = dict.fromkeys(key for row in rows for key in row)
    nested = sorted({key for row in rows for key, value in row.items() if isinstance(value, list | dict)})
    flat = [
        {key: json.dumps(row[key]) if key in nested and key in row else row.get(key) for key in keys} for row in rows
    ]
    metadata = {"counterpoint": json.dumps(about | {"nested": nested})}
    content = io.BytesIO()
    pq.write_table(
        pa.Table.from_pylist(flat).replace_schema_metadata(metadata),
        content,
        compression="zstd",
        write_page_checksum=True,
    )
    write_atomically(path, content.getvalue())


def read_rows(path: Path) -> tuple[list[Tree], Tree]:
    """Return the rows of a file written by `write_rows`, without empty cells, and its `about`."""
    table = pq.read_table(path, page_checksum_verification=True)
    about = json.loads(table.schema.metadata[b"counterpoint"])
    nested = about.pop("nested")
    rows = [{key: value for key, value in row.items() if value is not None} for row in table.to_pylist()]
    return [{key: json.loads(row[key]) if key in nested else row[key] for key in row} for row in rows], about


def _run(trial: Trial, path: Path, logs: Path) -> int:
    """Run one trial, log its output to a file, and write its result atomically."""
    wall, processor, threads = time.perf_counter(), _processor_time(), torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # fading moments of Adam would be slow otherwise
    try:
        with _logged(logs / f"{trial.name}.log"):
            result = trial.run()
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)
    seconds, used = round(time.perf_counter() - wall, 1), round(_processor_time() - processor, 1)
    result = {**trial.about, **result}
    write_atomically(path, json.dumps({"result": result, "seconds": seconds, "processor_seconds": used}))
    return trial.weight


def _processor_time() -> float:
    """Return the processor time of this process and of its ended child processes, in seconds."""
    return sum(os.times()[:4])


@contextmanager
def _logged(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as log, redirect_stdout(log), redirect_stderr(log):
        yield


def read_result(out: Path, name: str) -> Tree:
    """Return the result of a finished trial; see `Study.read`."""
    path = out / "trials" / f"{name}.json"
    try:
        found = json.loads(path.read_text())
        return {**found["result"], "seconds": found["seconds"], "processor_seconds": found["processor_seconds"]}
    except (ValueError, KeyError, TypeError):
        hint = "remove the file and run the same command again: the trial is repeated"
        raise BadInputError(path, "a damaged result", "the result of a trial", hint) from None


def last_metrics(run: Path) -> dict[str, dict[str, float]]:
    """Return, for each split, the last line of numbers in a run's folder."""
    last: dict[str, dict[str, float]] = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        numbers = json.loads(line)
        last[numbers.pop("split")] = numbers
    return last


def presets(study: str) -> dict[str, Tree]:
    """Return a study's presets by name, from `studies/STUDY/presets.toml` or its part of `studies/presets.toml`."""
    folder = Path(__file__).parent
    own = folder / study / "presets.toml"
    found: Tree = tomllib.loads((own if own.exists() else folder / "presets.toml").read_text())
    return found if own.exists() else found[study]


def load_preset(study: str, kind: type[Config], name: str, overrides: Mapping[str, Any] | None = None) -> Config:
    """Return a preset of a study with overrides; a preset with the key `base` extends another preset.

    Raises:
        BadInputError: If the preset or a key is unknown.
    """
    known = presets(study)

    def tree(name: str) -> Tree:
        require(name in known, f"preset {name!r}", "no such preset", f"one of {', '.join(known)}", "choose one")
        own = {key: value for key, value in known[name].items() if key not in COSTS}
        base = own.pop("base", None)
        return override(tree(base) if base else {}, own)

    return validate(kind, override(tree(name), overrides or {}), f"preset {name}")


def cost(study: str, preset: str) -> str:
    """Return the cost of a preset without overrides, in core-hours or hours of a GPU."""
    own = presets(study)[preset]
    return " and ".join(f"{own[key]:g} {unit}" for key, unit in COSTS.items() if key in own) or "unknown hours"


def study_of(name: str) -> Callable[[Any, Path], Tree]:
    """Return the function NAME_study of `studies/NAME.py` or `studies/NAME/run.py`."""
    package = (Path(__file__).parent / name).is_dir()
    found: Callable[[Any, Path], Tree] = getattr(
        import_module(f"studies.{name}.run" if package else f"studies.{name}"), f"{name}_study"
    )
    return found


def main(name: str, arguments: Sequence[str] | None = None) -> None:
    """Run a study from the command line: `--preset NAME --out FOLDER [--ray] --KEY=VALUE ...`.

    Args:
        name: Name of the study. The annotation of its function's first argument is the type of its presets.
        arguments: Words of the command line; by default those of this process.

    Raises:
        SystemExit: With code 2 after bad input.
    """
    run, arguments = study_of(name), sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog=f"python -m studies.{name}", description=run.__doc__, allow_abbrev=False)
    parser.add_argument("--preset", default="cpu", help="the name of a preset")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results; an interrupted run continues")
    parser.add_argument("--keep", metavar="NAME", help="also write studies/results/NAME.parquet, which the tables read")
    parser.add_argument("--ray", nargs="?", const="local", metavar="HOST:PORT", help="run trials on Ray, or a cluster")
    known, rest = parser.parse_known_args(arguments)
    with one_message():
        config = load_preset(name, get_type_hints(run)["config"], known.preset, _overrides(rest))
        print(f"Preset {known.preset} of {name}: about {cost(name, known.preset)} in all")
        if known.keep:
            verdicts, claims = import_module("studies.verdicts"), import_module("studies.claims")  # they import this
            print(
                "\n".join(verdicts.plan(claims.CLAIMS, known.keep)) or "No stored result of a claim to plan seeds from"
            )
        with on_ray(known.ray, getattr(config, "processes", 1)) if known.ray else nullcontext():
            run(config, known.out)
    if known.keep:
        rows, about = read_rows(known.out / "results.parquet")
        command = f"python -m studies.{name} {' '.join(arguments)}"
        write_rows(RESULTS / f"{known.keep}.parquet", rows, {"command": command, **about})
    print(f"Wrote {known.out}")


@contextmanager
def on_ray(address: str, processes: int) -> Iterator[None]:
    """Run trials by joblib's backend `ray` on a cluster with a shared results' folder; for errors see `ray_cluster`."""
    with ray_cluster(None if address == "local" else address, processes):
        from ray.util.joblib.ray_backend import RayBackend

        # Its pool hands results over one by one, as that of threads does.
        kind = type("StreamingRay", (RayBackend,), {"supports_return_generator": True})
        joblib.register_parallel_backend("ray", kind)
        with joblib.parallel_config(backend="ray"):
            yield


def _overrides(arguments: Sequence[str]) -> Tree:
    """Read arguments `--key=value`; a value that is not JSON is a string."""
    found: Tree = {}
    for argument in arguments:
        key, equals, text = argument.removeprefix("--").partition("=")
        ok = equals and argument.startswith("--")
        require(ok, argument, "no value", "--key=value", "write key and value with a = between them")
        try:
            found[key] = json.loads(text)
        except ValueError:
            found[key] = text
    return found


def markdown(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def aggregates(matrices: Scores, *, reps: int = 2000, seed: int = 0) -> dict[str, dict[str, dict[str, float]]]:
    """Return, for each row, `iqm` and `mean` over tasks and seeds, with 95 % intervals of the stratified bootstrap.

    Runs are resampled within each task (Agarwal et al., NeurIPS 2021).
    """
    from rliable import metrics

    found: dict[str, dict[str, dict[str, float]]] = {row: {} for row in matrices}
    for name, aggregate in (("iqm", metrics.aggregate_iqm), ("mean", metrics.aggregate_mean)):
        points, intervals = _bootstrap(dict(matrices), aggregate, reps, seed)
        for row in matrices:
            low, high = intervals[row][:, 0]
            found[row][name] = {"value": float(points[row][0]), "low": float(low), "high": float(high)}
    return found


def improvements(matrices: Scores, reference: str, *, reps: int = 2000, seed: int = 0) -> dict[str, dict[str, float]]:
    """Return, for each row, the probability that a run of `reference` is better than one of it; ties count half."""
    from rliable import metrics

    pairs = {row: (matrices[reference], other) for row, other in matrices.items() if row != reference}
    if not pairs:
        return {}
    points, intervals = _bootstrap(pairs, metrics.probability_of_improvement, reps, seed)
    return {
        row: {"probability": float(points[row][0]), "low": float(ends[0, 0]), "high": float(ends[1, 0])}
        for row, ends in ((row, intervals[row]) for row in pairs)
    }


def _bootstrap(given: Any, aggregate: Any, reps: int, seed: int) -> Any:
    from rliable import library

    before = np.random.get_state()
    np.random.seed(seed)  # rliable takes a random state and then draws from the global one
    try:
        with warnings.catch_warnings():  # of arch, about how rliable hands the state on
            warnings.simplefilter("ignore", FutureWarning)
            return library.get_interval_estimates(given, partial(_as_array, aggregate), reps=reps)
    finally:
        np.random.set_state(before)


def _as_array(aggregate: Any, *matrices: Any) -> NDArray[np.float64]:
    return np.array([aggregate(*matrices)])


@cache
def kept(name: str, summarise: Callable[[Rows, Tree], Tree] | None = None) -> Tree:
    """Return a stored result: the `about` of NAME.parquet with a summary of its rows, or else with the `rows`."""
    rows, about = read_rows(RESULTS / f"{name}.parquet")
    seconds = round(sum(row.get("processor_seconds") or 0 for row in rows))
    return {**about, "processor_seconds": seconds, **(summarise(rows, about) if summarise else {"rows": rows})}


def over_seeds(values: Sequence[float], *, share: bool = False) -> Tree:
    """Return the mean over seeds with its t interval, and the value of every seed.

    The interval's ends are `None` for one seed. The mean is also `None` if a value is not defined.
    """
    if not np.isfinite(values).all():
        return {"mean": None, "low": None, "high": None, "values": [v if np.isfinite(v) else None for v in values]}
    found = seeds_interval(np.array(values), share=share)
    ends = {"low": found.low, "high": found.high} if len(values) > 1 else {"low": None, "high": None}
    return {"mean": found.value, **ends, "values": [*values]}


def paired(differences: Differences, *, seed: int = 0) -> Estimate:
    """Return the mean of paired differences with the wider of two intervals.

    The first is Student's interval over seeds, of each seed's mean over tasks. The second is a percentile bootstrap
    that resamples seeds and tasks. Episodes are never pooled.

    Args:
        differences: One number per seed and task; a single seed has no interval.
        seed: Random seed of the resamples.
    """
    S, T = differences.shape
    over_seeds = seeds_interval(differences.mean(axis=1))
    if S == 1:
        return over_seeds
    rng = np.random.default_rng(seed)
    rows, columns = rng.integers(0, S, (RESAMPLES, S)), rng.integers(0, T, (RESAMPLES, T))
    means = differences[rows[:, :, None], columns[:, None, :]].mean(axis=(1, 2))
    return wider(over_seeds, from_resamples(over_seeds.value, means, S))


def number(value: float | None, digits: int = 2, empty: str = "") -> str:
    """Return a number as text with `digits` decimals; `empty` for `None`."""
    # The last bits of a mean depend on numpy's version, and must not decide how a half is rounded.
    return empty if value is None else f"{round(value, 12):.{digits}f}"


def estimate(found: Mapping[str, Any] | None, digits: int = 2, *, share: bool = False) -> str:
    """Return a number with its interval as text; the interval of a share stays in [0, 1]."""
    value = (
        next((found[key] for key in ("value", "mean", "score", "probability") if key in found), None) if found else None
    )
    if found is None or value is None:
        return "not defined"
    if found["low"] is None:
        return number(value, digits)
    low, high = (max(0.0, found["low"]), min(1.0, found["high"])) if share else (found["low"], found["high"])
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def seeds(values: Sequence[float], digits: int = 2) -> str:
    """Return the numbers of all seeds as text."""
    return ", ".join(number(value, digits) for value in values)
