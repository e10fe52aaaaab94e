"""Data sets at URLs for tests: WebDataset shards, copies in fsspec's memory file system, and an S3 double."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import fsspec
import numpy as np
import pytest
from PIL import Image

from counterpoint.data.store import EpisodeStore
from counterpoint.formats.video import encode_video

__all__ = ["s3_double", "upload", "write_shards"]


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def write_shards(root: Path, store: EpisodeStore, *, per_shard: int = 2, images: bool = False) -> Path:
    """Write each episode of a store with one camera as a video, or as lossless images; returns `root`."""
    root.mkdir(parents=True, exist_ok=True)
    several = len(store.cameras) > 1
    for number, info in enumerate(store.episodes):
        with tarfile.open(root / f"clips-{number // per_shard:06d}.tar", "a") as tar:
            for camera in store.cameras:
                frames, name = store.frames(number, np.arange(info.length), camera), f"{number:04d}"
                name += f".{camera}" if several else ""
                if images:
                    for step, frame in enumerate(frames):
                        data = io.BytesIO()
                        Image.fromarray(frame).save(data, "PNG")
                        add(tar, f"{name}.{step:06d}.png", data.getvalue())
                else:
                    video = root / "part.mp4"
                    encode_video(video, frames, info.fps)
                    add(tar, f"{name}.mp4", video.read_bytes())
                    video.unlink()
            add(tar, f"{number:04d}.json", json.dumps({"instruction": info.instruction, "fps": info.fps}).encode())
            if (state := store.state(number)) is not None:
                data = io.BytesIO()
                np.save(data, state)
                add(tar, f"{number:04d}.state.npy", data.getvalue())
    return root


def upload(folder: Path, url: str, **options: Any) -> str:
    """Copy a folder to a URL; returns the URL."""
    system, place = fsspec.core.url_to_fs(url, **options)
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            system.pipe_file(f"{place}/{path.relative_to(folder).as_posix()}", path.read_bytes())
    return url


@contextmanager
def s3_double(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run a server that speaks S3, with an empty bucket, and name it to every S3 client; yields the bucket's URL."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0, verbose=False)
    s3fs = pytest.importorskip("s3fs")
    server.start()
    host, port = server.get_host_and_port()
    known = {"AWS_ACCESS_KEY_ID": "double", "AWS_SECRET_ACCESS_KEY": "double", "AWS_DEFAULT_REGION": "us-east-1"}
    for name, value in (known | {"AWS_ENDPOINT_URL": f"http://{host}:{port}"}).items():
        monkeypatch.setenv(name, value)
    # All servers of a process share what they hold.
    urlopen(Request(f"http://{host}:{port}/moto-api/reset", method="POST")).close()
    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().mkdir("bucket")
    try:
        yield "s3://bucket"
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
        server.stop()
