"""The local page: what it serves, and what it refuses."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote

import pytest

from counterpoint.cli import main
from counterpoint.errors import BadInputError
from counterpoint.evaluation import view
from counterpoint.evaluation.view import Viewer, listen
from counterpoint.formats import open_dataset
from counterpoint.formats.video import encode_video
from counterpoint.rewards import RewardModel
from counterpoint.rewards.calibration import calibrate
from tests.evaluation.fake import INSTRUCTIONS, episode
from tests.evaluation.viewed import Server, write_balls, write_clip, write_progress, write_runs
from tests.hub_here import COMMIT, hub_cache

VIDEO = {"Content-Type": "application/octet-stream"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_balls(tmp_path / "balls")


@pytest.fixture
def runs(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return write_runs(tmp_path, data, monkeypatch)


@pytest.fixture
def server(runs: list[str], data: Path, tmp_path: Path) -> Iterator[Server]:
    opened = Server([*runs[:2], str(data)], tmp_path / "uploads")
    yield opened
    opened.close()


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    return write_clip(tmp_path / "clip.mp4")


def curves(page: str) -> list[list[float]]:
    """Return the values of all live lines of a page, chart by chart; the instruction's own line is a chart's last."""
    (data,) = re.findall(r'<script type="application/json">(.*?)</script>', page, flags=re.S)
    return [line["values"] for chart in json.loads(data)["charts"] for line in chart["lines"]]


def test_it_listens_on_this_machine_alone(server: Server) -> None:
    assert server.host == "127.0.0.1"
    assert server.ask("/")[0] == 200
    assert server.ask("/", headers={"Host": f"localhost:{server.port}"})[0] == 200
    assert server.ask("/", headers={"Host": "rebound.example"})[0] == 400
    with pytest.raises(BadInputError, match="--port"):
        listen(server.port)


def test_a_small_video_is_written_whole_before_it_is_read(server: Server, tmp_path: Path) -> None:
    """The end of an upload, and all of a small one, waits in the file's buffer until the file is closed."""
    encode_video(tmp_path / "small.mp4", episode(INSTRUCTIONS[0], 4, seed=0, size=64).frames["front"], fps=10)
    body = (tmp_path / "small.mp4").read_bytes()
    assert len(body) < io.DEFAULT_BUFFER_SIZE
    status, address = server.ask("/videos?name=small.mp4", body, {"Content-Type": "application/octet-stream"})
    assert (status, address[:8]) == (200, "/videos/")


def test_another_site_cannot_upload(server: Server, clip: Path) -> None:
    """Browsers ask before they send this type to another site, and no answer here allows it."""
    assert server.ask("/videos?name=a.mp4", clip.read_bytes(), {"Content-Type": "text/plain"})[0] == 400
    connection = HTTPConnection("127.0.0.1", server.port)
    connection.request("OPTIONS", "/videos", headers={"Origin": "https://other.example"})
    answer = connection.getresponse()
    assert answer.status == 405
    assert answer.getheader("Access-Control-Allow-Origin") is None


def test_an_episode_rises_under_its_own_words_in_every_run(server: Server) -> None:
    status, page = server.ask("/data/0/episodes/1")
    assert status == 200
    other, own, other_level, own_level = curves(page)
    assert own[0] == other[0] == 0.0
    assert own[-1] > 0.5 > other[-1]
    assert own_level[-1] > 0.1 > other_level[-1]
    assert "steps" in page
    assert "level" in page


def test_words_are_chosen_and_escaped(server: Server) -> None:
    words = f"instruction={quote(INSTRUCTIONS[0])}&against={quote(INSTRUCTIONS[1])}"
    status, page = server.ask(f"/data/0/episodes/0?{words}")
    against, own, *_ = curves(page)
    assert status == 200
    assert own[-1] == pytest.approx(-against[-1], abs=1e-4)
    status, page = server.ask("/data/0/episodes/0?instruction=%3Cscript%3Ealert(1)%3C/script%3E")
    assert "<script>alert" not in page


def test_episodes_are_filtered(server: Server) -> None:
    def found(query: str) -> int:
        status, page = server.ask(f"/data/0?{query}")
        assert status == 200
        (count,) = re.findall(r"(\d+) of \d+ episodes", page)
        assert page.count("<li>") == int(count)
        return int(count)

    assert found("") == 12
    assert found("find=RED+ball") == 6
    assert found("success=no") == 4
    assert found("success=unknown") == 0
    assert found("split=val") == 4
    assert found("split=val&find=red&success=yes") == 1
    assert found("page=nonsense") == 12
    status, image = server.ask("/data/0/images/3?split=val")
    assert status == 200
    assert "JFIF" in image


