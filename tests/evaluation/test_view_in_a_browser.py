"""Clicks through the page of `counterpoint view`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.evaluation.browser import CHROMIUM, Browser
from tests.evaluation.fake import INSTRUCTIONS
from tests.evaluation.viewed import Server, write_balls, write_clip, write_progress, write_runs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
]
FRAME = "Number(document.querySelector('[data-player]').dataset.frame)"
CURSORS = "[...document.querySelectorAll('.cursor')].map(cursor => cursor.style.left)"


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


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    pytest.importorskip("websocket", reason="websocket-client is not installed")
    (tmp_path / "profile").mkdir()
    with Browser(tmp_path / "profile") as opened:
        yield opened


@pytest.mark.parametrize("phone", [True, pytest.param(False, marks=pytest.mark.release)])
def test_a_click_through(browser: Browser, server: Server, clip: Path, tmp_path: Path, phone: bool) -> None:
    (tmp_path / "notes.txt").write_text("no video")
    values = "[...document.querySelectorAll('.end.c0 .now')].map(now => Number(now.textContent.replace('\u2212', '-')))"
    alert = "document.querySelector('.try [role=alert]')"
    width = 390 if phone else 1100
    browser.size(width, 900, phone=phone, dark=phone)

    def fits() -> None:
        assert browser.run("document.documentElement.scrollWidth") <= width

    browser.open(server.address)
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
    assert browser.run(FRAME) == 20
    steps, level = browser.run(values)
    assert steps > 0.5
    assert level > 0.1
    browser.run("document.querySelector('[data-player]').focus()")
    browser.press("ArrowLeft")
    assert browser.run(FRAME) == 19
    first, second = browser.run(CURSORS)
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


def test_a_dropped_video_has_curves_of_two_instructions_under_one_cursor(
    browser: Browser, server: Server, clip: Path
) -> None:
    browser.size(1100, 900)
    browser.open(server.address)
    browser.run(
        f"(() => {{ const bytes = new Uint8Array({list(clip.read_bytes())}); const carried = new DataTransfer();"
        " carried.items.add(new File([bytes], 'dropped.mp4'));"
        " document.querySelector('h1').dispatchEvent("
        "new DragEvent('drop', { dataTransfer: carried, bubbles: true, cancelable: true })); })()"
    )
    assert browser.run("document.querySelector('.drop span').textContent") == "dropped.mp4"
    browser.type("[name=instruction]", INSTRUCTIONS[0])
    browser.type("[name=against]", INSTRUCTIONS[1])
    browser.follow(".try > button")
    assert browser.run("document.querySelector('h1').textContent") == "dropped.mp4"
    labels = "[...document.querySelector('.plot').querySelectorAll('.end')].map(end => end.lastChild.textContent)"
    assert sorted(browser.run(labels)) == sorted(INSTRUCTIONS[:2])
    assert browser.run("document.querySelector('.plot').querySelectorAll('path.line').length") == 2
    box = "(b => [b.x + b.width / 4, b.y + b.height / 2])(document.querySelector('.plot').getBoundingClientRect())"
    browser.run("document.querySelector('.plot').scrollIntoView({block: 'center'})")
    browser.move(*browser.run(box))
    assert browser.run(FRAME) == 5
    first, second = browser.run(CURSORS)
    assert first == second
    assert float(first.removesuffix("%")) == pytest.approx(25)
    assert browser.complaints == []


def test_episodes_are_sorted_flagged_and_exported(browser: Browser, data: Path, tmp_path: Path) -> None:
    write_progress(data / "sarm_progress.parquet", [0.5, 0.9, 0.1, *[0.6] * 8, float("nan")])
    write_progress(data / "robometer_progress.parquet", [1.0] * 12)
    shown = "[...document.querySelectorAll('.cards a > .soft')].map(one => parseInt(one.textContent.split(' ')[1]))"
    boxes = "[...document.querySelectorAll('[data-flag]')].filter(box => box.checked).map(box => box.dataset.flag)"
    count = "document.querySelector('[data-flagged]').textContent"
    browser.size(1100, 900)

    def look(work: Callable[[Server], None], folder: str) -> None:
        opened = Server([str(data)], tmp_path / folder)
        try:
            work(opened)
        finally:
            opened.close()

    def flag(opened: Server) -> None:
        browser.open(opened.address)
        browser.follow("a[href='/data/0']")
        browser.run("document.querySelector('[name=sort]').value = 'last:sarm'")
        browser.run("document.querySelector('[name=order]').value = 'down'")
        browser.follow(".filter > button")
        assert browser.run(shown) == [1, 3, 4, 5, 6, 7, 8, 9, 10, 0, 2, 11]
        browser.run("document.querySelector('[name=order]').value = ''")
        browser.follow(".filter > button")
        assert browser.run(shown)[:3] == [2, 0, 3]
        browser.click("[data-flag='/data/0/flags/2']")
        browser.wait(f"{count} === '1'")
        browser.follow(".cards li:nth-child(2) a")
        assert browser.run("document.querySelectorAll('.curves .dot').length") == 2
        browser.click("[data-flag]")
        browser.wait("!document.querySelector('[data-flag]').disabled")
        browser.run("window.before = true; history.back()")
        browser.wait("window.before === undefined && document.readyState === 'complete'")
        assert browser.run(boxes) == ["/data/0/flags/2", "/data/0/flags/0"]

    def export(opened: Server) -> None:
        browser.open(f"{opened.address}/data/0")
        assert browser.run(count) == "2"
        browser.click("[data-flag='/data/0/flags/0']")
        browser.wait(f"{count} === '1'")
        browser.call("Browser.grantPermissions", permissions=[])  # takes all away
        browser.click("[data-export]")
        browser.wait("document.querySelector('[data-exported]').textContent.startsWith('Selected')")
        assert browser.run("getSelection().toString()") == browser.run("document.querySelector('pre').textContent")
        browser.call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
        browser.click("[data-export]")
        browser.wait("!document.querySelector('header pre').hidden")
        command = browser.run("document.querySelector('header pre').textContent")
        assert f"lerobot-edit-dataset --repo_id balls --root {data} " in command
        assert command.endswith('--operation.type delete_episodes --operation.episode_indices "[2]"')
        browser.wait("document.querySelector('[data-exported]').textContent === 'Copied.'")
        assert browser.run("navigator.clipboard.readText()") == command
        assert browser.complaints == []

    look(flag, "first")
    look(export, "second")  # flags survive the server


def test_a_flag_that_is_refused_goes_back(browser: Browser, data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    opened = Server([str(data)], tmp_path / "uploads", flags=tmp_path / "file" / "flags.json")
    try:
        browser.open(f"{opened.address}/data/0")
        browser.click("[data-flag]")
        browser.wait("document.querySelector('[data-refused]').textContent.endsWith('--flags FILE')")
        assert browser.run("document.querySelector('[data-flag]').checked") is False
    finally:
        opened.close()
