"""Ids of the Hub, downloads of data sets and uploads; the slow tests use the real client and a Hub on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from counterpoint.errors import BadInputError
from counterpoint.repositories import check_upload, data_folder, hub_id, upload
from tests.formats.made import write_lerobot
from tests.hub_double import HubDouble, client, hub_double
from tests.hub_here import ACCOUNT, hub_api, hub_cache


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("lerobot/pusht", ("lerobot/pusht", None)),
        (Path("lerobot/pusht@v3.0"), ("lerobot/pusht", "v3.0")),
        ("lerobot/pusht@refs/pr/1", ("lerobot/pusht", "refs/pr/1")),
        ("here/pusht", None),
        ("here/pusht@v3.0", None),
        ("pusht", None),
        ("a/b/c", None),
        ("/data/pusht", None),
        ("./lerobot/pusht", None),
        ("hf://datasets/lerobot/pusht", None),
        ("module:function", None),
    ],
)
def test_an_id_is_a_name_without_a_local_folder(
    source: str | Path, named: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here").mkdir()
    assert hub_id(source) == named


def test_an_unknown_data_set_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub_cache(monkeypatch, tmp_path)
    with pytest.raises(BadInputError, match=r"me/absent@v1: found no such path, and no data set of the Hub \(Cannot"):
        data_folder("me/absent", "v1")


@pytest.mark.parametrize("repo_id", ["drawer", "a/b/c", "some one/x", "", "a--b/c", "me/x.git"])
def test_what_is_no_id_is_refused_before_the_hub_is_asked(repo_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi", None)
    with pytest.raises(BadInputError, match=r"--push: found .*; expected OWNER/NAME"):
        check_upload(repo_id, "--push", "later")


def role(name: str) -> dict[str, Any]:
    return ACCOUNT | {"auth": {"accessToken": {"role": name}}}


@pytest.mark.parametrize(
    ("account", "repo_id", "found"),
    [
        (None, "me/x", r"no account of the Hub \(offline mode is enabled\).*upload it by hand"),
        (role("read"), "me/x", "a token that may only read"),
        (role("write"), "else/x", "expected an owner that this account may write to: me, lab"),
    ],
)
def test_an_account_that_may_not_upload_is_refused(
    account: dict[str, Any] | None, repo_id: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_api(monkeypatch).account = account
    with pytest.raises(BadInputError, match=found):
        check_upload(repo_id, "--push", "upload it by hand")


@pytest.mark.parametrize(
    ("account", "repo_id"),
    [(role("write"), "me/x"), (role("write"), "lab/x"), (role("fineGrained"), "else/x"), ({"name": "me"}, "me/x")],
)
def test_an_account_that_may_upload_passes(
    account: dict[str, Any], repo_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = hub_api(monkeypatch)
    api.account = account
    check_upload(repo_id, "--push", "later")
    assert not api.files  # no repository is made before the work


def test_a_tag_is_moved_to_the_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = hub_api(monkeypatch)
    (tmp_path / "file").write_bytes(b"1")
    for _ in range(2):
        assert (
            upload(tmp_path, "me/x", kind="dataset", message="m", hint="h", tag="v3.0") == "https://hub/me/x/commit/1"
        )
    assert api.tags == {"me/x": ["v3.0"]}
    assert api.files == {"dataset:me/x": {"file": b"1"}}


def test_an_upload_that_fails_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub_api(monkeypatch).full = True
    (tmp_path / "file").write_bytes(b"1")
    with pytest.raises(
        BadInputError, match=r"me/x: found an upload that failed \(the storage is full\); .*Hint: later$"
    ):
        upload(tmp_path / "file", "me/x", kind="dataset", message="m", hint="later")


@pytest.fixture
def hub() -> Iterator[HubDouble]:
    with hub_double() as served:
        yield served


READ = """
import sys
from counterpoint.formats import open_dataset
from counterpoint.formats.remote import absolute
from counterpoint.provenance import provenance
for source in sys.argv[1:] or ["someone/cups", "someone/cups@v3.0"]:
    store = open_dataset(source)
    print(len(store.episodes), store.frames(0, [0]).shape, absolute(source), provenance()["downloads"])
"""


@pytest.mark.slow
def test_a_data_set_is_downloaded_at_its_revision_and_then_works_offline(hub: HubDouble, tmp_path: Path) -> None:
    old = hub.keep("datasets/someone/cups", write_lerobot(tmp_path / "old"), tag="v3.0")
    new = hub.keep("datasets/someone/cups", write_lerobot(tmp_path / "new", image_cameras=["top", "wrist"]))
    assert old != new
    done = client(READ, hub.url, tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert f"someone/cups@{new} {{'datasets/someone/cups': '{new}'}}" in first
    assert f"someone/cups@{old} {{'datasets/someone/cups': '{old}'}}" in second
    asked = len(hub.asked)
    again = client(READ, hub.url, tmp_path, HF_HUB_OFFLINE="1")
    assert again.stdout == done.stdout, again.stderr
    assert len(hub.asked) == asked


UPLOAD = """
from pathlib import Path
from counterpoint.repositories import check_upload, upload
check_upload("someone/cups", "--push", "later")
print(upload(Path("cups"), "someone/cups", kind="dataset", message="m", hint="h", tag="v3.0"))
print(upload(Path("x.parquet"), "someone/cups", kind="dataset", message="m", hint="h", place="signals/x.parquet"))
"""


@pytest.mark.slow
def test_files_and_folders_are_uploaded_by_the_real_client(hub: HubDouble, tmp_path: Path) -> None:
    data = write_lerobot(tmp_path / "cups")
    (tmp_path / "x.parquet").write_bytes(b"labels")
    done = client(UPLOAD, hub.url, tmp_path)
    assert done.returncode == 0, done.stderr
    files = hub.repos["datasets/someone/cups"]
    assert files["meta/info.json"] == (data / "meta/info.json").read_bytes()
    assert files["signals/x.parquet"] == b"labels"
    first, second = done.stdout.splitlines()
    assert first == f"{hub.url}/datasets/someone/cups/commit/{hub.tags['datasets/someone/cups']['v3.0']}"
    assert second == f"{hub.url}/datasets/someone/cups/commit/{hub.commit('datasets/someone/cups')}"
    again = client(UPLOAD, hub.url, tmp_path)
    assert again.returncode == 0, again.stderr
    assert hub.tags["datasets/someone/cups"]["v3.0"] != first.rpartition("/")[2]  # the tag moved: the labels stay


@pytest.mark.slow
def test_a_token_that_the_hub_refuses_is_told_before_the_work(hub: HubDouble, tmp_path: Path) -> None:
    done = client(UPLOAD, hub.url, tmp_path, token="hf_wrong")
    assert "BadInputError: --push: found no account of the Hub (Invalid user token." in done.stderr
    hub.role = "read"
    assert "a token that may only read" in client(UPLOAD, hub.url, tmp_path).stderr
    assert not hub.repos
