from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from counterpoint.training.run import list_checkpoints, load_checkpoint
from tests.e2e.commands import kill_and_resume, start
from tests.forkserver import Forked
from tests.training.step_data import control_store, write_control_set, write_recipe
from tests.training.test_checkpoint import equal

pytestmark = pytest.mark.slow

STEPS = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe and two domains of other action spaces, of which one has a validation split."""
    folder = tmp_path_factory.mktemp("pretrain-steps")
    write_recipe(folder / "tiny.toml", "premier_taco", {"hidden": 16})
    splits = {"train": control_store(4), "val": control_store(2, seed=1)}
    write_control_set(folder / "narrow", splits)
    write_control_set(folder / "wide", {"train": control_store(4, action_dim=5, seed=2)})
    return folder


def pretrain(folder: Path, out: str, *overrides: str, unfinished: int | None = None) -> Forked:
    words = ["train", "tiny.toml", "--data", "narrow", "wide", "--out", out, f"--train.steps={STEPS}"]
    words += ["--train.save_every=10", "--train.eval_every=15", "--train.workers=1", "--optimizer.ema=0.9"]
    return start(folder, *words, *overrides, unfinished=unfinished)


@pytest.mark.release
def test_kill_9_and_resume_gives_the_same_bits(folder: Path) -> None:
    kill_and_resume(folder, partial(pretrain, folder), step=20, last=STEPS)
    states = [load_checkpoint(list_checkpoints(folder / run / "checkpoints")[-1]) for run in ("whole", "cut")]
    assert states[0][0] == states[1][0] == STEPS
    assert equal(states[0][1], states[1][1])


def test_bad_input_ends_in_one_message(folder: Path) -> None:
    for overrides, words in (
        (("--objective.windows=3",), "--objective.window"),
        (("--objective.name=decisionnce",), "--objective.name"),
    ):
        refused = pretrain(folder, "bad", *overrides)
        _, error = refused.communicate()
        assert refused.returncode == 2, error
        assert words in error
        assert "Traceback" not in error
    assert not (folder / "bad" / "model").exists()
