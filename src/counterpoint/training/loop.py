"""The training loop: reads batches, updates the learner, and logs, evaluates and writes checkpoints at intervals."""

from __future__ import annotations

import copy
import os
import signal
import statistics
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, Protocol

from counterpoint.errors import BadInputError, Terminated
from counterpoint.objectives.base import Learner, NonFiniteError
from counterpoint.progress import ProgressBar
from counterpoint.training.distributed import any_rank, meet
from counterpoint.training.run import MetricsLog, Run
from counterpoint.training.settings import LoopConfig, TrainConfig


class Batches(Protocol):
    """A source of numbered batches."""

    @property
    def epoch_size(self) -> int:
        """The number of samples in one pass over the data."""

    def batches(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        """Yield batches number `start` to `stop - 1`; each batch depends only on its number."""


class Source:
    """Training batches and the progress through them.

    This class takes batches from a sampler; online collection overrides its methods.

    Args:
        sampler: The sampler that serves the batches.
    """

    unit = "steps"
    """The unit of `clock`, in the plural."""
    copies = False
    """True if the loop copies the state at every rest (a moment at which `at_rest` is true), because rests are rare."""

    def __init__(self, sampler: Batches) -> None:
        self.sampler = sampler

    @property
    def epoch_size(self) -> int:
        """The number of samples in one pass over the data."""
        return self.sampler.epoch_size

    def batches(self, updates: int, stop: int) -> Iterator[dict[str, Any] | None]:
        """Yield the batches after the first `updates`, until `clock` reaches `stop`; `None` if no batch is due."""
        return self.sampler.batches(updates, stop)

    def clock(self, updates: int) -> int:
        """Return the progress of the run after `updates` updates, in `unit`."""
        return updates

    def at_rest(self) -> bool:
        """Return whether a checkpoint may be taken now."""
        return True

    def state(self) -> dict[str, Any]:
        """Return the state that later batches depend on, in addition to their number."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Resume from a saved state."""

    def flush(self) -> None:
        """Flush all files that `state` refers to."""

    def numbers(self) -> dict[str, float]:
        """Return numbers to log in addition to the learner's numbers."""
        return {}

    def close(self) -> None:
        """Stop processes and close files."""


def fit(
    learner: Learner,
    source: Source,
    run: Run,
    *,
    validation: Batches | None = None,
    seen: Batches | None = None,
    on_eval: Callable[[int], Mapping[str, float]] | None = None,
    on_validation: Callable[[int, Mapping[str, float]], None] | None = None,
) -> int:
    """Train to the end, from the newest complete checkpoint of the run if there is one.

    After SIGTERM or SIGINT, the loop completes the current step and saves the newest state that a checkpoint can hold
    (in online training, the state between rounds of episodes). SIGTERM then raises `SystemExit` with code 143, and
    SIGINT raises `KeyboardInterrupt`; a second SIGINT raises it immediately.

    Args:
        learner: The learner that is trained.
        source: Training batches.
        run: The run's folder and the loop's settings.
        validation: Validation batches.
        seen: Batches of training episodes that are scored together with the validation batches, as the split `seen`.
        on_eval: Called with the steps done, in all processes; the numbers that the main process returns are logged as
            `eval`.
        on_validation: Called in the main process with the steps done and the numbers of the validation.

    Returns:
        The step that the run was resumed from; 0 for a fresh run.

    Raises:
        BadInputError: When the loss stops being finite (the last good checkpoint is kept) or all checkpoints are
            damaged. Also when the source fails (the run is saved first) or an evaluation fails (it is repeated when the
            run is resumed).
    """
    return _Loop(learner, source, run, validation, seen, on_eval, on_validation).run()


class _Loop:
    """One call of `fit` and its progress; takes the arguments of `fit`.

    Attributes:
        updates: Number of updates of the learner so far.
        clock: The progress of the run, in the source's unit.
        rested: The clock at the last rest, a moment when a checkpoint can be taken.
        attempt: Number of the last update that was started.
        recent: Numbers of the updates since the last line of the log, by name.
        newest: The clock and a copy of the state at the last rest, if the source wants copies.
        evaluating: True while an evaluation runs.
    """

    def __init__(
        self,
        learner: Learner,
        source: Source,
        run: Run,
        validation: Batches | None,
        seen: Batches | None,
        on_eval: Callable[[int], Mapping[str, float]] | None,
        on_validation: Callable[[int, Mapping[str, float]], None] | None,
    ) -> None:
        self._learner, self._source, self._run = learner, source, run
        self._validation, self._seen = validation, seen
        self._on_eval, self._on_validation = on_eval, on_validation
        self._settings, self._total = run.loop, run.loop.total_steps(source.epoch_size)
        self.updates = 0
        self.recent: dict[str, list[Any]] = defaultdict(list)
        self.newest: tuple[int, dict[str, Any]] | None = None
        self.evaluating = False
        if (found := run.resume()) is not None:
            _, saved = found
            learner.load_state(saved["learner"])
            source.load_state(saved["source"])
            self.updates = saved["updates"]
            self.recent.update(saved.get("recent", {}))
        self.attempt = self.updates
        self.clock = self.rested = source.clock(self.updates)
        self._log = MetricsLog(run.folder, run.loop.trackers, run.settings, self.clock) if run.main else None
        self._losses, self._scores = "", ""  # notes next to the progress

    def run(self) -> int:
        """Train to the end; return the step that the run was resumed from."""
        start, source = self.clock, self._source
        shorten = "--train.steps" if source.unit == Source.unit else "--online.steps"
        bar = ProgressBar("Training", self._total, source.unit, done=start, shown=self._run.main, shorten=shorten)
        try:
            with bar as progress, _noted_signals() as signals:
                for batch in source.batches(self.updates, self._total):
                    before = self.clock
                    self._step(batch)
                    if any_rank(bool(signals)):
                        self._stop(signals)
                    progress.advance(self.clock - before, note=", ".join(filter(None, (self._losses, self._scores))))
        except NonFiniteError as error:  # losses on a GPU are checked at intervals, and before every save
            raise self._run.diverged(error, self.attempt) from None
        except BadInputError:
            if self.evaluating:
                self._save_newest()  # the state before the evaluation, which will be repeated
            elif source.at_rest() and (self.updates or source.copies):
                self._save()
            raise
        finally:
            if self._log is not None:
                self._log.close()
        return start

    def _step(self, batch: dict[str, Any] | None) -> None:
        """Update the learner with a batch; log, evaluate and save when these are due."""
        if batch is not None:
            self.attempt = self.updates + 1
            for name, value in self._learner.update(batch, self.updates).items():
                self.recent[name].append(value)
            self.updates += 1
        self.clock = self._source.clock(self.updates)
        resting = self._source.at_rest()
        line_due = batch is not None and self.updates % self._settings.log_every == 0
        if self.recent and (line_due or (resting and self.clock >= self._total)):
            self._write_means()
        if not resting:
            return
        if (self._settings.eval_every or self._settings.last_evaluation) and self._due(self._settings.eval_every):
            self._evaluate()
        if self._due(self._settings.save_every):
            self._save()
            meet("save")  # wait until the main process has written it
        if self._source.copies:
            self.newest = self.clock, copy.deepcopy(self._state())
        self.rested = self.clock

    def _due(self, every: int) -> bool:
        """Return whether the run is over, or a multiple of `every` lies between the last rest and now."""
        return self.clock >= self._total or (every > 0 and self.clock // every > self.rested // every)

    def _state(self) -> dict[str, Any]:
        """Return the content of a checkpoint."""
        recent = {name: [float(value) for value in values] for name, values in self.recent.items()}
        parts = {"learner": self._learner.state(), "source": self._source.state()}
        return parts | {"updates": self.updates, "recent": recent}

    def _save(self) -> None:
        """Write a checkpoint of the present state, unless it is already saved."""
        if self.clock > self._run.last_saved:
            self._source.flush()
            self._run.save(self.clock, self._state())

    def _save_newest(self) -> None:
        """Write a checkpoint from the copy of the state at the last rest (`at_rest`), unless it is already saved."""
        if self.newest is not None and self.newest[0] > self._run.last_saved:
            self._source.flush()
            self._run.save(*self.newest)

    def _stop(self, signals: Sequence[int]) -> NoReturn:
        """Save the newest state at rest, and raise the exception of the first signal."""
        if self._source.copies:
            self._save_newest()
        else:
            self._save()
        raise KeyboardInterrupt if signals[:1] == [signal.SIGINT] else Terminated

    def _write_means(self) -> None:
        """Log each metric's mean since the last call. Metrics on a device are read only here, not at every step."""
        means = {name: statistics.fmean(map(float, values)) for name, values in self.recent.items()}
        if self._log is not None:
            self._log.write(self.clock, "train", means | self._source.numbers())
        self._losses = _note(means)
        self.recent.clear()

    def _evaluate(self) -> None:
        """Score the validation batches and the batches of training episodes, and call `on_eval`."""
        self.evaluating = True
        learner, settings = self._learner, self._settings
        scores = _validate(learner, self._validation, settings) if self._validation is not None else {}
        if scores and self._on_validation is not None and self._run.main:
            self._on_validation(self.clock, scores)
        found = self._on_eval(self.clock) if self._on_eval is not None else {}
        again = _validate(learner, self._seen, settings) if self._seen is not None else {}
        for split, numbers in (("val", scores), ("seen", again), ("eval", found)):
            if self._log is not None and numbers:
                self._log.write(self.clock, split, numbers)
        self._scores = _judged(scores, again, found)
        meet("evaluation")  # the main process may need long for it
        self.evaluating = False


def _validate(learner: Learner, batches: Batches, loop: LoopConfig) -> dict[str, float]:
    assert isinstance(loop, TrainConfig)
    scores: dict[str, list[float]] = defaultdict(list)
    for batch in batches.batches(0, loop.eval_batches):
        for name, value in learner.evaluate(batch).items():
            scores[name].append(value)
    return {name: statistics.fmean(values) for name, values in scores.items()}


def _note(means: Mapping[str, float]) -> str:
    """Return the loss and, if there is one, the accuracy or the error, as text."""
    own = next((name for name in means if name.endswith(("accuracy", "error"))), None)
    return f"loss {means['loss']:.3f}" + (f", {own.replace('_', ' ')} {means[own]:.3f}" if own else "")


def _judged(scores: Mapping[str, float], seen: Mapping[str, float], found: Mapping[str, float]) -> str:
    """Return the newest evaluation in words: the errors of sampled actions, and success."""
    parts = [
        f"action error {part['action_error']:.3f} {where} (gripper wrong {part['gripper_wrong']:.0%})"
        for where, part in (("unseen", scores), ("seen", seen))
        if "gripper_wrong" in part
    ]
    return ", ".join([*parts, *([f"success {found['success']:.2f}"] if "success" in found else [])])


@contextmanager
def _noted_signals() -> Iterator[list[int]]:
    """Yield a list that collects SIGTERM and the first SIGINT by number; these then do not end the process."""
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return

    def note(number: int, _: object) -> None:
        noted.append(number)
        if number == signal.SIGINT:
            signal.signal(number, signal.default_int_handler)
            os.write(2, b"\nSaving a checkpoint; Ctrl-C again ends at once\n")  # it may have interrupted `print`

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, note)}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
