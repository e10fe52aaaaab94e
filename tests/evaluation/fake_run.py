"""A finished run on the two balls: a data set with splits, an untrained encoder, and a training log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder
from counterpoint.formats.lerobot.writer import LeRobotWriter
from tests.evaluation.fake import INSTRUCTIONS, episode
from tests.made_once import made_once


def quick_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentence embeddings and tokens that cost nothing."""

    def embed(self: object, text: str) -> Tensor:
        return torch.nn.functional.normalize(torch.tensor([float(ord(c)) for c in f"{text:384.384}"]), dim=0)

    def tokens(self: object, text: str) -> tuple[int, ...]:
        return tuple(map(ord, text))

    monkeypatch.setattr("counterpoint.encoders.dual.SentenceTower.embed", embed)
    monkeypatch.setattr("counterpoint.encoders.dual.SentenceTower.tokens", tokens)


@made_once
def write_data(root: Path, *, split: bool = True, each: int = 2) -> None:
    """Per instruction: `each` training episodes, then `each` held out."""
    writer = LeRobotWriter(
        root, fps=10, cameras={"front": (64, 64)}, action_dim=None, state_dim=None, robot_type="table"
    )
    for part in range(2):
        for at, text in enumerate(INSTRUCTIONS):
            for number in range(each):
                writer.add_episode(episode(text, 10, seed=100 * part + 10 * at + number, size=64))
    half = len(INSTRUCTIONS) * each
    writer.finalize({"train": f"0:{half}", "val": f"{half}:{2 * half}"} if split else None)


def write_run(run: Path, data: Path, **changes: Any) -> Path:
    """Needs `quick_words`."""
    torch.manual_seed(0)
    DualEncoder(EncoderConfig(image_size=32, embed_dim=8, reward_form="transition")).save_pretrained(run / "model")
    config = {
        "objective": {"name": "decisionnce_t"},
        "data": {"path": str(data), "size": 32, "cameras": [], "train_split": "train", "cache": str(run / "cache")},
        **changes,
    }
    (run / "config.json").write_text(json.dumps(config))
    lines = [
        {"step": step, "split": name, "loss": 3.0 - step / 100, "categorical_accuracy": step / 100, "lr": 1e-3}
        for step in range(10, 60, 10)
        for name in ("train", "val")
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 60, "spl')
    return run
