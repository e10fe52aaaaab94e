"""The local page: what it serves, what it refuses, and a click through it in a browser."""

from __future__ import annotations

import io
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote

import pytest

from counterpoint.cli import main
from counterpoint.encoders.calibration import RewardForm
from counterpoint.errors import BadInputError
from counterpoint.evaluation import view
from counterpoint.evaluation.view import Viewer, listen
from counterpoint.formats import open_dataset
from counterpoint.formats.lerobot.writer import LeRobotWriter
from counterpoint.formats.video import encode_video
from counterpoint.rewards import RewardModel
from counterpoint.rewards.calibration import calibrate
from tests.evaluation.browser import CHROMIUM, Browser
from tests.evaluation.fake import INSTRUCTIONS, SeeingEncoder, episode
from tests.hub_here import COMMIT, hub_cache
from tests.made_once import made_once

uvicorn = pytest.importorskip("uvicorn")
VIDEO = {"Content-Type": "application/octet-stream"}


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


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_balls(tmp_path / "balls")


@pytest.fixture
def runs(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
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

    def __init__(self, targets: list[str], folder: Path) -> None:
        folder.mkdir()
        self.folder, self.socket = folder, listen(0)
        self.host, self.port = self.socket.getsockname()
        self._server = uvicorn.Server(uvicorn.Config(Viewer(targets, folder).app(), log_level="warning"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self.socket]})
        self._thread.start()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self.socket.close()

    def ask(self, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", self.port)
        connection.request("GET" if body is None else "POST", path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")


@pytest.fixture
def server(runs: list[str], data: Path, tmp_path: Path) -> Iterator[Server]:
    opened = Server([*runs[:2], str(data)], tmp_path / "uploads")
    yield opened
    opened.close()


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    encode_video(tmp_path / "clip.mp4", episode(INSTRUCTIONS[0], 21, seed=0, size=64).frames["front"], fps=10)
    return tmp_path / "clip.mp4"


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


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("phone", [True, pytest.param(False, marks=pytest.mark.release)])
def test_a_click_through(server: Server, clip: Path, tmp_path: Path, phone: bool) -> None:
    pytest.importorskip("websocket", reason="websocket-client is not installed")
    (tmp_path / "profile").mkdir()
    (tmp_path / "notes.txt").write_text("no video")
    frame = "Number(document.querySelector('[data-player]').dataset.frame)"
    values = "[...document.querySelectorAll('.end.c0 .now')].map(now => Number(now.textContent.replace('\u2212', '-')))"
    alert = "document.querySelector('.try [role=alert]')"
    width = 390 if phone else 1100
    with Browser(tmp_path / "profile") as browser:
        browser.size(width, 900, phone=phone, dark=phone)

        def fits() -> None:
            assert browser.run("document.documentElement.scrollWidth") <= width

        browser.open(f"http://127.0.0.1:{server.port}/")
        fits()
        browser.type("[name=instruction]", INSTRUCTIONS[0])
        browser.type("[name=against]", INSTRUCTIONS[1])
        browser.click(".try > button")
        browser.wait(f"{alert}.textContent === 'Choose a video first.'")
        browser.choose(".drop input", tmp_path / "notes.txt")
        browser.click(".try > button")
        browser.wait(f"{alert}.textContent.startsWith('notes.txt: found')")
        browser.complaints.clear()  # the console's line about the refused file

        browser.choose(".drop input", clip)
        browser.follow(".try > button")
        fits()
        assert browser.run(frame) == 20
        steps, level = browser.run(values)
        assert steps > 0.5
        assert level > 0.1
        browser.run("document.querySelector('[data-player]').focus()")
        browser.press("ArrowLeft")
        assert browser.run(frame) == 19
        places = "[...document.querySelectorAll('.cursor')].map(cursor => cursor.style.left)"
        first, second = browser.run(places)
        assert first == second  # one cursor for both runs
        browser.type("[name=instruction]", INSTRUCTIONS[1])
        browser.type("[name=against]", INSTRUCTIONS[0])
        browser.follow(".try > button")
        assert browser.run(values)[0] < -0.5

        browser.follow("main > nav a")
        browser.follow("a[href='/data/0']")
        fits()
        browser.type("[name=find]", "blue")
        browser.run("document.querySelector('[name=split]').value = 'val'")
        browser.follow(".filter > button")
        assert browser.run("document.querySelector('[role=status]').textContent") == "2 of 12 episodes"
        browser.wait("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
        browser.follow(".cards a")
        fits()
        assert "episode 10," in browser.run("document.querySelector('header').textContent")
        browser.follow("[rel=next]")
        assert "episode 11," in browser.run("document.querySelector('header').textContent")
        assert browser.run("document.querySelector('[rel=next]')") is None
        browser.run("document.querySelector('.player button').click()")
        browser.wait("document.querySelector('.playing') === null")
        assert browser.complaints == []


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_a_video_is_dropped_anywhere_on_the_page(server: Server, clip: Path, tmp_path: Path) -> None:
    pytest.importorskip("websocket", reason="websocket-client is not installed")
    (tmp_path / "profile").mkdir()
    with Browser(tmp_path / "profile") as browser:
        browser.open(f"http://127.0.0.1:{server.port}/")
        browser.run(
            f"(() => {{ const bytes = new Uint8Array({list(clip.read_bytes())}); const carried = new DataTransfer();"
            " carried.items.add(new File([bytes], 'dropped.mp4'));"
            " document.querySelector('h1').dispatchEvent("
            "new DragEvent('drop', { dataTransfer: carried, bubbles: true, cancelable: true })); })()"
        )
        assert browser.run("document.querySelector('.drop span').textContent") == "dropped.mp4"
        browser.type("[name=instruction]", INSTRUCTIONS[0])
        browser.follow(".try > button")
        assert browser.run("document.querySelector('h1').textContent") == "dropped.mp4"
        assert browser.complaints == []
