"""A data set of balls, runs that see them, and the page of `counterpoint view` over both, in a thread."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from counterpoint.encoders.calibration import RewardForm
from counterpoint.evaluation.view import Viewer, listen
from counterpoint.formats.lerobot.writer import LeRobotWriter
from counterpoint.formats.video import encode_video
from counterpoint.rewards import RewardModel
from tests.evaluation.fake import INSTRUCTIONS, SeeingEncoder, episode
from tests.made_once import made_once

uvicorn = pytest.importorskip("uvicorn")
LENGTHS = [10 + number for number in range(12)]


@made_once
def write_balls(root: Path) -> None:
    """Twelve episodes: four instructions, of which each third episode failed; the last four are the split `val`."""
    writer = LeRobotWriter(
        root, fps=10, cameras={"front": (64, 64)}, action_dim=None, state_dim=None, robot_type="table"
    )
    for number in range(12):
        made = episode(INSTRUCTIONS[number % 4], 10 + number, seed=number, size=64)
        writer.add_episode(replace(made, success=number % 3 != 0))
    writer.finalize({"train": "0:8", "val": "8:12"})


def write_progress(path: Path, ends: list[float], *, lengths: list[int] = LENGTHS) -> Path:
    """Write a progress file as LeRobot does: each episode rises from 0 to its end, which may be NaN."""
    curves = [np.linspace(0, end, length, dtype=np.float32) for end, length in zip(ends, lengths, strict=True)]
    columns = {
        "index": np.arange(sum(lengths)),
        "episode_index": np.repeat(np.arange(len(lengths)), lengths),
        "frame_index": np.concatenate([np.arange(length) for length in lengths]),
        "progress_sparse": np.concatenate(curves),
    }
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), path)
    return path


def write_clip(path: Path) -> Path:
    encode_video(path, episode(INSTRUCTIONS[0], 21, seed=0, size=64).frames["front"], fps=10)
    return path


def write_runs(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Folders of runs that were trained on the data; each has another form of reward."""
    forms: dict[str, RewardForm] = {"steps": "transition", "level": "potential", "goals": "goal"}
    for name in forms:
        (tmp_path / name).mkdir()
        config = {"objective": {"name": f"objective of {name}"}, "data": {"path": str(data)}}
        (tmp_path / name / "config.json").write_text(json.dumps(config))

    def load(source: str, *, device: str) -> RewardModel:
        model = RewardModel(SeeingEncoder())
        model.trained_form = model.form = forms[Path(source).name]
        return model

    monkeypatch.setattr(RewardModel, "from_pretrained", staticmethod(load))
    return [str(tmp_path / name) for name in forms]


class Server:
    """The page in a thread of this process."""

    def __init__(self, targets: list[str], folder: Path, **options: Any) -> None:
        folder.mkdir()
        self.folder, self.socket = folder, listen(0)
        self.host, self.port = self.socket.getsockname()
        self._server = uvicorn.Server(uvicorn.Config(Viewer(targets, folder, **options).app(), log_level="warning"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self.socket]})
        self._thread.start()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self.socket.close()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self, path: str, body: bytes | None = None, headers: dict[str, str] | None = None, method: str = ""
    ) -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", self.port)
        connection.request(method or ("GET" if body is None else "POST"), path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