def test_a_video_is_scored_and_forgotten(server: Server, clip: Path) -> None:
    status, link = server.ask("/videos?name=clip.mp4", clip.read_bytes(), VIDEO)
    assert status == 200
    assert list(server.folder.iterdir()) == []
    status, page = server.ask(f"{link}?instruction={quote(INSTRUCTIONS[0])}&against={quote(INSTRUCTIONS[1])}")
    assert status == 200
    assert "clip.mp4" in page
    assert [values[-1] > 0.5 for values in curves(page)[:2]] == [False, True]
    status, page = server.ask(f"{link}?instruction=%20")
    assert status == 400
    assert 'role="alert">instruction' in page
    assert curves(page) == []
    same = quote(INSTRUCTIONS[0])
    assert "the contrary instruction" in server.ask(f"{link}?instruction={same}&against={same}")[1]


def test_a_calibrated_run_shows_progress_beside_its_reward(
    runs: list[str], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = RewardModel.from_pretrained

    def calibrated(source: str, *, device: str) -> RewardModel:
        model = load(source, device=device)
        model.calibration = calibrate(model, open_dataset(data))
        return model

    monkeypatch.setattr(RewardModel, "from_pretrained", staticmethod(calibrated))
    opened = Server([runs[1], str(data)], tmp_path / "uploads")
    try:
        _, _, other, own = curves(opened.ask("/data/0/episodes/1")[1])
        assert 0.0 <= min(own + other) <= max(own + other) <= 1.0
        assert own[-1] > 0.7 > 0.4 > max(own[0], other[-1])
    finally:
        opened.close()


@pytest.mark.slow
def test_bad_uploads_end_in_one_message(server: Server, clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for content in (b"", b"no video at all", clip.read_bytes()[:300]):
        status, message = server.ask("/videos?name=holiday.mp4", content, VIDEO)
        assert status == 400
        assert message.startswith("holiday.mp4: found ")
        assert str(server.folder) not in message
        assert "Hint: " in message
        assert "\n" not in message
    monkeypatch.setattr(view, "LARGEST_UPLOAD", 1000)
    status, message = server.ask("/videos?name=long.mp4", bytes(5000), VIDEO)
    assert status == 400
    assert "long.mp4: found more than" in message
    monkeypatch.setattr(view, "LARGEST_FRAME", 1000)
    monkeypatch.setattr(view, "LARGEST_UPLOAD", 10**8)
    assert "found frames of 64 x 64" in server.ask("/videos?name=wide.mp4", clip.read_bytes(), VIDEO)[1]
    assert list(server.folder.iterdir()) == []


@pytest.mark.parametrize(
    "path",
    [
        "/data/9",
        "/data/0?split=exam",
        "/data/0/episodes/12",
        "/data/0/episodes/0?split=exam",
        "/data/0/images/12",
        "/data/0/episodes/0?camera=wrist",
        "/videos/0123",
        "/nowhere",
    ],
)
def test_what_is_not_there_is_one_message(server: Server, path: str) -> None:
    status, page = server.ask(path)
    assert status in (400, 404)
    assert page.count('role="alert"') == 1
    assert "Traceback" not in page


def test_a_run_alone_brings_the_data_it_was_trained_on(runs: list[str], data: Path, tmp_path: Path) -> None:
    viewer = Viewer(runs[:1], tmp_path)
    assert [one.path for one in viewer.sets] == [data]
    assert Viewer([str(data)], tmp_path).runs == {}


def test_a_data_set_of_the_hub_is_browsed_by_its_id_and_for_its_run(
    data: Path, runs: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_cache(monkeypatch, tmp_path / "hub").add("me/balls", data)
    (by_id,) = Viewer(["me/balls"], tmp_path).sets
    assert len(by_id.store.episodes) == 12
    config = {"data": {"path": f"me/balls@{COMMIT}"}, "held_out": [1]}
    (Path(runs[0]) / "config.json").write_text(json.dumps(config))
    for targets in (runs[:1], [runs[0], "me/balls"]):
        (one,) = Viewer(targets, tmp_path).sets
        assert one.marks == {"used in training": [0, 2, 3, 4, 5, 6, 7], "held out": [1]}
    gone = config | {"data": {"path": f"me/gone@{COMMIT}"}}
    (Path(runs[0]) / "config.json").write_text(json.dumps(gone))
    assert Viewer(runs[:1], tmp_path).sets == []


def test_episodes_that_training_set_aside_are_a_split(runs: list[str], data: Path, tmp_path: Path) -> None:
    for run, numbers in zip(runs, ([1, 4, 6], [1, 6, 7], [0, 1, 6]), strict=True):
        file = Path(run) / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"held_out": numbers}))
    (one,) = Viewer(runs, tmp_path).sets
    assert one.numbers("held out") == [1, 6]
    assert [one.store.episodes[number].instruction for number in (1, 6)] == [INSTRUCTIONS[1], INSTRUCTIONS[2]]
    with pytest.raises(BadInputError, match="held out"):
        Viewer([str(data)], tmp_path).sets[0].numbers("held out")


