"""Training on data sets of the Hub, and the upload of the trained model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from accelerate import Accelerator

from counterpoint.cli import main
from counterpoint.encoders.hub import load
from counterpoint.errors import BadInputError
from counterpoint.formats import open_dataset
from counterpoint.training.agent import OfflineDataConfig, open_replay
from counterpoint.training.train import train
from tests.conftest import write_robot_set
from tests.evaluation.fake_run import quick_words
from tests.formats.made import write_lerobot
from tests.hub_here import COMMIT, OTHER, ApiDouble, hub_api, hub_cache

SETTINGS: dict[str, Any] = {
    "encoder.image_size": 32,
    "encoder.embed_dim": 8,
    "train.steps": 2,
    "train.batch_size": 4,
    "train.eval_every": 0,
    "train.trackers": [],
    "data.folds": 0,
}


@pytest.fixture
def by_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of a data set of the Hub."""
    quick_words(monkeypatch)
    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path / "cache"))
    data = write_robot_set(tmp_path / "data", 8, 32, {"train": "0:6", "val": "6:8"})
    hub_cache(monkeypatch, tmp_path / "hub").add("lab/squares", data)
    monkeypatch.chdir(tmp_path)
    return "lab/squares"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> ApiDouble:
    return hub_api(monkeypatch)


def trained(data: str, out: Path, **options: Any) -> Path:
    return train("decisionnce_t-demo", data, out, overrides=SETTINGS, **options).folder


def test_a_run_on_a_data_set_of_the_hub_records_its_commit(by_id: str, tmp_path: Path) -> None:
    config = json.loads((trained(by_id, tmp_path / "run") / "config.json").read_text())
    assert config["data"]["path"] == f"lab/squares@{COMMIT}"
    assert config["provenance"]["downloads"]["datasets/lab/squares"] == COMMIT


def test_a_trained_model_is_uploaded_with_its_card(
    by_id: str, api: ApiDouble, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(by_id, tmp_path / "run", push="me/squares")
    files = api.files["model:me/squares"]
    assert "Uploaded to https://hub/me/squares/commit/1" in capsys.readouterr().out
    assert files["model.safetensors"] == (run / "model" / "model.safetensors").read_bytes()
    assert 'counterpoint.load("me/squares")' in files["README.md"].decode()
    assert "me/squares" not in (run / "config.json").read_text()
    trained(by_id, run, push="lab/again")  # the run is the same
    assert api.files["model:lab/again"]["model.safetensors"] == files["model.safetensors"]
    assert "Resumed from" in capsys.readouterr().out


def test_a_run_outlives_an_upload_that_fails(by_id: str, api: ApiDouble, tmp_path: Path) -> None:
    api.full = True
    with pytest.raises(BadInputError, match=r"the run is complete; .*: counterpoint push run me/squares"):
        trained(by_id, Path("run"), push="me/squares")
    api.full = False
    load("run")
    main(["push", "run", "me/squares"])
    assert "model.safetensors" in api.files["model:me/squares"]


@pytest.mark.parametrize(("push", "said"), [("squares", "OWNER/NAME"), ("else/squares", "may write to: me, lab")])
def test_an_upload_that_cannot_succeed_is_refused_first(
    push: str, said: str, by_id: str, api: ApiDouble, tmp_path: Path
) -> None:
    with pytest.raises(BadInputError, match=f"--push: .*{said}"):
        trained(by_id, tmp_path / "run", push=push)
    assert not (tmp_path / "run").exists()
    assert not api.files


def test_only_the_first_process_uploads(
    by_id: str, api: ApiDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Accelerator, "is_main_process", property(lambda self: False))
    api.account = None  # nor does another one ask who the account is
    trained(by_id, tmp_path / "run", push="me/squares")
    assert not api.files


def test_the_command_takes_an_id_and_a_repository(
    by_id: str, api: ApiDouble, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = [f"--{name}={value}" for name, value in SETTINGS.items() if name != "train.trackers"]
    words = ["--data", f"{by_id}@{COMMIT}", "--out", "run", "--push", "me/squares", "--train.trackers"]
    main(["train", "decisionnce_t-demo", *words, *settings])
    assert "Uploaded to https://hub/me/squares/commit/1" in capsys.readouterr().out
    assert "model:me/squares" in api.files


def test_an_agent_learns_from_a_data_set_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, cache = write_lerobot(tmp_path / "data"), hub_cache(monkeypatch, tmp_path / "hub")
    cache.add("lab/arms", data, commit=OTHER)
    buffer = open_replay("lab/arms", OfflineDataConfig())
    assert buffer.spaces.action == open_dataset(data).actions(0).shape[1]  # type: ignore[union-attr]
    with pytest.raises(BadInputError, match="Minari data set lab/arms-v2"):  # an id of Minari, as before
        open_replay("lab/arms-v2", OfflineDataConfig())
