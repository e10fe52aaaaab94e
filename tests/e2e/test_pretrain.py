from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from counterpoint.cli import main
from counterpoint.training.run import list_checkpoints, load_checkpoint
from tests.conftest import write_robot_set
from tests.e2e.commands import kill_and_resume, start
from tests.forkserver import Forked
from tests.training.test_checkpoint import equal

TINY = (
    "--encoder.image_size=32",
    "--encoder.embed_dim=16",
    "--data.size=32",
    "--train.batch_size=8",
    "--train.eval_batches=2",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pretrain")
    write_robot_set(folder / "data", 15, 32, {"train": "0:12", "val": "12:15"})
    return folder


def pretrain(folder: Path, out: str, *overrides: str, unfinished: int | None = None) -> Forked:
    words = ("train", "decisionnce_t-demo", "--data", "data", "--out", out, *TINY, *overrides)
    return start(folder, *words, unfinished=unfinished, COUNTERPOINT_CACHE=str(folder / "cache"))


def pretrain_here(folder: Path, out: str, *overrides: str) -> tuple[int, str, str]:
    """Do the same in this process, which has imported the sentence encoder once for all."""
    said, complained, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said), redirect_stderr(complained):
        patch.setenv("COUNTERPOINT_CACHE", str(folder / "cache"))
        patch.chdir(folder)
        try:
            main(["train", "decisionnce_t-demo", "--data", "data", "--out", out, *TINY, *overrides])
        except SystemExit as done:
            code = int(done.code or 0)
    return code, said.getvalue(), complained.getvalue()


@pytest.fixture(scope="module")
def learnt(folder: Path) -> Path:
    code, out, error = pretrain_here(folder, "learns", "--train.steps=60", "--train.log_every=10")
    assert code == 0, error
    assert "learns/model" in out
    return folder / "learns"


def test_training_through_the_command_line_learns_and_exports(learnt: Path) -> None:
    lines = [json.loads(line) for line in (learnt / "metrics.jsonl").read_text().splitlines()]
    training = [line["loss"] for line in lines if line["split"] == "train"]
    assert training[-1] < training[0]
    assert {"loss", "categorical_accuracy", "logits_pos", "logits_neg"} <= lines[-1].keys()
    record = json.loads((learnt / "config.json").read_text())
    assert record["objective"]["name"] == "decisionnce_t"
    assert record["provenance"]["packages"]["torch"]


@pytest.mark.release
def test_kill_9_and_resume_gives_the_same_bits(folder: Path) -> None:
    settings = ("--train.save_every=10", "--train.workers=1", "--optimizer.ema=0.9")

    def train(out: str, unfinished: int | None = None) -> Forked:
        return pretrain(folder, out, "--train.steps=40", *settings, unfinished=unfinished)

    kill_and_resume(folder, train, step=20, last=40)
    states = [load_checkpoint(list_checkpoints(folder / run / "checkpoints")[-1]) for run in ("whole", "cut")]
    assert states[0][0] == states[1][0] == 40
    assert equal(states[0][1], states[1][1])


def test_a_run_folder_belongs_to_one_configuration(folder: Path, learnt: Path) -> None:
    before = (learnt / "metrics.jsonl").read_text()
    code, _, error = pretrain_here(folder, "learns", "--train.steps=60", "--objective.temperature=0.5")
    assert code == 2
    assert "another [objective]" in error
    assert "Traceback" not in error
    assert (learnt / "metrics.jsonl").read_text() == before


def test_divergence_ends_in_one_message(folder: Path) -> None:
    settings = ("--train.steps=400", "--optimizer.lr=1e30", "--train.save_every=1")
    code, _, error = pretrain_here(folder, "diverges", *settings)
    assert code == 2
    assert "expected a finite loss" in error
    assert "Traceback" not in error