def test_pages_keep_the_data_set_s_numbers_and_mark_what_was_trained_on(
    runs: list[str], data: Path, tmp_path: Path
) -> None:
    """`counterpoint reward DATA --episodes` means the same episodes."""
    file = Path(runs[0]) / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"held_out": [1, 4, 6]}))
    opened = Server([runs[0]], tmp_path / "uploads")

    def cards(query: str) -> list[str]:
        return re.findall(r'<span class="soft small">(.*?)</span>', opened.ask(f"/data/0?{query}")[1])

    try:
        page = opened.ask("/data/0?split=train")[1]
        assert "8 of 12 episodes: 5 used in training, 3 held out" in page
        assert "<option selected>train</option>" in page
        assert [about.split(",")[0] for about in cards("split=val")] == [f"episode {at}" for at in range(8, 12)]
        assert not any("trained" in about or "held" in about for about in cards("split=val"))
        assert cards("split=held+out") == [
            "episode 1, 11 frames, success, held out",
            "episode 4, 14 frames, success, held out",
            "episode 6, 16 frames, failure, held out",
        ]
        assert [about.split(",")[0] for about in cards("split=used+in+training")] == [
            f"episode {at}" for at in (0, 2, 3, 5, 7)
        ]
        assert all("used in training" in about for about in cards("split=used+in+training"))
        texts = [info.instruction for info in open_dataset(data).episodes]
        page = opened.ask("/data/0/episodes/9?split=val")[1]
        assert f"<h1>{texts[9]}</h1>" in page
        assert "episode 9, 19 frames, failure" in page
        assert "/data/0/episodes/8?split=val" in page
        assert "/data/0/episodes/10?split=val" in page
        learned, held_out = (opened.ask(f"/data/0/episodes/{at}")[1] for at in (3, 4))
        assert "episode 3, 13 frames, failure, used in training" in learned
        assert ["A run has learned from this video" in page for page in (learned, held_out)] == [True, False]
    finally:
        opened.close()


def test_an_episode_that_one_of_two_runs_learned_from_is_trained_on(
    runs: list[str], data: Path, tmp_path: Path
) -> None:
    for run, numbers in zip(runs[:2], ([1, 4], [4, 6]), strict=True):
        file = Path(run) / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"held_out": numbers}))
    (one,) = Viewer(runs[:2], tmp_path).sets
    assert one.marks == {"used in training": [0, 1, 2, 3, 5, 6, 7], "held out": [4]}


MODULE = """
import numpy as np

def counting(frames, text):
    return np.linspace(0.25, 0.75 if "red" in text else 0.5, len(frames))

counting.progress = True
"""


