from __future__ import annotations

import csv
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from counterpoint.encoders import DualEncoder, EncoderConfig
from counterpoint.errors import BadInputError, MissingExtraError
from counterpoint.formats import open_dataset
from counterpoint.formats.video import encode_video, probe_video, read_frames
from counterpoint.rewards import RewardForm, RewardModel
from counterpoint.rewards.curves import reward_command, score_clip, video_clip
from counterpoint.rewards.instructions import read_goal
from counterpoint.rewards.model import gains
from counterpoint.workers import Foreign
from tests.evaluation.fake import INSTRUCTIONS, SeeingEncoder, episode
from tests.evaluation.fake_run import write_data
from tests.formats.made import write_variable_rate


@pytest.fixture(autouse=True)
def _model(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_pretrained(source: str | Path, *, device: str = "cpu", form: RewardForm | None = None) -> RewardModel:
        return RewardModel(SeeingEncoder(), batch_size=4, form=form)

    monkeypatch.setattr(RewardModel, "from_pretrained", staticmethod(from_pretrained))


def video(path: Path, instruction: str = INSTRUCTIONS[0], length: int = 11) -> Path:
    encode_video(path, episode(instruction, length, seed=0, size=64).frames["front"], fps=5)
    return path


def test_each_video_becomes_a_table_an_image_and_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clip = video(tmp_path / "clip.mp4")
    out = tmp_path / "out"
    written = reward_command([clip], INSTRUCTIONS[0], against=INSTRUCTIONS[1:3], model="run", out=out)
    said = capsys.readouterr().out
    assert said.count("3 instructions: cosines of their embeddings") == 1
    assert "Placeholders" not in said
    assert [p.name for p in written] == ["clip.csv", "clip.png", "clip.html"]
    with written[0].open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["frame", "seconds", *INSTRUCTIONS[:3]]
    assert len(rows) == 12
    assert [float(rows[6][0]), float(rows[6][1])] == [5, 1.0]
    assert float(rows[-1][2]) > 0.8
    assert float(rows[-1][3]) < -0.8
    assert written[1].read_bytes().startswith(b"\x89PNG")
    page = written[2].read_text()
    assert "http://" not in page
    assert "https://" not in page
    assert page.count("data:image/jpeg;base64,") >= 11
    assert INSTRUCTIONS[2] in page


def test_a_video_is_decoded_while_the_model_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded, load = threading.Event(), RewardModel.from_pretrained

    def read(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        decoded.set()
        return function(*args)

    def from_pretrained(*args: Any, **options: Any) -> RewardModel:
        assert decoded.wait(60)
        return load(*args, **options)

    monkeypatch.setattr("counterpoint.rewards.curves.in_worker", read)
    monkeypatch.setattr(RewardModel, "from_pretrained", staticmethod(from_pretrained))
    assert reward_command([video(tmp_path / "clip.mp4")], INSTRUCTIONS[0], model="run", out=tmp_path / "out")


def test_a_video_shows_the_frames_beside_their_curve_and_a_moving_cursor(tmp_path: Path) -> None:
    clip, out = video(tmp_path / "clip.mp4"), tmp_path / "out"
    written = reward_command([clip], INSTRUCTIONS[0], against=INSTRUCTIONS[1:2], model="run", out=out, also=["mp4"])
    assert [path.name for path in written] == ["clip.csv", "clip.png", "clip.html", "clip.mp4"]
    info = probe_video(written[-1])
    assert (info.frames, info.fps, info.height, info.width) == (11, 5.0, 400, 400 + 720)
    images = read_frames(written[-1], range(11)).astype(int)
    sharp = read_frames(clip, range(11)).repeat(6, axis=1).repeat(6, axis=2)[:, :384, :384].astype(int)
    assert np.abs(images[:, 8:392, 8:392] - sharp).mean() < 8  # the frames themselves, which look alike when enlarged
    assert np.abs(images[:, 8:392, 8:392] - sharp[::-1]).mean() > 8
    dark = [(image[30:270, 500:] < 90).all(axis=2).mean(axis=0) > 0.8 for image in images]
    cursors = [int(np.flatnonzero(column & ~np.all(dark, axis=0))[0]) for column in dark]  # less the axis
    assert np.ptp(np.diff(cursors)) <= 1
    assert cursors[-1] - cursors[0] > 400


RERUN = """
calls = []


class Image(tuple):
    def __new__(cls, frame):
        return tuple.__new__(cls, frame.shape)

    def compress(self):
        return self


def Scalars(value):
    return value


def save(path):
    calls.append(("save", path.name))
    path.write_bytes(b"RRF")


def disconnect():
    calls.append(("disconnect",))


def init(name, spawn):
    calls.append(("init", name, spawn))


def set_time(timeline, **at):
    calls.append(("set_time", timeline, at))


def log(path, entity):
    calls.append(("log", path, entity))
"""


def test_a_recording_for_rerun_has_every_frame_and_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clip, out = video(tmp_path / "clip.mp4", length=3), tmp_path / "out"
    (tmp_path / "sdk").mkdir()
    (tmp_path / "sdk" / "rerun.py").write_text(RERUN)
    monkeypatch.syspath_prepend(tmp_path / "sdk")
    monkeypatch.delitem(sys.modules, "rerun", raising=False)
    table, *_, recording = reward_command([clip], INSTRUCTIONS[0], model="run", out=out, also=["rrd"])
    calls = sys.modules.pop("rerun").calls
    assert recording.read_bytes() == b"RRF"
    assert sorted(path.name for path in out.iterdir()) == ["clip.csv", "clip.html", "clip.png", "clip.rrd"]
    assert calls[:2] == [("init", "counterpoint/clip.mp4", False), ("save", "clip.rrd")]
    assert calls[-1] == ("disconnect",)
    with table.open(newline="") as file:
        rewards = [float(row[INSTRUCTIONS[0]]) for row in csv.DictReader(file)]
    for number, reward in enumerate(rewards):
        assert calls[2 + 4 * number : 6 + 4 * number] == [
            ("set_time", "frame_index", {"sequence": number}),
            ("set_time", "seconds", {"duration": pytest.approx(number / 5)}),
            ("log", "video", (64, 64, 3)),
            ("log", ["reward", INSTRUCTIONS[0]], pytest.approx(reward, abs=1e-5)),
        ]
    assert len(calls) == 2 + 4 * 3 + 1


def test_rerun_reads_the_recording(tmp_path: Path) -> None:
    recording = pytest.importorskip("rerun.recording", reason="needs the extra `rerun`")
    reward_command([video(tmp_path / "clip.mp4")], INSTRUCTIONS[0], model="run", out=tmp_path, also=["rrd"])
    columns = str(recording.load_recording(tmp_path / "clip.rrd").schema())
    assert "/video" in columns
    assert "/reward/push" in columns


def test_a_missing_sdk_is_told_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterpoint.errors.find_spec", lambda module: None)
    with pytest.raises(MissingExtraError, match=r"rerun is not installed.*\[rerun\]"):
        reward_command([tmp_path / "absent.mp4"], "push", model="run", out=tmp_path / "out", also=["rrd"])


def test_a_placeholder_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clips = [video(tmp_path / name) for name in ("a.mp4", "b.mp4")]
    reward_command(clips, "N/A", model="run", out=tmp_path / "out")
    assert capsys.readouterr().out.count("Placeholders, which name no task: 'N/A'; to replace them") == 1


def test_a_video_of_variable_rate_keeps_its_own_times(tmp_path: Path) -> None:
    times = write_variable_rate(tmp_path / "phone.mp4")
    (tmp_path / "manifest.csv").write_text("video,instruction,start\nphone.mp4,push,0.5\n")
    whole = reward_command([tmp_path / "phone.mp4"], "push", model="run", out=tmp_path / "out")
    part = reward_command([tmp_path], episodes=[0], model="run", out=tmp_path / "out")
    for (table, _, page), expected in ((whole, times), (part, times[15:] - times[15])):
        with table.open(newline="") as file:
            seconds = [float(row["seconds"]) for row in csv.DictReader(file)]
        np.testing.assert_allclose(seconds, expected, atol=1e-4)
        assert f"{len(expected)} frames at {(len(expected) - 1) / expected[-1]:.6g} frames a second" in page.read_text()


def test_a_bad_video_does_not_spoil_the_others(tmp_path: Path) -> None:
    good = video(tmp_path / "good.mp4")
    bad = tmp_path / "bad.mp4"
    bad.write_bytes(good.read_bytes()[:300])
    absent = tmp_path / "absent.mp4"
    with pytest.raises(BadInputError) as error:
        reward_command([bad, good, absent], INSTRUCTIONS[0], model="run", out=tmp_path / "out")
    assert "bad.mp4" in str(error.value)
    assert "absent.mp4" in str(error.value)
    assert "good.mp4" not in str(error.value)
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["good.csv", "good.html", "good.png"]


@pytest.mark.slow
def test_videos_of_one_name_do_not_overwrite_each_other(tmp_path: Path) -> None:
    clips = [video(tmp_path / folder / "clip.mp4", length=3) for folder in ("a", "b")]
    written = reward_command(clips, "push", model="run", out=tmp_path / "out")
    assert [p.name for p in written if p.suffix == ".csv"] == ["clip.csv", "clip-2.csv"]


def test_bad_arguments_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(BadInputError, match="videos"):
        reward_command([], "push", model="run", out=out)
    with pytest.raises(BadInputError, match="instruction"):
        reward_command([tmp_path / "clip.mp4"], " ", model="run", out=out)
    with pytest.raises(BadInputError, match="twice"):
        reward_command([tmp_path / "clip.mp4"], "push", against=["push"], model="run", out=out)
    out.write_text("a file")
    with pytest.raises(BadInputError, match="a folder"):
        reward_command([tmp_path / "clip.mp4"], "push", model="run", out=out)


@pytest.mark.slow
def test_episodes_of_a_data_set_are_plotted_under_their_own_instructions(tmp_path: Path) -> None:
    data, out = write_data(tmp_path / "data", each=1), tmp_path / "out"
    written = reward_command([data], model="run", out=out, episodes=(5, 2), against=["push the tray"])
    tables = [path for path in written if path.suffix == ".csv"]
    assert [path.name for path in tables] == ["episode-000005.csv", "episode-000002.csv"]
    with tables[1].open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["frame", "seconds", INSTRUCTIONS[2], "push the tray"]
    assert len(rows) == 11
    frames = open_dataset(data).frames(2, np.arange(10))
    expected = RewardModel(SeeingEncoder()).reward(frames, INSTRUCTIONS[2])
    np.testing.assert_allclose([float(row[2]) for row in rows[1:]], expected, atol=1e-5)


@pytest.mark.slow
def test_each_video_may_have_an_instruction_of_its_own(tmp_path: Path) -> None:
    clips = [video(tmp_path / f"{at}.mp4", text, length=5) for at, text in enumerate(INSTRUCTIONS[:2])]
    (tmp_path / "texts.txt").write_text("\n".join(INSTRUCTIONS[:2]))
    written = reward_command(clips, model="run", out=tmp_path / "out", text_file=tmp_path / "texts.txt")
    for text, path in zip(INSTRUCTIONS, [path for path in written if path.suffix == ".csv"], strict=False):
        assert path.read_text().startswith(f"frame,seconds,{text}\n")


def test_a_turned_photo_of_a_goal_comes_upright(tmp_path: Path) -> None:
    image, exif = np.zeros((16, 24, 3), np.uint8), Image.Exif()
    image[:, :8], exif[0x0112] = 255, 6  # shown after a quarter turn clockwise
    Image.fromarray(image).save(tmp_path / "goal.jpg", exif=exif, quality=98)
    goal = read_goal(tmp_path / "goal.jpg")
    assert goal.shape == (24, 16, 3)
    assert goal[:8].mean() > 250 > 5 > goal[8:].mean()
    (tmp_path / "goal.txt").write_text("words")
    with pytest.raises(BadInputError, match=r"goal\.txt.*a whole PNG or JPEG"):
        read_goal(tmp_path / "goal.txt")


def test_a_goal_image_of_another_size_is_fine(tmp_path: Path) -> None:
    clip = video(tmp_path / "clip.mp4")
    Image.fromarray(episode(INSTRUCTIONS[0], 9, seed=0, size=96).frames["front"][-1][:, :80]).save(
        tmp_path / "goal.png"
    )
    table = reward_command([clip], goal=tmp_path / "goal.png", model="run", out=tmp_path / "out")[0]
    with table.open(newline="") as file:
        assert len(list(csv.reader(file))) == 12


def test_a_video_that_never_changes_is_refused(tmp_path: Path) -> None:
    good, still = video(tmp_path / "good.mp4"), tmp_path / "still.mp4"
    encode_video(still, np.repeat(episode("push the red ball right", 3, 0, 64).frames["front"][:1], 20, axis=0), fps=5)
    with pytest.raises(BadInputError, match=r"still\.mp4: found 20 frames that are all alike"):
        reward_command([still, good], "push", model="run", out=tmp_path / "out")
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["good.csv", "good.html", "good.png"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"episodes": (3, 8)}, "found 8; expected numbers from 0 to 7"),
        ({"episodes": (-1,)}, "found -1"),
        ({}, "--episodes 0 1 2"),
        ({"episodes": (0,), "camera": "wrist"}, "wrist"),
        ({"episodes": (0,), "text_file": Path("texts.txt"), "instruction": "push"}, "leave one out"),
        ({"episodes": (0,), "goal": Path("goal.png"), "instruction": "push"}, "an instruction beside it"),
        ({"episodes": (0, 1), "text_file": Path("texts.txt")}, "1 lines; expected 2"),
    ],
)
def test_bad_choices_of_episodes_are_refused(
    options: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("push\n")
    with pytest.raises(BadInputError, match=words):
        reward_command([write_data(tmp_path / "data", each=1)], model="run", out=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_long_video_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clip = video(tmp_path / "clip.mp4")
    model = RewardModel(SeeingEncoder())
    whole = score_clip(model, video_clip(clip), INSTRUCTIONS)
    monkeypatch.setattr("counterpoint.rewards.curves.CHUNK_BYTES", 6 * 64 * 64 * 3)
    monkeypatch.setattr("counterpoint.rewards.curves.IMAGES", 4)
    parts = score_clip(model, video_clip(clip), INSTRUCTIONS)
    np.testing.assert_allclose(whole.values, parts.values, atol=1e-6)
    assert list(parts.images) == [0, 3, 7, 10]
    assert len(whole.images) == 11


MODULE = """
def light(frames, text):
    if text == "explode":
        raise RuntimeError("boom")
    return frames.mean(axis=(1, 2, 3)) / 255

light.progress = True
"""


def test_a_model_of_others_is_plotted_from_its_own_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Path("a_reward_of_others.py").write_text(MODULE)
    clip, source, own = video(tmp_path / "clip.mp4"), "a_reward_of_others:light", Foreign(python=Path(sys.executable))
    table, _, page = reward_command([clip], "go", against=["stop"], model=source, foreign=own, out=tmp_path / "out")
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["go"] for row in rows] == [row["stop"] for row in rows]
    assert 0 < float(rows[0]["go"]) < 1
    assert "reward: progress of the instruction" in page.read_text()
    with pytest.raises(BadInputError, match="RuntimeError: boom"):
        reward_command([clip], "explode", model=source, foreign=own, out=tmp_path / "out")
    with pytest.raises(BadInputError, match="instructions alone"):
        reward_command([clip], "go", form="potential", model=source, foreign=own, out=tmp_path / "out")
    monkeypatch.setattr("counterpoint.rewards.curves.MOST_BYTES", 1000)
    with pytest.raises(BadInputError, match="which a model of others reads at once"):
        reward_command([clip], "go", model=source, foreign=own, out=tmp_path / "out")
    assert "cosines" not in capsys.readouterr().out


def test_a_potential_is_plotted_as_its_gain_since_the_first_frame() -> None:
    form: RewardForm
    curve = np.array([[0.25, 0.5, 0.0], [1.0, 1.0, 0.5]])
    for form in ("potential", "goal"):
        np.testing.assert_array_equal(gains(curve, form), [[0.0, 0.25, -0.25], [0.0, 0.0, -0.5]])
    for form in ("transition", "language"):
        assert gains(curve, form) is curve


TRACED = """
import sys
from pathlib import Path

import torch

from counterpoint.cli import main
from counterpoint.encoders.dual import SentenceTower

SentenceTower.embed = lambda self, text: torch.ones(384) / 384**0.5
video, model, out = sys.argv[1:]
command = ["reward", video, "--instruction", "push", "--model", model, "--out", out]
main(command)
files = {module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "counterpoint"}
entered = set()


def enter(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_filename in files and code.co_name != "<module>":
        entered.add(code.co_filename)


sys.setprofile(enter)
main(command)
sys.setprofile(None)
aside = ("__init__.py", "errors.py", "config.py")
entered = {file for file in entered if Path(file).name not in aside}
print("imported", *sorted(files))
print("entered", *sorted(entered))
"""


@pytest.mark.slow
def test_one_video_imports_no_reader_but_the_video_s(tmp_path: Path) -> None:
    clip, model = video(tmp_path / "clip.mp4"), tmp_path / "model"
    DualEncoder(EncoderConfig(image_size=32, embed_dim=8)).save_pretrained(model)
    command = [sys.executable, "-c", TRACED, *map(str, (clip, model, tmp_path / "out"))]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = {line.split()[0]: line.split()[1:] for line in run.stdout.splitlines()}
    imported = {file.partition("/counterpoint/")[2] for file in lines["imported"]}
    readers = {file for file in imported if file.startswith("formats/")}
    assert readers == {
        f"formats/{name}.py" for name in ("__init__", "base", "boundary", "containers", "lru", "remote", "video")
    }
    assert len(imported) <= 40, sorted(imported)
    assert len(lines["entered"]) <= 15, lines["entered"]
