from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from counterpoint.evaluation.compare import write_comparison
from counterpoint.evaluation.comparison import compare
from counterpoint.evaluation.report import write_report
from counterpoint.formats.video import encode_video
from counterpoint.rewards import RewardModel
from counterpoint.rewards.curves import reward_command
from counterpoint.rewards.sources import EncoderReward, FunctionReward, Reward, ramp
from tests.evaluation.browser import CHROMIUM, Browser
from tests.evaluation.fake import INSTRUCTIONS, SeeingEncoder, episode, store
from tests.evaluation.fake_run import quick_words, write_data, write_run

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    pytest.importorskip("websocket", reason="websocket-client is not installed")
    (tmp_path / "profile").mkdir()
    with Browser(tmp_path / "profile") as opened:
        opened.size(1100, 900)
        yield opened


@pytest.fixture
def curve_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    model = RewardModel(SeeingEncoder())
    monkeypatch.setattr(RewardModel, "from_pretrained", staticmethod(lambda source, **options: model))
    clip = tmp_path / "clip.mp4"
    encode_video(clip, episode(INSTRUCTIONS[0], 21, seed=0, size=64).frames["front"], fps=10)
    return reward_command([clip], INSTRUCTIONS[0], against=INSTRUCTIONS[1:2], model="run", out=tmp_path)[2]


@pytest.mark.slow
def test_the_cursor_follows_pointer_keys_and_slider(browser: Browser, curve_page: Path) -> None:
    browser.open(curve_page)
    frame = "Number(document.querySelector('[data-player]').dataset.frame)"
    image = "document.querySelector('.player img').src"
    assert browser.run(frame) == 20
    last = browser.run(image)
    box = browser.run(
        "(({x, y, width, height}) => ({x, y, width, height}))(document.querySelector('.plot').getBoundingClientRect())"
    )
    browser.move(box["x"] + box["width"] * 0.25, box["y"] + box["height"] / 2)
    assert browser.run(frame) == 5
    assert browser.run(image) != last
    cursor = browser.run("document.querySelector('.cursor').getBoundingClientRect().x")
    assert cursor == pytest.approx(box["x"] + box["width"] * 0.25, abs=2)
    browser.run("document.querySelector('[data-player]').focus()")
    browser.press("ArrowRight")
    browser.press("ArrowRight")
    browser.press("ArrowLeft")
    assert browser.run(frame) == 6
    assert "frame 6 of 20" in browser.run("document.querySelector('output').textContent")
    browser.run("(s => { s.value = 11; s.dispatchEvent(new Event('input')) })(document.querySelector('input'))")
    assert browser.run(frame) == 11
    assert float(browser.run("document.querySelector('.end.c0 .now').textContent")) > 0.3
    assert browser.complaints == []


@pytest.mark.slow
def test_the_video_plays_to_its_end(browser: Browser, curve_page: Path) -> None:
    browser.open(curve_page)
    frame = "Number(document.querySelector('[data-player]').dataset.frame)"
    playing = "document.querySelector('.playing') !== null"
    assert browser.run(f"document.querySelector('button').click(), [{playing}, {frame}]") == [True, 0]
    over = f"const look = () => {playing} ? setTimeout(look, 20) : done({frame}); look();"
    assert browser.run(f"new Promise(done => {{ {over} }})") == 20
    assert browser.complaints == []


@pytest.mark.slow
def test_every_frame_is_shown_for_its_time(browser: Browser, curve_page: Path) -> None:
    """By a clock of the test's own: a busy browser leaves frames out, as it should."""
    browser.open(curve_page)
    frame = "Number(document.querySelector('[data-player]').dataset.frame)"
    browser.run(
        "(() => { let now = 0, waiting = []; performance.now = () => now;"
        " window.requestAnimationFrame = (call) => waiting.push(call);"
        " window.pass = (milliseconds) => { now += milliseconds; const due = waiting; waiting = [];"
        " due.forEach((call) => call(now)); }; })()"
    )
    browser.run("document.querySelector('button').click()")
    # 21 frames of a tenth of a second, which take 3 s: 150 ms each, and the change lies in the middle between two.
    seen = [browser.run(f"pass({wait}), {frame}") for wait in (50, *[150] * 20)]
    assert seen == list(range(21))
    assert not browser.run("document.querySelector('.playing') !== null")
    assert browser.complaints == []


@pytest.mark.slow
@pytest.mark.parametrize("phone", [True, False])
def test_a_report_opens_without_complaint_and_fits_the_screen(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phone: bool
) -> None:
    quick_words(monkeypatch)
    page = write_report(write_run(tmp_path / "run", write_data(tmp_path / "data", each=1)))
    browser.size(390 if phone else 1100, 900, phone=phone, dark=phone)
    browser.open(page)
    assert browser.complaints == []
    assert browser.run("document.querySelectorAll('[data-player] .line').length") == 16
    rendered = "[...document.querySelectorAll('.line')].every(line => line.getBBox().width > 0)"
    assert browser.run(rendered)
    assert browser.run("document.querySelectorAll('.charts .line').length") == 4
    assert browser.run("document.querySelectorAll('.heat .cell').length") == 2 * 16
    assert browser.run("document.querySelectorAll('.measure .at').length") >= 15
    assert browser.run("document.documentElement.scrollWidth") <= (390 if phone else 1100)
    loaded = "[...document.images].every(image => image.complete && image.naturalWidth > 0)"
    assert browser.run(loaded)


@pytest.mark.slow
@pytest.mark.parametrize("phone", [True, False])
def test_a_comparison_opens_without_complaint_and_fits_the_screen(
    browser: Browser, tmp_path: Path, phone: bool
) -> None:
    rewards: dict[str, list[Reward]] = {
        "seeing": [EncoderReward(RewardModel(SeeingEncoder()), "seeing")],
        "a_package.with_a_long_name.rewards:progress": [FunctionReward(ramp, "progress", progress=True)],
    }
    page = write_comparison(compare(rewards, store(each=2)), tmp_path / "out")
    browser.size(390 if phone else 1100, 900, phone=phone, dark=phone)
    browser.open(page)
    assert browser.complaints == []
    assert browser.run("document.querySelectorAll('table').length") == 4
    assert browser.run("document.querySelectorAll('.heat .cell').length") == 2 * 16
    assert browser.run("document.documentElement.scrollWidth") <= (390 if phone else 1100)
