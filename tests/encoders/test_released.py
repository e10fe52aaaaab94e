from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, get_args

import huggingface_hub
import numpy as np
import pytest
import torch
from PIL import Image

import counterpoint
from counterpoint.cli import main
from counterpoint.encoders.convert import Method
from counterpoint.encoders.hub import saved_kind
from counterpoint.encoders.released import RELEASED, is_released
from counterpoint.errors import BadInputError
from counterpoint.provenance import provenance
from counterpoint.training.train import train
from tests.evaluation.fake_run import quick_words, write_data

pytest.importorskip("timm", reason="needs the extra `vision`")
pytest.importorskip("torchvision", reason="needs the extra `clip`")

from tests.encoders.released_files import as_the_authors_embed, write_released

NAME = "r3m-18"


class Site(ThreadingHTTPServer):
    """Serves one content, perhaps with a wrong length or status, and counts the requests."""

    def __init__(self, content: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/uc?export=download&id=abc"
        self.content, self.status, self.longer, self.asked = content, 200, 0, 0


class _Handler(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        self.server.asked += 1
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.content) + self.server.longer))
        self.end_headers()
        self.wfile.write(self.server.content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("authors") / "model.pt"
    write_released(NAME, path)
    return path


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    return tmp_path / "cache" / "released" / NAME


@pytest.fixture
def site(file: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with Site(file.read_bytes()) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        monkeypatch.setitem(RELEASED, NAME, replace(RELEASED[NAME], url=server.url))
        yield server
        server.shutdown()


def held(place: Path) -> set[str]:
    return {path.name for path in place.iterdir()} - {".lock"}


def test_a_released_model_is_fetched_and_converted_once(
    site: Site, file: Path, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = counterpoint.load(NAME)
    digest = hashlib.sha256(site.content).hexdigest()
    said = capsys.readouterr()
    assert f"no digest of model.pt is published; its sha256 {digest} is kept" in said.err
    assert said.out == ""
    assert held(place) == {"SHA256SUMS", "model"}
    assert (place / "SHA256SUMS").read_text() == f"{digest}  model.pt\n"
    assert digest in (place / "model" / "README.md").read_text()
    assert provenance()["downloads"][NAME] == f"sha256 {digest}"
    frames = torch.randint(0, 256, (2, 60, 80, 3), dtype=torch.uint8)
    expected = as_the_authors_embed(write_released(NAME, place / "again.pt"), frames)
    with torch.no_grad():
        torch.testing.assert_close(encoder.encode_image(frames), expected, rtol=1e-4, atol=1e-4)
    site.status = 503
    assert saved_kind(NAME) == "dual_encoder"
    counterpoint.load(NAME, local_files_only=True)
    assert (site.asked, capsys.readouterr().err) == (1, "")


@pytest.mark.parametrize("way", ["the setting", "the argument"])
def test_without_a_network_the_message_says_what_to_put_where(
    way: str, site: Site, file: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", way == "the setting")
    with pytest.raises(BadInputError) as caught:
        counterpoint.load(NAME, local_files_only=way == "the argument")
    assert site.asked == 0
    assert f"download {site.url} elsewhere, put it at {place / 'model.pt'}" in caught.value.hint
    assert held(place) == set()
    (place / "model.pt").write_bytes(file.read_bytes())
    assert counterpoint.load(NAME, local_files_only=True).embed_dim == 512
    assert held(place) == {"SHA256SUMS", "model", "model.pt"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"status": 404}, r"no download from http.*HTTP Error 404"),
        ({"longer": 5}, r"it broke off after \d+ of \d+ bytes"),
        ({"content": b"\n<!DOCTYPE html><title>Quota exceeded</title>"}, r"found a web page"),
        ({"content": b"PK half a file"}, r"http.*, .*model\.pt: found 14 bytes that cannot be read"),
    ],
)
def test_a_failed_download_leaves_nothing(change: dict[str, Any], message: str, site: Site, place: Path) -> None:
    whole = dict(vars(site))
    vars(site).update(change)
    with pytest.raises(BadInputError, match=message):
        counterpoint.load(NAME)
    assert held(place) == set()
    vars(site).update({key: whole[key] for key in change})
    counterpoint.load(NAME)


def test_the_digest_is_checked(site: Site, file: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = hashlib.sha256(site.content).hexdigest()
    place.mkdir(parents=True)
    (place / "SHA256SUMS").write_text(f"{'0' * 64}  model.pt\n")  # of an earlier download
    with pytest.raises(BadInputError, match=f"found sha256 {digest}; expected {'0' * 64}.*remove .*SHA256SUMS"):
        counterpoint.load(NAME)
    monkeypatch.setitem(RELEASED, NAME, replace(RELEASED[NAME], sha256="1" * 64))
    (place / "model.pt").write_bytes(file.read_bytes())
    with pytest.raises(BadInputError, match=f"expected {'1' * 64}.*counterpoint convert r3m-18 FILE"):
        counterpoint.load(NAME)
    assert held(place) == {"SHA256SUMS", "model.pt"}
    monkeypatch.setitem(RELEASED, NAME, replace(RELEASED[NAME], sha256=digest))
    assert counterpoint.load(NAME).embed_dim == 512
    assert site.asked == 1


def test_the_file_of_another_model_is_refused(site: Site, place: Path) -> None:
    place.mkdir(parents=True)
    write_released("r3m-34", place / "model.pt")
    with pytest.raises(BadInputError, match=r"model\.pt: found has unknown backbone\.layer1\.2"):
        counterpoint.load(NAME)
    assert held(place) == {"model.pt"}


def test_names_and_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {one.method for one in RELEASED.values()} <= set(get_args(Method))
    assert RELEASED["liv"].url.endswith("/jasonyma/LIV/resolve/5a29adb8f796b0f91fdd9bc284b31a1829c1eb91/model.pt")
    monkeypatch.chdir(tmp_path)
    assert is_released("vip")
    (tmp_path / "vip").mkdir()
    assert not is_released("vip")
    with pytest.raises(BadInputError, match=r"did you mean 'decisionnce-p'"):
        counterpoint.load("decisionnce_p")


def asked_for(*arguments: object, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.slow
def test_commands_take_the_name(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quick_words(monkeypatch)
    data, out = write_data(tmp_path / "data", each=1), tmp_path / "out"
    arguments = ("reward", data, "--episodes", 0, "--model", NAME, "--out", out)
    assert "found an instruction; expected a goal image" in asked_for(*arguments, capsys=capsys)
    frame = counterpoint.open_dataset(data).frames(0, np.array([9]))[0]
    goal = tmp_path / "goal.png"
    Image.fromarray(frame).save(goal)
    main([*map(str, arguments), "--goal", str(goal)])
    rows = (out / "episode-000000.csv").read_text().splitlines()
    assert float(rows[-1].split(",")[-1]) > float(rows[1].split(",")[-1])
    said = asked_for("label", data, "--model", NAME, "--goal", goal, capsys=capsys)
    assert "found no calibration" in said
    assert "--initialize-from NAME" in said
    assert "--data DATA and --out OUT" in asked_for("report", NAME, capsys=capsys)
    few = ["--data", str(data), "--max-videos", "2"]
    main(["compare", NAME, *few, "--out", str(out)])
    main(["report", NAME, *few, "--out", str(out / "report")])
    alike = [json.loads((place / "compare.json").read_text())["rows"] for place in (out, out / "report")]
    assert alike[0][0]["name"] == NAME
    assert alike[0] == alike[1]
    assert "reads instructions" in asked_for("rank", data, "--model", NAME, "--out", out, capsys=capsys)


@pytest.mark.slow
def test_training_starts_from_the_name_and_calibrates(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_words(monkeypatch)
    data = write_data(tmp_path / "data", each=2)
    settings = {"train.steps": 1, "train.batch_size": 2, "train.trackers": (), "initialize_from": NAME}
    settings |= {"data.size": 256, "data.fit": "shorter"}
    run = train("vip-demo", data, tmp_path / "run", overrides=settings)
    assert counterpoint.RewardModel.from_pretrained(run.folder).check_calibration().form == "goal"
