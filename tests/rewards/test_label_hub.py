"""Labels of data sets of the Hub, and their upload."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from counterpoint.encoders.dual import DualEncoder
from counterpoint.errors import BadInputError
from counterpoint.formats.lerobot.layout import read_info
from counterpoint.rewards.label import label
from tests.evaluation.fake_run import quick_words, write_data
from tests.hub_here import COMMIT, ApiDouble, hub_api, hub_cache
from tests.rewards.labelling import save_model
from tests.rewards.test_label import columns


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sixteen episodes of ten frames."""
    quick_words(monkeypatch)
    return write_data(tmp_path / "data")


@pytest.fixture
def model(data: Path, tmp_path: Path) -> Path:
    return save_model(tmp_path / "drawer", data)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> ApiDouble:
    return hub_api(monkeypatch)


@pytest.fixture
def by_id(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The id of a data set of the Hub; the working folder is empty."""
    hub_cache(monkeypatch, tmp_path / "hub").add("lab/balls", data, "v3.0")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return Path("lab/balls@v3.0")


def test_a_data_set_of_the_hub_is_labelled_and_gets_its_labels(
    data: Path, by_id: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], api: ApiDouble
) -> None:
    path = label(by_id, model=model, anyway=True, push="lab/balls")
    assert path == Path("drawer_progress.parquet")
    assert [file.name for file in Path().iterdir()] == ["drawer_progress.parquet"]
    assert api.files == {"dataset:lab/balls": {"drawer_progress.parquet": path.read_bytes()}}
    assert not api.tags
    assert "Uploaded to https://hub/lab/balls/commit/1" in capsys.readouterr().out
    local = columns(label(data, model=model, anyway=True))
    for name, values in columns(path).items():
        np.testing.assert_array_equal(values, local[name])
    about = json.loads(pq.read_schema(path).metadata[b"counterpoint"])
    assert about["provenance"]["downloads"]["datasets/lab/balls"] == COMMIT


def test_signals_of_a_data_set_of_the_hub_name_its_commit(by_id: Path, model: Path, api: ApiDouble) -> None:
    path = label(by_id, model=model, anyway=True, signals=True, push="me/balls")
    assert path == Path("reward_signals/drawer.parquet")
    assert [*api.files["dataset:me/balls"]] == ["reward_signals/drawer.parquet"]
    about = json.loads(pq.read_schema(path).metadata[b"lerobot.scores.provenance"])["dataset"]
    assert (about["repo_id"], about["revision"]) == ("lab/balls", COMMIT)


def test_a_copy_is_uploaded_under_the_tag_that_lerobot_looks_for(by_id: Path, model: Path, api: ApiDouble) -> None:
    copy = label(by_id, model=model, anyway=True, feature="next.progress", out=Path("copy"), push="me/balls")
    files = {file.relative_to(copy).as_posix() for file in copy.rglob("*") if file.is_file()}
    assert set(api.files["dataset:me/balls"]) == files
    assert api.tags == {"me/balls": ["v3.0"]}
    assert not any(file.is_symlink() for file in copy.rglob("*"))
    assert "next.progress" in read_info(copy).features


def test_labels_outlive_an_upload_that_fails(by_id: Path, model: Path, api: ApiDouble) -> None:
    api.full = True
    later = "hf upload me/balls drawer_progress.parquet drawer_progress.parquet --repo-type dataset"
    with pytest.raises(BadInputError, match=rf"an upload that failed .*upload them later: {later}"):
        label(by_id, model=model, anyway=True, push="me/balls")
    assert len(columns(Path("drawer_progress.parquet"))["index"]) == 160
    tagged = r"hf upload me/balls copy \. --repo-type dataset && hf repos tag create me/balls v3\.0 --repo-type dataset"
    with pytest.raises(BadInputError, match=tagged):
        label(by_id, model=model, anyway=True, feature="next.progress", out=Path("copy"), push="me/balls")
    assert read_info(Path("copy")).episodes == 16


@pytest.mark.parametrize(("push", "said"), [("balls", "OWNER/NAME"), ("else/balls", "may write to: me, lab")])
def test_an_upload_that_cannot_succeed_is_refused_first(
    push: str, said: str, by_id: Path, model: Path, api: ApiDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DualEncoder, "encode_image", None)
    with pytest.raises(BadInputError, match=f"--push: .*{said}"):
        label(by_id, model=model, anyway=True, push=push)
    assert not list(Path().iterdir())
