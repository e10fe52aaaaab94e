"""The entry point of all training: takes a recipe, data or an environment, and a folder, and makes a run."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import torch
from torch import nn
from tyro.conf import Positional, arg

from counterpoint.blocks import one_torch_thread
from counterpoint.data.store import EpisodeStore
from counterpoint.encoders.card import write_results
from counterpoint.encoders.hub import push as upload_model
from counterpoint.errors import BadInputError, require_extras
from counterpoint.files import read_object
from counterpoint.parameter_types import Device, Environment, Number, PythonOnly, Repository, Typed
from counterpoint.progress import ProgressBar, duration
from counterpoint.repositories import check_upload
from counterpoint.training.distributed import accelerator_of, meet, world_size
from counterpoint.training.loop import fit
from counterpoint.training.plan import Data, Given, Recipe
from counterpoint.training.recipe import load_recipe, recipe_of
from counterpoint.training.run import NOTE, Run
from counterpoint.workers import worker_pool


def train(
    recipe: Annotated[str | Path | Recipe, Typed(Positional[Annotated[str, arg(metavar="RECIPE")]])],
    data: Annotated[Data | Sequence[Data] | None, Typed(Annotated[tuple[Path, ...], arg(metavar="PATH...")], ())],
    out: Annotated[str | Path, Typed(Path)],
    env: Environment = None,
    *,
    overrides: PythonOnly[Mapping[str, Any] | None] = None,
    validation: PythonOnly[EpisodeStore | None] = None,
    start_from: Annotated[str | Path | None, Typed(Annotated[str | None, arg(metavar="RUN")])] = None,
    on_eval: PythonOnly[Callable[[int, Mapping[str, nn.Module]], Mapping[str, float] | None] | None] = None,
    device: Device = None,
    processes: Annotated[int | None, Typed(Number, None)] = 1,
    push: Repository = None,
) -> Run:
    """Train a recipe: an encoder, a policy or an agent. Repeating the same call continues an interrupted run.

    `counterpoint train RECIPE --help` lists every key of the recipe, such as --train.steps.

    Time on two cores: minutes for the demos, and hours to days at the papers' sizes; a run that takes over ten minutes
    prints an estimate after its first steps. Recipes of kind `clips` learn from 1,160 frames a second with the demo's
    encoder and from 9 with EfficientNet-Lite0. Disk: `keep` checkpoints of about three times the weights, and a cache
    of the frames.

    Args:
        recipe: A recipe's name (see `counterpoint recipes`), the path of a TOML file, or an agent's name, which means
            the defaults of its paper. From Python, a `Recipe` can be given too.
        data: Data sets. Recipes of kind `transitions` take several, each with its own action space; agents can be
            trained without data. From Python, open stores with frames of training size can be given too.
        out: The run's folder.
        env: For an agent: a goal environment, such as FetchReach-v4, to train in, or to evaluate in if there are data.
            For a policy that learns from demonstrations: SUITE/TASK, to evaluate in during training.
        overrides: Values that replace settings of the recipe, by dotted key, if the recipe is given by name.
        validation: An open store to validate on, if `data` is an open store.
        start_from: A saved encoder that cloning starts from, or a saved diffusion policy to fine-tune.
        on_eval: Called with the steps done and the trained modules, every `eval_every` steps and after the last step.
        device: cpu, cuda or cuda:N; by default a GPU if the machine has one.
        processes: Number of processes, with this one, that train the model and the judges of a recipe with `data.folds`
            on a CPU. The command line's default is one per core. A script that gives more than 1 needs
            `if __name__ == "__main__":`.
        push: Upload the trained model, with its card, to this repository of the Hub. A run that is continued may have
            another, or none.

    Returns:
        The run, closed; its `model` is the folder of the trained model.

    Raises:
        BadInputError: If settings, data, weights or the run's folder cannot be used, or the account may not upload;
            raised before long work begins. If the upload fails; the run is then complete.
    """
    several = () if data is None else (data,) if isinstance(data, str | Path | EpisodeStore) else tuple(data)
    settings = recipe if isinstance(recipe, Recipe) else load_recipe(recipe, overrides, data=several, env=env)
    require_extras(dict.fromkeys(settings.loop.trackers, "track"))
    accelerator = accelerator_of(getattr(settings.loop, "precision", "no"), device)
    by_hand = f"counterpoint push {quote(str(out))} {push}"
    if push is not None and accelerator.is_main_process:
        check_upload(push, "--push", by_hand)
    given = Given(several, validation, None if start_from is None else str(start_from), str(accelerator.device))
    plan = settings.plan(given, accelerator)
    main, facts = accelerator.is_main_process, dict(plan.facts)
    if not isinstance(recipe, Recipe):
        facts["recipe"] = str(recipe)
    loop = plan.loop or settings.loop
    require_extras(dict.fromkeys(loop.trackers, "track"))
    with Run.open(out, settings, plan.identity, loop=loop, facts=facts, main=main) as run:
        cpu = accelerator.device.type == "cpu" and world_size() == 1 and not given.is_open
        count = 1 if not cpu else torch.get_num_threads() if processes is None else processes
        judges = settings.judges(given)
        with _judging(judges, run, data, count, {"start_from": start_from, "device": device}) as train_judges:
            job = plan.build(run)  # prepares the data, which the judges share
            run.record(**job.facts)

            def evaluate(step: int) -> dict[str, float]:
                scores = dict(job.evaluate(step)) if job.evaluate is not None else {}
                if on_eval is None:
                    return scores
                exports = job.learner.exports()
                return scores | dict((on_eval(step, exports) if main else None) or {})

            def keep(step: int, scores: Mapping[str, float]) -> None:
                run.keep_best(step, scores.get("action_error", scores["loss"]), job.save)

            try:
                train_judges()
                # Recipes with judges train small heads on features; a step of a head is too small for several threads.
                with one_torch_thread() if judges else nullcontext():
                    fit(
                        job.learner,
                        job.source,
                        run,
                        validation=job.validation,
                        seen=job.seen,
                        on_eval=evaluate,
                        on_validation=keep,
                    )
            finally:
                job.source.close()
        job.save(run.model)
        if run.main:
            write_results(run.folder)
    meet("end")
    if push is not None and main:
        try:
            print(f"Uploaded to {upload_model(run.folder, push)}", flush=True)
        except BadInputError as error:
            hint = f"the run is complete; upload its model later: {by_hand}"
            raise BadInputError(error.where, error.found, error.expected, hint) from error
    return run


@contextmanager
def _judging(
    judges: Sequence[Recipe], run: Run, data: Any, processes: int, options: Mapping[str, Any]
) -> Iterator[Callable[[], None]]:
    """Yield a function that trains the judge of each part of the data, or lets other processes begin to train them.

    Other processes start at once, so that they import modules while the data are prepared. This process also trains
    judges, after the model. Judges that are already trained are left as they are.
    """
    left = [number for number, judge in enumerate(judges) if not _is_trained(run.judge(number), judge)]
    if not left or processes < 2:
        yield partial(_train_judges, left, judges, run, data, options)
        return
    numbers = iter(left)  # shared: each process takes the next judge
    count = min(processes - 1, len(left))
    calls: list[Future[None]] = []

    def train_in(pool: ProcessPoolExecutor) -> None:
        for number in numbers:
            judge = judges[number].model_dump(mode="json")
            pool.submit(_train_judge, judge, data, run.judge(number), options).result()

    # The pool is closed first, even after an error, and this ends the threads.
    with ThreadPoolExecutor(count) as threads, worker_pool(count, _enter) as pool:
        pool.submit(os.getpid)  # starts all processes

        def begin() -> None:
            print(f"Training {len(left)} judges, {count} at a time beside the model itself", flush=True)
            calls.extend(threads.submit(train_in, pool) for _ in range(count))

        yield begin
        for number in numbers:
            print(f"Training judge {number + 1} of {len(judges)}", flush=True)
            with one_torch_thread():
                train(judges[number], data, run.judge(number), **options)
        _finish(calls)


def _train_judges(
    numbers: Sequence[int], judges: Sequence[Recipe], run: Run, data: Any, options: Mapping[str, Any]
) -> None:
    """Train judges one after the other."""
    seconds: list[float] = []
    for place, number in enumerate(numbers):
        if run.main:
            said = f"; about {duration((len(numbers) + 1 - place) * seconds[-1])} left" if seconds else ""
            print(f"Training judge {number + 1} of {len(judges)}; the model itself comes last{said}", flush=True)
        started = time.monotonic()
        with one_torch_thread():
            train(judges[number], data, run.judge(number), **options)
        seconds.append(time.monotonic() - started)
        meet(f"judge {number}")


def _finish(calls: Sequence[Future[None]]) -> None:
    """Wait for the judges that other processes still train."""
    with ProgressBar("Other processes", len(calls), "workers") as bar:
        for call in as_completed(calls):
            call.result()
            bar.advance(1)


def _enter() -> None:
    """Set up a process that trains judges: it computes with one thread, and prints nothing."""
    torch.set_num_threads(1)
    sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - open until the process ends


def _train_judge(judge: Mapping[str, Any], data: Any, folder: Path, options: Mapping[str, Any]) -> None:
    try:
        train(recipe_of(judge, str(folder)), data, folder, **options)
    except SystemExit:  # SIGTERM, after a checkpoint; the pool's process would otherwise go on with another judge
        os._exit(128 + signal.SIGTERM)


def _is_trained(folder: Path, recipe: Recipe) -> bool:
    """Return whether a folder holds the model of a finished run with these settings."""
    if not (folder / "model").is_dir():
        return False
    recorded = read_object(folder / NOTE, "a run's configuration", f"remove {folder}, and train again")
    # The recorded data name their path too.
    known = recorded | {"data": {key: value for key, value in recorded["data"].items() if not key.startswith("path")}}
    return recipe.model_dump(mode="json").items() <= known.items()
