"""Training on WebDataset shards that a server holds, killed in the middle of a shard and continued."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from counterpoint.training.run import list_checkpoints
from tests.e2e.commands import start
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
        whole = train(tmp_path, url, "whole")
        _, error = whole.communicate()
        assert whole.returncode == 0, error
        killed = train(tmp_path, url, "cut", unfinished=24)
        while not any(path.name >= "step-00000010" for path in list_checkpoints(tmp_path / "cut" / "checkpoints")):
            assert killed.poll() is None, killed.communicate()[1]
            time.sleep(0.02)
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
        again = train(tmp_path, url, "cut")
        out, error = again.communicate()
        assert again.returncode == 0, error
        assert "Resumed from" in out
    expected, found = (load_file(tmp_path / run / "model" / "model.safetensors") for run in ("whole", "cut"))
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        assert torch.equal(value, found[name]), name
    assert not list((tmp_path / "cache").glob("*/store.json"))


def test_a_server_that_is_not_there_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_double(monkeypatch):
        pass
    failed = train(tmp_path, "s3://bucket/set", "run")
    _, error = failed.communicate()
    assert failed.returncode == 2
    assert error.strip().startswith("counterpoint: s3://bucket/set: found EndpointConnectionError")
    assert len(error.strip().splitlines()) == 1
