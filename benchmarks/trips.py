"""Number of files of the package that a common call enters, from a trace of its function calls.

    python benchmarks/trips.py

Files whose functions are called after import are counted, except `__init__.py`, `errors.py` and `config.py`. `changes`
is the number of calls that enter a different file from the call before.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

import counterpoint
from counterpoint.agents.td_infonce import TDInfoNCE, TDInfoNCEConfig
from counterpoint.data.episode import Episode, Spaces
from counterpoint.data.sampler import Sampler
from counterpoint.data.store import MemoryStore
from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder
from counterpoint.formats.video import encode_video
from counterpoint.objectives.decisionnce import DecisionNCEConfig, DecisionNCET
from counterpoint.rewards.curves import reward_command
from counterpoint.training.learner import ObjectiveLearner, OptimizerConfig
from measuring import write

PACKAGE = f"{Path(counterpoint.__file__).parent}/"
LEFT_OUT = ("__init__.py", "errors.py", "config.py")
LIMITS = {"reward": 15, "td_infonce update": 7, "decisionnce_t step": 8}


def trip(run: Callable[[], object]) -> dict[str, Any]:
    """Return the files that a call enters, in order, and the number of changes between them."""
    files: list[str] = []
    changes, last = 0, ""

    def enter(frame: FrameType, event: str, _: object) -> None:
        nonlocal changes, last
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE) or code.co_name == "<module>":
            return
        name = code.co_filename.removeprefix(PACKAGE)
        if not name.endswith(".py"):  # a template
            return
        if name.rpartition("/")[2] in LEFT_OUT:
            return
        if name not in files:
            files.append(name)
        changes, last = changes + (name != last), name

    sys.setprofile(enter)
    try:
        run()
    finally:
        sys.setprofile(None)
    return {"count": len(files), "changes": changes, "files": files}


def reward(folder: Path) -> dict[str, Any]:
    """Trace `counterpoint reward` on one video, without the command line's own file."""
    DualEncoder(EncoderConfig(image_size=32, embed_dim=8)).save_pretrained(folder / "model")
    frames = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), dtype=np.uint8)
    encode_video(folder / "video.mp4", frames, fps=5)
    model = str(folder / "model")
    return trip(lambda: reward_command([folder / "video.mp4"], "push", model=model, out=folder / "out"))


def td_infonce_update() -> dict[str, Any]:
    """Trace one update of TD InfoNCE on a batch in memory."""
    widths = {"observation": 10, "action": 4, "next_observation": 10, "next_goal": 3, "random_goal": 3}
    batch = {key: torch.randn(8, width).tanh() for key, width in widths.items()}
    agent = TDInfoNCE(TDInfoNCEConfig(hidden=(16, 16)), Spaces(observation=(10,), goal=(3,), action=4))
    return trip(lambda: agent.update(batch, 0))


def decisionnce_t_step() -> dict[str, Any]:
    """Trace the loading of one batch of DecisionNCE-T and the update on it."""
    rng = np.random.default_rng(0)
    episodes = [
        Episode(
            frames={"front": rng.integers(0, 256, (9, 32, 32, 3), dtype=np.uint8)},
            instruction=f"push {number}",
            timestamps=np.arange(9) / 10,
        )
        for number in range(8)
    ]
    objective = DecisionNCET(DualEncoder(EncoderConfig(image_size=32, embed_dim=8)), DecisionNCEConfig())
    store = MemoryStore(episodes)
    sampler = Sampler(store, objective.sampling().bind(store), batch_size=4, seed=0)
    learner = ObjectiveLearner(objective, OptimizerConfig(), total_steps=10, accelerator=Accelerator(cpu=True))
    objective.encoder.encode_text([episode.instruction for episode in episodes])  # text is embedded once
    learner.update(sampler[0], 0)
    return trip(lambda: learner.update(sampler[1], 1))


def main() -> None:
    """Trace every call and write the result file."""
    with tempfile.TemporaryDirectory() as folder:
        found = {
            "reward": reward(Path(folder)),
            "td_infonce update": td_infonce_update(),
            "decisionnce_t step": decisionnce_t_step(),
        }
    rows = [[name, str(one["count"]), str(LIMITS[name]), str(one["changes"])] for name, one in found.items()]
    tables = {"trips": {"head": ["call", "files entered", "limit", "changes of file"], "rows": rows}}
    write("trips", {"trips": found, "tables": tables})


if __name__ == "__main__":
    main()