def test_a_model_of_others_has_curves_beside_those_of_runs(
    runs: list[str], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("a_viewed_model.py").write_text(MODULE)
    opened = Server([runs[0], "a_viewed_model:counting", str(data)], tmp_path / "uploads")
    try:
        status, page = opened.ask("/data/0/episodes/0?instruction=red&against=green")
        assert status == 200
        assert "progress of the instruction" in page
        assert [values[-1] for values in curves(page)][-2:] == [0.5, 0.75]
        assert "a model of others" in opened.ask("/")[1]
    finally:
        opened.close()


def test_a_run_without_language_is_read_towards_the_last_frame(runs: list[str], data: Path, tmp_path: Path) -> None:
    opened = Server([runs[2], str(data)], tmp_path / "uploads")
    try:
        status, page = opened.ask("/data/0/episodes/0")
        assert status == 200
        (values,) = curves(page)
        assert values[0] == 0.0
        assert values[-1] == max(values)
        assert 'name="instruction"' not in page
    finally:
        opened.close()


def test_bad_targets_end_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    for arguments in (["view"], ["view", str(tmp_path / "empty")], ["view", str(tmp_path / "absent")]):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 2
        assert capsys.readouterr().err.count("Hint: ") == 1


def numbers(page: str) -> list[int]:
    return [int(number) for number in re.findall(r">episode (\d+), \d+ frames", page)]


@pytest.fixture
def desk(data: Path, tmp_path: Path) -> Iterator[Server]:
    write_progress(data / "sarm_progress.parquet", [0.5, 0.9, 0.1, *[0.6] * 8, float("nan")])
    write_progress(tmp_path / "judge.parquet", [-value / 10 for value in range(12)])
    opened = Server([str(data)], tmp_path / "uploads", overlay=[str(tmp_path / "judge.parquet")])
    yield opened
    opened.close()


def test_progress_files_are_drawn_over_an_episode(desk: Server) -> None:
    page = desk.ask("/data/0/episodes/1")[1]
    assert re.findall(r"<figcaption>(.*?)</figcaption>", page) == ["Progress files", "judge"]
    assert re.findall(r"</b>(.*?)</span>", page) == ["sarm", "judge"]
    sarm, judge = curves(page)
    assert sarm == [pytest.approx(0.09 * step, abs=1e-5) for step in range(11)]
    assert judge == [pytest.approx(-0.01 * step, abs=1e-5) for step in range(11)]
    assert re.findall(r"<figcaption>(.*?)</figcaption>", desk.ask("/data/0/episodes/11")[1]) == ["judge"]  # all NaN


def test_episodes_are_sorted_by_a_curve_and_turned_in_that_order(desk: Server) -> None:
    page = desk.ask("/data/0?sort=last:sarm")[1]
    assert numbers(page) == [2, 0, 3, 4, 5, 6, 7, 8, 9, 10, 1, 11]
    assert "<td>0.90</td><td>&darr;&thinsp;0.00</td>" in page
    assert numbers(desk.ask("/data/0?sort=last:sarm&order=down")[1]) == [1, 3, 4, 5, 6, 7, 8, 9, 10, 0, 2, 11]
    assert numbers(desk.ask("/data/0?sort=fall:judge&order=down&split=val")[1]) == [11, 10, 9, 8]
    page = desk.ask("/data/0/episodes/0?sort=last:sarm")[1]
    links = re.findall(r'rel="(prev|next)" href="/data/0/episodes/(\d+)\?sort=last%3Asarm"', page)
    assert links == [("prev", "2"), ("next", "3")]
    assert "sort: found" in desk.ask("/data/0?sort=last:vip")[1]


def test_flags_are_written_at_once_and_exported_as_lerobot_s_command(desk: Server, data: Path) -> None:
    assert desk.ask("/data/0/export") == (200, "")
    assert [desk.ask(f"/data/0/flags/{at}", method="PUT") for at in (7, 2, 9, 2)] == [(200, n) for n in "1233"]
    assert desk.ask("/data/0/flags/9", method="DELETE") == (200, "2")
    assert numbers(desk.ask("/data/0?flag=yes")[1]) == [2, 7]
    assert numbers(desk.ask("/data/0?flag=no&find=red")[1]) == [0, 1, 4, 5, 8, 9]
    assert [" checked" in desk.ask(f"/data/0/episodes/{at}")[1] for at in (2, 3)] == [True, False]
    command = desk.ask("/data/0/export")[1]
    assert command.startswith(f"lerobot-edit-dataset --repo_id balls --root {data} --new_repo_id balls_kept")
    assert command.endswith('--operation.type delete_episodes --operation.episode_indices "[2, 7]"')
    assert [flag["episode_index"] for flag in json.loads(Path(f"{data}.flags.json").read_text())["flags"]] == [2, 7]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_another_site_cannot_flag(desk: Server, data: Path, method: str) -> None:
    """Browsers send only these two to another site without asking."""
    assert desk.ask("/data/0/flags/2", method=method)[0] == 405
    assert not Path(f"{data}.flags.json").exists()


def test_a_flag_that_cannot_be_written_is_one_message(data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    opened = Server([str(data)], tmp_path / "uploads", flags=tmp_path / "file" / "flags.json")
    try:
        status, message = opened.ask("/data/0/flags/2", method="PUT")
        assert status == 400
        assert message.startswith(f"{tmp_path / 'file' / 'flags.json'}: found ")
        assert message.endswith("Hint: name another file: --flags FILE")
    finally:
        opened.close()


def test_curves_and_flags_belong_to_one_data_set(data: Path, tmp_path: Path) -> None:
    other = write_balls(tmp_path / "other")
    with pytest.raises(BadInputError, match="--overlay and --flags: found 2 data sets"):
        Viewer([str(data), str(other)], tmp_path, overlay=["next.success"], flags=tmp_path / "flags.json")


def test_a_curve_that_does_not_fit_ends_the_command(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_progress(tmp_path / "other.parquet", [1.0, 1.0], lengths=[10, 12])
    with pytest.raises(SystemExit) as ended:
        main(["view", str(data), "--overlay", str(file)])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"counterpoint: {file}, episode 1: found 12 frames; expected 11, as in")
