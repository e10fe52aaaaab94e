from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from counterpoint.data.store import MemoryStore
from counterpoint.errors import BadInputError
from counterpoint.objectives.base import NonFiniteError
from counterpoint.training.run import list_checkpoints, load_checkpoint
from counterpoint.training.settings import TrainConfig
from tests.conftest import moving_square_store
from tests.forkserver import warm
from tests.training.test_checkpoint import equal
from tests.training.toy import learner, run, toy


def final_state(folder: Path) -> dict[str, Any]:
    return load_checkpoint(list_checkpoints(folder / "checkpoints")[-1])[1]


def train_and_die(folder: Path, workers: int) -> None:
    torch.set_num_threads(1)
    trained = learner(ema=0.9)
    update = trained.update

    def killed_at_13(batch: Any, step: int) -> dict[str, float]:
        if step == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        return update(batch, step)

    trained.update = killed_at_13  # type: ignore[method-assign]
    run(moving_square_store(), folder, trained, steps=20, save_every=8, workers=workers)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.release), 2])
def test_killed_and_resumed_equals_uninterrupted_bit_for_bit(store: MemoryStore, tmp_path: Path, workers: int) -> None:
    """Checkpoints and lines of numbers do not fall together: a line's mean spans a checkpoint."""
    whole = learner(ema=0.9)
    assert run(store, tmp_path / "whole", whole, steps=20, save_every=8, workers=workers) == 0
    process = warm().Process(target=train_and_die, args=(tmp_path / "cut", workers))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert run(store, tmp_path / "cut", learner(ema=0.9), steps=20, save_every=8, workers=workers) == 8
    assert equal(final_state(tmp_path / "whole"), final_state(tmp_path / "cut"))
    logs = [
        [json.loads(line) for line in (tmp_path / n / "metrics.jsonl").read_text().splitlines()]
        for n in ("whole", "cut")
    ]
    assert logs[0] == logs[1]


def test_a_damaged_newest_checkpoint_costs_only_the_steps_since_the_older(store: MemoryStore, tmp_path: Path) -> None:
    run(store, tmp_path / "whole", learner(), steps=20, save_every=10)
    expected = final_state(tmp_path / "whole")
    newest = list_checkpoints(tmp_path / "whole" / "checkpoints")[-1]
    (newest / "state.safetensors").write_bytes(b"damaged")
    assert run(store, tmp_path / "whole", learner(), steps=20, save_every=10) == 10
    assert equal(final_state(tmp_path / "whole"), expected)


def test_numbers_are_logged_for_both_splits(store: MemoryStore, tmp_path: Path) -> None:
    run(store, tmp_path, learner(), steps=10)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["split"]) for line in lines] == [(5, "train"), (5, "val"), (10, "train"), (10, "val")]
    assert all(math.isfinite(line["loss"]) for line in lines)
    assert lines[2]["loss"] < lines[0]["loss"]


def test_tensorboard_files_are_written(store: MemoryStore, tmp_path: Path) -> None:
    run(store, tmp_path, learner(), steps=5, trackers=("tensorboard",))
    assert list((tmp_path / "tensorboard").glob("events.*"))


def test_divergence_is_one_message_that_names_the_last_good_checkpoint(store: MemoryStore, tmp_path: Path) -> None:
    trained = learner()
    update = trained.update

    def spoiled_at_7(batch: Any, step: int) -> dict[str, float]:
        if step == 7:
            with torch.no_grad():
                toy(trained).first.weight.fill_(math.inf)
        return update(batch, step)

    trained.update = spoiled_at_7  # type: ignore[method-assign]
    with pytest.raises(BadInputError, match=r"training step 8.*last good checkpoint is .*step-00000005"):
        run(store, tmp_path, trained, steps=20, save_every=5)
    assert load_checkpoint(list_checkpoints(tmp_path / "checkpoints")[-1])[0] == 5


def test_divergence_told_only_when_saving_is_the_same_message(store: MemoryStore, tmp_path: Path) -> None:
    trained = learner()
    state, asked = trained.state, iter(range(9))

    def late() -> dict[str, Any]:
        if next(asked) == 1:
            raise NonFiniteError("a loss is not finite")
        return state()

    trained.state = late  # type: ignore[method-assign]
    told = r"training step 10.*lower the learning rate, clip gradients.*last good checkpoint is .*step-00000005"
    with pytest.raises(BadInputError, match=told):
        run(store, tmp_path, trained, steps=20, save_every=5)
    assert load_checkpoint(list_checkpoints(tmp_path / "checkpoints")[-1])[0] == 5


def test_steps_cap_epochs() -> None:
    assert TrainConfig(epochs=3, batch_size=8).total_steps(10) == 4
    assert TrainConfig(epochs=3, steps=3, batch_size=8).total_steps(10) == 3
    assert TrainConfig(epochs=3, steps=9, batch_size=8).total_steps(10) == 4
    with pytest.raises(BadInputError, match="a number of steps"):
        TrainConfig().total_steps(10)
