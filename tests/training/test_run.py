from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from counterpoint.errors import BadInputError
from counterpoint.training import run as run_module
from counterpoint.training.run import METRICS, list_checkpoints, load_checkpoint
from tests.conftest import moving_square_store
from tests.forkserver import Forked
from tests.training.test_checkpoint import equal
from tests.training.toy import learner, open_run, run


def train_slowly(folder: Path) -> None:
    """Train so slowly that a test can do something meanwhile."""
    trained = learner()
    update = trained.update

    def slowly(batch: Any, step: int) -> Any:
        time.sleep(0.05)
        return update(batch, step)

    trained.update = slowly  # type: ignore[method-assign]
    run(moving_square_store(), folder, trained, steps=400, save_every=400, eval_every=0)


def start(folder: Path) -> Forked:
    process = Forked(train_slowly, (folder,))
    while not (folder / "metrics.jsonl").exists() or not (folder / "metrics.jsonl").read_text():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    return process


def test_sigterm_saves_and_a_second_process_is_refused(tmp_path: Path) -> None:
    first = start(tmp_path / "cut")
    with pytest.raises(BadInputError, match=f"a run that process {first.pid} trains"):
        open_run(tmp_path / "cut", steps=400)
    asked = time.monotonic()
    first.send_signal(signal.SIGTERM)
    _, error = first.communicate(timeout=30)
    assert time.monotonic() - asked < 30
    assert first.returncode == 143, error
    step, _ = load_checkpoint(list_checkpoints(tmp_path / "cut" / "checkpoints")[-1])
    assert 0 < step < 400
    store, total = moving_square_store(), step + 4
    assert run(store, tmp_path / "cut", learner(), steps=total, save_every=400, eval_every=0) == step
    run(store, tmp_path / "whole", learner(), steps=total, save_every=400, eval_every=0)
    states = [load_checkpoint(list_checkpoints(tmp_path / name / "checkpoints")[-1])[1] for name in ("cut", "whole")]
    # The schedule is constant, so that the length of the first part does not matter.
    assert equal(*states)


def test_free_settings_may_change_and_others_may_not(tmp_path: Path) -> None:
    with open_run(tmp_path, steps=3) as opened:
        opened.record()
    before = (tmp_path / "config.json").read_bytes()
    open_run(tmp_path, steps=9, log_every=1).close()
    with pytest.raises(BadInputError, match=r"another \[train\]: train.seed = 0; expected train.seed = 1"):
        open_run(tmp_path, steps=3, seed=1)
    assert (tmp_path / "config.json").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 1}, "a run of format 1, of another version"),
        ({"format": 2}, "a run of format 2, of another version.* use it with the one that wrote it: 0.1"),
        ({"kind": "agent"}, r"a run with another \[kind\]: kind = 'agent'; expected kind = 'toy'"),
        ({"identity": {"recipe": {}, "fingerprint": "other data"}}, r"a run with another \[fingerprint\]"),
        (None, "no JSON object"),
    ],
)
def test_another_run_in_the_folder_is_refused(tmp_path: Path, change: dict[str, object] | None, message: str) -> None:
    with open_run(tmp_path) as opened:
        opened.record()
    record = json.loads((tmp_path / "config.json").read_text())
    if change is not None and "identity" in change:
        change = {"identity": record["identity"] | {"fingerprint": "other data"}}
    (tmp_path / "config.json").write_text("{" if change is None else json.dumps(record | change))
    with pytest.raises(BadInputError, match=message):
        open_run(tmp_path)


def test_a_full_disk_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_module, "save_file", full)
    with pytest.raises(BadInputError, match=r"no checkpoint could be written.*none was saved yet"):
        run(moving_square_store(), tmp_path, learner(), steps=2)
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_the_models_of_least_validation_error_are_kept(tmp_path: Path) -> None:
    """Also across an interruption: what was kept of later steps goes, and comes again."""
    errors = {1: 5.0, 2: 3.0, 3: 4.0, 4: 1.0, 5: 9.0, 6: 3.0}

    with open_run(tmp_path, steps=6, keep_best=2) as run:
        for step in (1, 2, 3, 4, 3, 4, 5, 6):
            run.keep_best(step, errors[step], lambda folder: folder.mkdir(parents=True, exist_ok=True))
            kept = sorted(int(path.parent.name.removeprefix("step-")) for path in tmp_path.glob("best/*/model"))
            assert kept == sorted(sorted(range(1, step + 1), key=lambda at: (errors[at], at))[:2])
    with open_run(tmp_path / "none", steps=6) as run:
        run.keep_best(1, 1.0, lambda folder: folder.mkdir(parents=True))
    assert not (tmp_path / "none" / "best").exists()


def test_damaged_lines_of_the_log_come_back_when_a_run_goes_on(tmp_path: Path) -> None:
    for name in ("whole", "cut"):
        run(moving_square_store(), tmp_path / name, learner(), steps=4, save_every=2, eval_every=0)
    log = tmp_path / "cut" / METRICS
    log.write_bytes(b"\xff\xfe" + log.read_bytes()[:20])
    for name in ("whole", "cut"):
        run(moving_square_store(), tmp_path / name, learner(), steps=8, save_every=2, eval_every=0)
    assert log.read_text() == (tmp_path / "whole" / METRICS).read_text()


def test_a_run_that_resumes_names_the_last_checkpoint_and_removes_older_ones(tmp_path: Path) -> None:
    run(moving_square_store(), tmp_path, learner(), steps=6, save_every=2, eval_every=0, keep=3)
    (tmp_path / "checkpoints" / "last").write_text("step-00000002")  # as a kill before it is written leaves it
    run(moving_square_store(), tmp_path, learner(), steps=6, save_every=2, eval_every=0, keep=2)
    assert (tmp_path / "checkpoints" / "last").read_text() == "step-00000006"
    assert [path.name for path in list_checkpoints(tmp_path / "checkpoints")] == ["step-00000004", "step-00000006"]
