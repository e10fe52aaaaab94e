from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from counterpoint.training.run import list_checkpoints
from tests.e2e.commands import start
from tests.forkserver import Forked

pytestmark = [pytest.mark.sim, pytest.mark.slow]

SETTINGS = (
    "--agent.hidden", "16", "16", "--env.max_episode_steps=20", "--online.envs=2", "--online.steps=1200",
    "--online.warmup=80", "--online.updates_per_step=0.5", "--online.batch_size=16", "--online.capacity=300",
    "--online.eval_every=400", "--online.eval_episodes=2", "--online.save_every=80", "--online.trackers",
)  # fmt: skip


def train(folder: Path, out: str, unfinished: int | None = None) -> Forked:
    return start(
        folder, "train", "td_infonce", "--env", "FetchReach-v4", "--out", out, *SETTINGS, unfinished=unfinished
    )


def test_kill_9_with_two_simulators_and_a_full_ring_then_resume_gives_the_same_bits(tmp_path: Path) -> None:
    whole = train(tmp_path, "whole")
    _, error = whole.communicate()
    assert whole.returncode == 0, error
    killed = train(tmp_path, "cut", unfinished=1200)
    while not any(path.name >= "step-00000600" for path in list_checkpoints(tmp_path / "cut" / "checkpoints")):
        assert killed.poll() is None, killed.communicate()[1]
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    again = train(tmp_path, "cut")
    out, error = again.communicate()
    assert again.returncode == 0, error
    assert "Resumed from" in out
    expected, found = (load_file(tmp_path / run / "model" / "model.safetensors") for run in ("whole", "cut"))
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert torch.equal(value, found[name]), name
    results = [(tmp_path / run / "result.json").read_text() for run in ("whole", "cut")]
    assert results[0] == results[1]
