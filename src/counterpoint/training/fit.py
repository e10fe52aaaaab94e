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
    """Whether the loop keeps a copy of the state at every rest, because rests are far apart."""

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
    """Train to the end, from the newest whole checkpoint of the run where there is one.

    SIGTERM and SIGINT write a checkpoint after the step, or the round of episodes, that they come in, and then raise
    `SystemExit` with code 143 and `KeyboardInterrupt`; a second SIGINT raises at once.

    Args:
        learner: Trains.
        source: Training batches.
        run: The run's folder and the loop's settings.
        validation: Validation batches.
        seen: Batches of training episodes that are scored beside them, as the split `seen`.
        on_eval: Called with the steps done, in all processes; the numbers that the main one returns are logged as
            `eval`.
        on_validation: Called with the steps done and the validation's numbers, in the main process.

    Returns:
        The step the run was resumed from; 0 for a fresh one.

    Raises:
        BadInputError: When the loss stops being finite (the last good checkpoint stays), all checkpoints are damaged,
            the source fails (the run is saved first), or an evaluation fails (which is repeated when the run goes on).
    """
    loop, total = run.loop, run.loop.total_steps(source.epoch_size)
    updates = 0
    recent: dict[str, list[Any]] = defaultdict(list)  # numbers since the last line
    found = run.resume()
    if found is not None:
        learner.load_state(found[1]["learner"])
        source.load_state(found[1]["source"])
        updates = found[1]["updates"]
        recent.update(found[1].get("recent", {}))
    start = clock = rested = source.clock(updates)
    log = MetricsLog(run.folder, loop.trackers, run.settings, start) if run.main else None
    newest: tuple[int, dict[str, Any]] | None = None

    def state() -> dict[str, Any]:
        numbers = {name: [float(value) for value in values] for name, values in recent.items()}
        return {"learner": learner.state(), "source": source.state(), "updates": updates, "recent": numbers}

    def save() -> None:
        if clock > run.last_saved:
            source.flush()
            run.save(clock, state())

    def crossed(every: int) -> bool:
        return clock >= total or (every > 0 and clock // every > rested // every)

    note, judged, attempt, judging = "", "", updates, False
    shorten = "--train.steps" if source.unit == Source.unit else "--online.steps"
    try:
        with (
            ProgressBar("Training", total, source.unit, done=start, shown=run.main, shorten=shorten) as progress,
            _noted_signals() as stopped,
        ):
            for batch in source.batches(updates, total):
                if batch is not None:
                    attempt = updates + 1
                    for name, value in learner.update(batch, updates).items():
                        recent[name].append(value)
                    updates += 1
                before, clock = clock, source.clock(updates)
                resting = source.at_rest()
                over = resting and clock >= total
                if recent and ((batch is not None and updates % loop.log_every == 0) or over):
                    # Metrics that are still on a device are read here, now and then, and not at every step.
                    means = {name: statistics.fmean(map(float, values)) for name, values in recent.items()}
                    if log is not None:
                        log.write(clock, "train", means | source.numbers())
                    note = _note(means)
                    recent.clear()
                judging = resting and bool(loop.eval_every or loop.last_evaluation) and crossed(loop.eval_every)
                if judging:
                    scores = _validate(learner, validation, loop) if validation is not None else {}
                    if scores and on_validation is not None and run.main:
                        on_validation(clock, scores)
                    found_out = on_eval(clock) if on_eval is not None else {}
                    again = _validate(learner, seen, loop) if seen is not None else {}
                    for split, numbers in (("val", scores), ("seen", again), ("eval", found_out)):
                        if log is not None and numbers:
                            log.write(clock, split, numbers)
                    judged = _judged(scores, again, found_out)
                    meet("evaluation")  # which the main process may take long for
                    judging = False
                if resting and crossed(loop.save_every):
                    save()
                    meet("save")  # which the main process writes
                if resting and source.copies:
                    newest = clock, copy.deepcopy(state())
                if any_rank(bool(stopped)):
                    newest = newest if source.copies else (clock, state())
                    if newest is not None and newest[0] > run.last_saved:
                        source.flush()
                        run.save(*newest)
                    raise KeyboardInterrupt if stopped[:1] == [signal.SIGINT] else Terminated
                rested = clock if resting else rested
                progress.advance(clock - before, note=", ".join(part for part in (note, judged) if part))
    except NonFiniteError as error:  # a GPU's losses are checked now and then, and before every save
        raise run.diverged(error, attempt) from None
    except BadInputError:
        if judging and newest is not None and newest[0] > run.last_saved:
            source.flush()
            run.save(*newest)  # from before the evaluation, which comes again
        elif not judging and source.at_rest() and (updates or source.copies):
            save()
        raise
    finally:
        if log is not None:
            log.close()
    return start


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
