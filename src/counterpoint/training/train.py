"""The one way to train: a recipe, data or an environment, and a folder become a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from counterpoint.data.store import EpisodeStore
from counterpoint.errors import require
from counterpoint.objectives.base import Learner
from counterpoint.training.distributed import accelerator_of, meet
from counterpoint.training.fit import Batches, Fit, Source
from counterpoint.training.recipe import LoopConfig, Recipe, load_recipe
from counterpoint.training.run import Run

Data = str | Path | EpisodeStore


@dataclass(frozen=True)
class Given:
    """The arguments of a training beside its recipe.

    Attributes:
        data: Paths of data sets (or Minari's ids), or stores that are open.
        validation: An open store to validate on, where `data` is one.
        start_from: A saved model to start from.
        device: The device that computes.
    """

    data: tuple[Data, ...] = ()
    validation: EpisodeStore | None = None
    start_from: str | None = None
    device: str = "cpu"

    @property
    def is_open(self) -> bool:
        """True when the data are open stores of training size."""
        return not any(isinstance(data, str | Path) for data in self.data)

    def one(self) -> Data:
        """Return the only data set."""
        found = f"{len(self.data)} data sets" if self.data else "none"
        require(len(self.data) == 1, "--data", found, "one data set", "name one")
        return self.data[0]


@dataclass(frozen=True)
class Job:
    """A training that is ready to run.

    Attributes:
        learner: Trains.
        source: Training batches.
        save: Writes the model's folder, in the main process; all processes call it.
        validation: Validation batches.
        seen: Batches of training episodes that are scored beside them.
        evaluate: Scores the learner after a number of steps, in the main process; all processes call it. Its numbers
            are logged as `eval`.
        facts: Entries for the run's `config.json`.
    """

    learner: Learner
    source: Source
    save: Callable[[Path], object]
    validation: Batches | None = None
    seen: Batches | None = None
    evaluate: Callable[[int], dict[str, float]] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """A training whose arguments are accepted.

    Attributes:
        identity: JSON values which a continued run must share, beside the recipe's settings.
        build: Prepares data in the claimed run.
        facts: Entries for the run's `config.json`.
        loop: The loop's settings, where they are not the recipe's usual ones.
    """

    identity: dict[str, Any]
    build: Callable[[Run], Job]
    facts: Mapping[str, Any] = field(default_factory=dict)
    loop: LoopConfig | None = None


def train(
    recipe: str | Path | Recipe,
    data: Data | Sequence[Data] | None,
    out: str | Path,
    env: str | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    validation: EpisodeStore | None = None,
    start_from: str | Path | None = None,
    on_eval: Callable[[int, Mapping[str, nn.Module]], Mapping[str, float] | None] | None = None,
    device: str | None = None,
) -> Run:
    """Train a recipe to its end; the same call again continues an interrupted run.

    Args:
        recipe: A recipe, its name or the path of a TOML file; an agent's name means its paper's defaults.
        data: Data sets, or stores that are open and have frames of training size. Agents may have none.
        out: The run's folder.
        env: Id of an environment: an agent trains in it, or is evaluated in it where there are data.
        overrides: Dotted keys of the recipe and their values, where it is named.
        validation: An open store to validate on, where `data` is one.
        start_from: A saved encoder that cloning starts from, or a saved diffusion policy to fine-tune.
        on_eval: Called with the steps done and what is being trained, every `eval_every` steps and after the last.
        device: `cpu`, `cuda` or `cuda:N`; a GPU by default where there is one.

    Returns:
        The run, closed; its `model` is the folder of the trained model.

    Raises:
        BadInputError: When settings, data, weights or the run's folder cannot be used; before long work begins.
    """
    several = () if data is None else (data,) if isinstance(data, str | Path | EpisodeStore) else tuple(data)
    settings = recipe if isinstance(recipe, Recipe) else load_recipe(recipe, overrides, data=several, env=env)
    accelerator = accelerator_of(getattr(settings.loop, "precision", "no"), device)
    given = Given(several, validation, None if start_from is None else str(start_from), str(accelerator.device))
    plan = settings.plan(given, accelerator)
    main, facts = accelerator.is_main_process, dict(plan.facts)
    if not isinstance(recipe, Recipe):
        facts["recipe"] = str(recipe)
    with Run.open(out, settings, plan.identity, facts=facts, loop=plan.loop, main=main) as run:
        job = plan.build(run)
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
            Fit(
                job.learner,
                job.source,
                run,
                validation=job.validation,
                seen=job.seen,
                on_eval=evaluate,
                on_validation=keep,
            ).train()
        finally:
            job.source.close()
        job.save(run.model)
    meet("end")
    return run
