from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from counterpoint.cli import main
from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder
from counterpoint.formats.video import encode_video
from counterpoint.rewards import RewardModel
from counterpoint.rewards.calibration import calibrate
from tests.conftest import moving_square_store, write_robot_set


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LeRobot data set, a folder of videos and an encoder, all in order."""
    root = tmp_path_factory.mktemp("good")
    store = moving_square_store(episodes=6, size=32)
    write_robot_set(root / "robot", 6, 32, {"train": "0:4", "val": "4:6"})
    (root / "videos").mkdir()
    for number in range(2):
        encode_video(root / "videos" / f"{number}.mp4", store.frames(number, np.arange(8)), 10)
    (root / "videos" / "manifest.csv").write_text(
        "video,instruction\n0.mp4,push the red block\n1.mp4,push the green block\n"
    )
    encoder = DualEncoder(EncoderConfig(image="convnet", image_size=32, embed_dim=16))
    encoder.save_pretrained(root / "uncalibrated")
    encoder.config = encoder.config.model_copy(update={"calibration": calibrate(RewardModel(encoder), store)})
    encoder.save_pretrained(root / "model")
    return root


@pytest.fixture
def folder(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(good, tmp_path, dirs_exist_ok=True)
    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def first(folder: Path, pattern: str) -> Path:
    return min(folder.rglob(pattern))


def set_info(folder: Path, key: str, value: object) -> None:
    path = folder / "robot" / "meta" / "info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))


def spoil_actions(folder: Path) -> None:
    path = first(folder / "robot" / "data", "*.parquet")
    table = pq.read_table(path)
    actions = table["action"].to_pylist()
    actions[3][0] = float("nan")
    field = table.schema.field("action")
    column = table.schema.get_field_index("action")
    pq.write_table(table.set_column(column, field, pa.array(actions, field.type)), path)


def nothing(folder: Path) -> None:
    """The input as it is; the arguments are what is bad."""


def unreadable(folder: Path) -> None:
    (folder / "videos" / "1.mp4").write_text("no video")


def freeze(folder: Path) -> None:
    encode_video(
        folder / "videos" / "0.mp4", np.repeat(moving_square_store(1, 32).frames(0, np.array([3])), 9, axis=0), 10
    )


def manifest(text: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "videos" / "manifest.csv").write_text(text)

    return write


TRAIN = [
    "train",
    "decisionnce_t-demo",
    "--out",
    "run",
    "--train.steps=1",
    "--train.batch_size=2",
    "--data.size=32",
    "--data",
]
EPISODES = ["reward", "robot", "--model", "model", "--out", "curves", "--episodes"]
LABEL = ["label", "robot", "--model"]
LONG = "push the red block " * 70
REWARD = ["reward", "videos/0.mp4", "--model", "model", "--out", "curves", "--instruction"]

CASES: dict[str, tuple[Callable[[Path], None], list[str], str]] = {
    "missing video": (lambda p: (p / "videos" / "1.mp4").unlink(), [*TRAIN, "videos"], "1.mp4"),
    "unreadable video": (unreadable, [*TRAIN, "videos"], "1.mp4"),
    "truncated mp4": (lambda p: truncate(first(p / "robot", "*.mp4")), [*TRAIN, "robot"], ".mp4"),
    "truncated parquet": (lambda p: truncate(first(p / "robot" / "data", "*.parquet")), [*TRAIN, "robot"], ".parquet"),
    "NaN in actions": (spoil_actions, [*TRAIN, "robot"], "action"),
    "info.json that leaves its folder": (
        lambda p: set_info(p, "data_path", "../{chunk_index}/{file_index}.parquet"), [*TRAIN, "robot"], "info.json",
    ),
    "lance": (lambda p: set_info(p, "storage_format", "lance"), [*TRAIN, "robot"], "lance"),
    "empty manifest": (manifest("video,instruction\n"), [*TRAIN, "videos"], "manifest.csv"),
    "manifest without a column": (manifest("video\n0.mp4\n"), [*TRAIN, "videos"], "instruction"),
    "empty instruction in a manifest": (manifest("video,instruction\n0.mp4,\n"), [*TRAIN, "videos"], "instruction"),
    "manifest that leaves its folder": (
        manifest("video,instruction\n../videos/0.mp4,push\n"), [*TRAIN, "videos"], "../videos/0.mp4",
    ),
    "clip shorter than F": (
        nothing,
        [*TRAIN, "robot", "--objective.draw=sorted_uniform", "--objective.frames=12"],
        "expected at least 12",
    ),
    "unknown camera": (nothing, [*TRAIN, "robot", "--data.cameras", "wrist"], "wrist"),
    "empty instruction": (nothing, [*REWARD, " "], "instruction"),
    "no such video": (lambda p: (p / "videos" / "0.mp4").unlink(), [*REWARD, "push"], "0.mp4"),
    "truncated video": (lambda p: truncate(p / "videos" / "0.mp4"), [*REWARD, "push"], "0.mp4"),
    "instruction that the text tower does not read": (nothing, [*REWARD, LONG], "at most 256 word pieces"),
    "video that never changes": (freeze, [*REWARD, "push"], "frames that are all alike"),
    "episode out of range": (nothing, [*EPISODES, "6"], "found 6; expected numbers from 0 to 5"),
    "data set without episode numbers": (nothing, EPISODES[:-1], "--episodes 0 1 2"),
    "labels under a long instruction": (nothing, [*LABEL, "model", "--instruction", LONG], "at most 256 word pieces"),
    "labels without a calibration": (nothing, [*LABEL, "uncalibrated"], "no calibration"),
    "labels that are there": (
        lambda p: (p / "robot" / "model_progress.parquet").touch(), [*LABEL, "model"], "--overwrite",
    ),
    "labels of videos without a file": (nothing, ["label", "videos", "--model", "model"], "--out labels.parquet"),
    "labels of a damaged video": (lambda p: truncate(first(p / "robot", "*.mp4")), [*LABEL, "model"], ".mp4"),
    "corrupt weights": (lambda p: truncate(p / "model" / "model.safetensors"), [*REWARD, "push"], "model.safetensors"),
    "corrupt encoder config": (lambda p: truncate(p / "model" / "config.json"), [*REWARD, "push"], "config.json"),
    "no such model": (lambda p: shutil.rmtree(p / "model"), [*REWARD, "push"], "model"),
    "converting what is no checkpoint": (
        nothing, ["convert", "decisionnce", "videos/0.mp4", "--out", "converted"], "0.mp4",
    ),
    "unknown task": (nothing, ["collect", "metaworld", "--tasks", "draw-open", "--out", "new"], "drawer-open"),
    "folder in the way": (nothing, ["collect", "metaworld", "--tasks", "reach-v3", "--out", "videos"], "videos"),
    "not a data set": (nothing, ["data", "info", "model"], "model"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.replace(" ", "-"))
def test_bad_input_is_one_message_and_leaves_what_was_there(
    case: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, arguments, words = CASES[case]
    spoil(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(SystemExit) as done:
        main(arguments)
    error = capsys.readouterr().err
    assert done.value.code == 2, error
    message = [line for line in error.splitlines() if line.startswith("counterpoint: ")]
    assert len(message) == 1, error
    assert words in message[0]
    assert "expected" in message[0]
    assert "Hint:" in message[0]
    assert all(path.read_bytes() == content for path, content in before.items())
    assert not (folder / "run" / "model").exists()
    assert not (folder / "new").exists()
    assert not (folder / "curves").exists()
