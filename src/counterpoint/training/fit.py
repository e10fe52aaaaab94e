"""The one training loop: batches in, updates, now and then a line of numbers, an evaluation, a checkpoint."""

from __future__ import annotations

import copy
import os
import signal
import statistics
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from counterpoint.errors import BadInputError, Terminated
from counterpoint.objectives.base import Learner, NonFiniteError
from counterpoint.progress import ProgressBar
from counterpoint.training.distributed import any_rank, meet
from counterpoint.training.recipe import LoopConfig, TrainConfig
from counterpoint.training.run import MetricsLog, Run


class Batches(Protocol):
    """Batches by number."""

    @property
    def epoch_size(self) -> int:
        """Samples of one pass."""

    def batches(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """Yield batches number `start` to `stop - 1`, each a function of its number."""


class Source:
    """Training batches, and how far they are. This base serves those of a sampler; collection online overrides it.

    Args:
        sampler: Serves the batches.
    """

    unit = "steps"
    """The unit of `clock`, in the plural."""
    copies = False
    """True where the loop keeps a copy of the state at every rest, because rests are far apart."""

    def __init__(self, sampler: Batches) -> None:
        self.sampler = sampler

    @property
    def epoch_size(self) -> int:
        """Samples of one pass."""
        return self.sampler.epoch_size

    def batches(self, updates: int, stop: int) -> Iterator[dict[str, Any] | None]:
        """Yield batches after `updates` updates until `clock` reaches `stop`; `None` where there is none to learn."""
        return self.sampler.batches(updates, stop)

    def clock(self, updates: int) -> int:
        """Return how far the run is after `updates` updates, in `unit`."""
        return updates

    def at_rest(self) -> bool:
        """Return whether a checkpoint may be taken now."""
        return True

    def state(self) -> dict[str, Any]:
        """Return the state that later batches depend on, beside their number."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""

    def flush(self) -> None:
        """Put on the disk what a state refers to."""

    def numbers(self) -> dict[str, float]:
        """Return numbers to log beside the learner's."""
        return {}

    def close(self) -> None:
        """End processes and close files."""


Rest = tuple[int, Callable[[], dict[str, Any]]]
"""How far a run was when a checkpoint could be taken, and a function that returns its state."""


@dataclass
class Fit:
    """One training to the end, from the newest whole checkpoint of the run where there is one.

    Args:
        learner: Trains.
        source: Training batches.
        run: The run's folder and the loop's settings.
        validation: Validation batches.
        seen: Batches of training episodes that are scored beside them, as the split `seen`.
        on_eval: Called with the steps done, in all processes; the numbers that the main one returns are logged as
            `eval`.
        on_validation: Called with the steps done and the validation's numbers, in the main process.

    Attributes:
        updates: Updates taken, of this process and of those before it.
        clock: How far the run is, in the source's unit.
        rested: `clock` when a checkpoint could last be taken.
        recent: Numbers since the last line of the log, by name.
        newest: `clock` and a function that returns the state of the newest rest, where rests are far apart.
        evaluating: True during an evaluation, which comes again when it fails.
        note: The newest losses, shown beside the progress.
        judged: The newest evaluation, shown beside the progress.
    """

    learner: Learner
    source: Source
    run: Run
    validation: Batches | None = None
    seen: Batches | None = None
    on_eval: Callable[[int], Mapping[str, float]] | None = None
    on_validation: Callable[[int, Mapping[str, float]], None] | None = None

    updates: int = field(default=0, init=False)
    clock: int = field(default=0, init=False)
    rested: int = field(default=0, init=False)
    recent: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list), init=False)
    newest: Rest | None = field(default=None, init=False)
    evaluating: bool = field(default=False, init=False)
    note: str = field(default="", init=False)
    judged: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self.total = self.run.loop.total_steps(self.source.epoch_size)
        self.log: MetricsLog | None = None

    def train(self) -> int:
        """Train.

        SIGTERM and SIGINT write a checkpoint after the step, or the round of episodes, that they come in, and then
        raise `SystemExit` with code 143 and `KeyboardInterrupt`; a second SIGINT raises at once.

        Returns:
            The step the run was resumed from; 0 for a fresh one.

        Raises:
            BadInputError: When the loss stops being finite (the last good checkpoint stays), all checkpoints are
                damaged, the source fails (the run is saved first), or an evaluation fails (which is repeated when the
                run goes on).
        """
        self._resume()
        start, attempt, run = self.clock, self.updates, self.run
        self.log = MetricsLog(run.folder, run.loop.trackers, run.settings, start) if run.main else None
        try:
            with (
                ProgressBar("Training", self.total, self.source.unit, done=start, shown=run.main) as progress,
                _noted_signals() as stopped,
            ):
                for batch in self.source.batches(self.updates, self.total):
                    attempt = self.updates + (batch is not None)
                    before, resting = self.clock, self._update(batch)
                    if resting:
                        self._rest()
                    self._end_on(stopped)
                    self.rested = self.clock if resting else self.rested
                    progress.advance(self.clock - before, note=", ".join(filter(None, (self.note, self.judged))))
        except NonFiniteError as error:  # a GPU's losses are checked now and then, and before every save
            raise run.diverged(error, attempt) from None
        except BadInputError:
            if self.evaluating:
                self._save(self.newest)  # from before the evaluation, which comes again
            elif self.source.at_rest() and (self.updates or self.source.copies):
                self._save((self.clock, self.state))
            raise
        finally:
            if self.log is not None:
                self.log.close()
        return start

    def state(self) -> dict[str, Any]:
        """Return everything that a checkpoint holds."""
        numbers = {name: [float(value) for value in values] for name, values in self.recent.items()}
        learner, source = self.learner.state(), self.source.state()
        return {"learner": learner, "source": source, "updates": self.updates, "recent": numbers}

    def _resume(self) -> None:
        found = self.run.resume()
        if found is not None:
            self.learner.load_state(found[1]["learner"])
            self.source.load_state(found[1]["source"])
            self.updates = found[1]["updates"]
            self.recent.update(found[1].get("recent", {}))
        self.clock = self.rested = self.source.clock(self.updates)

    def _update(self, batch: dict[str, Any] | None) -> bool:
        """Learn from a batch, log what is due, and return whether a checkpoint may be taken now."""
        if batch is not None:
            for name, value in self.learner.update(batch, self.updates).items():
                self.recent[name].append(value)
            self.updates += 1
        self.clock = self.source.clock(self.updates)
        resting = self.source.at_rest()
        due = batch is not None and self.updates % self.run.loop.log_every == 0
        if self.recent and (due or (resting and self.clock >= self.total)):
            # Metrics that are still on a device are read here, now and then, and not at every step.
            means = {name: statistics.fmean(map(float, values)) for name, values in self.recent.items()}
            if self.log is not None:
                self.log.write(self.clock, "train", means | self.source.numbers())
            self.note = _note(means)
            self.recent.clear()
        return resting

    def _rest(self) -> None:
        """Evaluate, save and copy what is due."""
        loop = self.run.loop
        if (loop.eval_every or loop.last_evaluation) and self._crossed(loop.eval_every):
            self.evaluating = True
            self._evaluate()
            self.evaluating = False
        if self._crossed(loop.save_every):
            self._save((self.clock, self.state))
            meet("save")  # which the main process writes
        if self.source.copies:
            kept = copy.deepcopy(self.state())
            self.newest = self.clock, lambda: kept

    def _crossed(self, every: int) -> bool:
        """Return whether a multiple of `every`, or the end, was reached since the last rest."""
        return self.clock >= self.total or (every > 0 and self.clock // every > self.rested // every)

    def _evaluate(self) -> None:
        scores = _validate(self.learner, self.validation, self.run.loop) if self.validation is not None else {}
        if scores and self.on_validation is not None and self.run.main:
            self.on_validation(self.clock, scores)
        found = self.on_eval(self.clock) if self.on_eval is not None else {}
        again = _validate(self.learner, self.seen, self.run.loop) if self.seen is not None else {}
        for split, numbers in (("val", scores), ("seen", again), ("eval", found)):
            if self.log is not None and numbers:
                self.log.write(self.clock, split, numbers)
        self.judged = _judged(scores, again, found)
        meet("evaluation")  # which the main process may take long for

    def _end_on(self, stopped: list[int]) -> None:
        """Save and end when a signal came, in this process or another."""
        if any_rank(bool(stopped)):
            self._save(self.newest if self.source.copies else (self.clock, self.state))
            raise KeyboardInterrupt if stopped[:1] == [signal.SIGINT] else Terminated

    def _save(self, rest: Rest | None) -> None:
        """Write a checkpoint of a rest that is newer than the last one."""
        if rest is not None and rest[0] > self.run.last_saved:
            self.source.flush()
            self.run.save(rest[0], rest[1]())


def _validate(learner: Learner, batches: Batches, loop: LoopConfig) -> dict[str, float]:
    assert isinstance(loop, TrainConfig)
    scores: dict[str, list[float]] = defaultdict(list)
    for batch in batches.batches(0, loop.eval_batches):
        for name, value in learner.evaluate(batch).items():
            scores[name].append(value)
    return {name: statistics.fmean(values) for name, values in scores.items()}


def _note(means: Mapping[str, float]) -> str:
    """Return the loss, and the accuracy or error beside it."""
    own = next((name for name in means if name.endswith(("accuracy", "error"))), None)
    return f"loss {means['loss']:.3f}" + (f", {own.replace('_', ' ')} {means[own]:.3f}" if own else "")


def _judged(scores: Mapping[str, float], seen: Mapping[str, float], found: Mapping[str, float]) -> str:
    """Return what the newest evaluation found: errors of sampled actions, and success."""
    parts = [
        f"action error {part['action_error']:.3f} {where} (gripper wrong {part['gripper_wrong']:.0%})"
        for where, part in (("unseen", scores), ("seen", seen))
        if "gripper_wrong" in part
    ]
    return ", ".join([*parts, *([f"success {found['success']:.2f}"] if "success" in found else [])])


@contextmanager
def _noted_signals() -> Iterator[list[int]]:
    """Put the numbers of SIGTERM and of a first SIGINT into a list, instead of ending the process."""
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return

    def note(number: int, _: object) -> None:
        noted.append(number)
        if number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler)
            os.write(2, b"\nSaving a checkpoint; Ctrl-C again ends at once\n")  # print may be what was interrupted

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, note)}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
