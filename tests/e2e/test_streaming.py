"""Training on WebDataset shards that a server holds, killed in the middle of a shard and continued."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.e2e.commands import kill_and_resume, start
from tests.forkserver import Forked
from tests.formats.made import memory_store
from tests.formats.remote_made import s3_double, upload, write_shards

pytestmark = pytest.mark.slow

SETTINGS = (
    "--data.decode=always", "--data.size=32", "--data.val_split", "None", "--encoder.image_size=32",
    "--encoder.embed_dim=16", "--train.steps=24", "--train.batch_size=4", "--train.eval_every=0",
    "--train.save_every=2", "--train.workers=1", "--train.trackers",
)  # fmt: skip


def train(folder: Path, url: str, out: str, unfinished: int | None = None) -> Forked:
    return start(folder, "train", "decisionnce_t-demo", "--data", url, "--out", out, *SETTINGS, unfinished=unfinished)


def test_kill_9_inside_a_shard_then_resume_gives_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path / "cache"))
    clips = memory_store(lengths=(9, 12, 7, 10, 8, 11, 9, 12, 10, 7), cameras=("camera",), vectors=False)
    with s3_double(monkeypatch) as bucket:
        url = upload(write_shards(tmp_path / "set", clips, per_shard=5), f"{bucket}/set")
        kill_and_resume(tmp_path, partial(train, tmp_path, url), step=10, last=24)
    assert not list((tmp_path / "cache").glob("*/store.json"))


def test_a_server_that_is_not_there_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_double(monkeypatch):
        pass
    failed = train(tmp_path, "s3://bucket/set", "run")
    _, error = failed.communicate()
    assert failed.returncode == 2
    assert error.strip().startswith("counterpoint: s3://bucket/set: found EndpointConnectionError")
    assert len(error.strip().splitlines()) == 1
