from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.e2e.commands import kill_and_resume, start
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


@pytest.mark.release
def test_kill_9_with_two_simulators_and_a_full_ring_then_resume_gives_the_same_bits(tmp_path: Path) -> None:
    kill_and_resume(tmp_path, partial(train, tmp_path), step=600, last=1200)
    results = [(tmp_path / run / "result.json").read_text() for run in ("whole", "cut")]
    assert results[0] == results[1]
