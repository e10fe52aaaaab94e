"""`counterpoint embed DATA --model RUN --out FOLDER`: the embedding of every frame of every episode, as parquet.

OUT/blocks/block-000000.parquet ...  `episode` and `step` (int32), `embedding` (a list of D float32), in order
OUT/embeddings.json                  the format, the model's digests, the data's fingerprint, cameras, D, and the digest
                                     of each file; `files` is missing until all files are written
OUT/SHA256SUMS                       the files' digests, added when each file is written

A dual encoder's embedding of a frame is the result of `encode_image`: raw, not normalised, including the robot's state
if the encoder reads it. An observation encoder's embedding is the vector that a policy would act on. For each frame,
the encoder gets the last S frames of all cameras, up to and including this one; before the episode's start, the first
frame is repeated. It also gets the episode's instruction if it takes one. Frames are resized to the encoder's size as
in the training store.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from jaxtyping import Float
from torch import Tensor
from tyro.conf import Positional, arg

from counterpoint.blocks import HERE, Block, BlockFiles, Engine, blocks_of, work_through
from counterpoint.data.episode import Array
from counterpoint.data.resize import resize
from counterpoint.data.store import EpisodeStore, camera_images, camera_names, frame_batches, states_of
from counterpoint.encoders.dual import DualEncoder
from counterpoint.encoders.features import frames_at_once
from counterpoint.encoders.hub import load, saved_digests, saved_kind
from counterpoint.encoders.observation import ObservationEncoder
from counterpoint.errors import require
from counterpoint.files import write_atomically
from counterpoint.folder import FORMAT, claim, digests_of
from counterpoint.formats import open_dataset
from counterpoint.formats.torchcodec import VideoBackend, decoded_by
from counterpoint.parameter_types import Computes, Model, Name, Names, Number
from counterpoint.provenance import provenance

ABOUT = "embeddings.json"
OBSERVATIONS = 64
"""Number of observations per forward pass."""
Precision = Literal["no", "bf16"]
"""`no` (float32), or `bf16` for matrix products and convolutions in bfloat16."""


def in_precision(device: str, precision: Precision) -> AbstractContextManager[object]:
    """Return a context in which a device's matrix products and convolutions have this precision.

    Raises:
        BadInputError: If the precision is not known.
    """
    require(precision in ("no", "bf16"), "--precision", repr(precision), "no or bf16", "choose one")
    return torch.autocast(torch.device(device).type, torch.bfloat16, enabled=precision == "bf16")


@dataclass(frozen=True)
class Embedding:
    """The settings that a process needs to embed episodes.

    Attributes:
        data: The data set.
        model: A run, the folder of a saved encoder or a Hub id.
        cameras: The cameras to embed: one for a dual encoder; for an observation encoder, as many as it was trained
            with.
        device: The device that computes.
        batch_size: Number of frames, or of observations, that are encoded at once.
        dialect: Dialect of HDF5 files, if the files do not identify it.
        precision: Precision of matrix products and convolutions.
        video_backend: The library that decodes videos; torchcodec decodes on `device`.
    """

    data: Path
    model: str
    cameras: tuple[str, ...]
    device: str
    batch_size: int
    dialect: str | None = None
    precision: Precision = "no"
    video_backend: VideoBackend = "pyav"


def embed(
    data: Positional[Annotated[str | Path, arg(metavar="PATH")]],
    *,
    model: Model,
    out: Annotated[str | Path, arg(metavar="PATH")],
    cameras: Names = (),
    device: Computes = "cpu",
    batch_size: Number = None,
    precision: Precision = "no",
    video_backend: VideoBackend = "pyav",
    engine: Engine = HERE,
    dialect: Name = None,
) -> Path:
    """Write the embedding of every frame of a data set as parquet. Repeating an interrupted call resumes it.

    Time on two cores: 2,600 frames per second with the demo's encoder, 87 with EfficientNet-Lite0. Disk: four bytes for
    each number of an embedding.

    Args:
        data: A data set of any format.
        model: A run's folder, a folder of saved weights, a Hub id or the name of a released model, such as liv.
        out: The folder to write: blocks/*.parquet and embeddings.json.
        cameras: The camera to embed, or all cameras of an observation encoder; by default the data's first.
        device: The device that computes, such as cuda.
        batch_size: Number of frames encoded at once; by default a number that suits the model.
        precision: `no` (float32), or `bf16`, which is faster on processors and GPUs with bfloat16 and less exact.
        video_backend: The library that decodes videos. torchcodec decodes on `device`; on a graphics card its colours
            differ by rounding.
        engine: The processes that compute blocks of episodes; by default threads of this process.
        dialect: The dialect of HDF5 files, if the files do not identify it: see `counterpoint data info`.

    Returns:
        The folder.

    Raises:
        BadInputError: Before anything is computed, if data, model or arguments cannot be used, or the folder holds
            something else. Later, if an episode is damaged; finished blocks are kept.
        MissingExtraError: If Ray or torchcodec is asked for and not installed.
    """
    data, out = Path(data), Path(out)
    engine.check()
    require(batch_size is None or batch_size > 0, "--batch-size", batch_size, "1 or more", "leave it out")
    store, encoder = open_dataset(data, dialect=dialect), _load(str(model), device)
    needed, count = (
        (1, frames_at_once(encoder)) if isinstance(encoder, DualEncoder) else (encoder.config.cameras, OBSERVATIONS)
    )
    views = camera_names(tuple(cameras) or None, store, needed)
    require(views, model, "an encoder that reads no camera", "one that embeds images", "choose another model")
    job = Embedding(data, str(model), views, device, batch_size or count, dialect, precision, video_backend)
    embedder = Embedder(job, store, encoder)
    work = decoded_by(video_backend, device, embedder.work)
    files = BlockFiles(out, ".parquet", blocks_of(store.lengths))
    about = {
        "model": saved_digests(job.model),
        "data": store.fingerprint,
        "cameras": list(job.cameras),
        "batch_size": job.batch_size,
        "precision": job.precision,
        "video_backend": job.video_backend,
    }
    hint = "name a new folder, or give what the folder was begun with"
    with claim(out, ABOUT, about, what="embeddings", does="embeds", hint=hint):
        started, total = time.perf_counter(), int(store.lengths.sum())
        left = work_through(files, work, partial(open_embedder, job), engine, title="Embedding", device=device)
        seconds = time.perf_counter() - started
        noted, named = digests_of(out), [(block, files.name(block)) for block in files.blocks]
        digests = [
            {"file": name, "episodes": [one.first, one.end - 1], "frames": one.frames, "sha256": noted[name]}
            for one, name in named
        ]
        sizes = {"frames": total, "episodes": len(store.episodes), "dimensions": embedder.dimensions(files)}
        whole = {"format": FORMAT, **about, **sizes, "files": digests, "provenance": provenance()}
        write_atomically(out / ABOUT, json.dumps(whole, indent=1) + "\n")
    speed = f"; {left / seconds:.0f} frames a second" if left else ""
    print(f"Embedded {len(store.episodes)} episodes, {total} frames in {len(digests)} files{speed}")
    return out


def _load(model: str, device: str) -> DualEncoder | ObservationEncoder:
    kind = saved_kind(model)
    hint = "embed with the encoder that a policy started from"
    require(kind in ("dual_encoder", "observation_encoder"), model, f"kind {kind!r}", "an encoder", hint)
    encoder: DualEncoder | ObservationEncoder = load(model, map_location=device)
    return encoder


class Embedder:
    """An open encoder and an open data set.

    Args:
        job: The settings.
        store: The data set.
        encoder: The encoder of `job.model`.

    Raises:
        BadInputError: If the encoder reads the robot's state and the data have none, or the precision is not known.
    """

    def __init__(self, job: Embedding, store: EpisodeStore, encoder: DualEncoder | ObservationEncoder) -> None:
        self.job, self.store, self.encoder = job, store, encoder
        in_precision(job.device, job.precision)  # refuses a precision that is not known
        if isinstance(encoder, DualEncoder) and encoder.reads_state:
            states_of(store, 0)  # raises before anything is decoded if there is no state

    def work(self, block: Block) -> bytes:
        """Return a parquet file with the embeddings of a block's frames."""
        with in_precision(self.job.device, self.job.precision):
            rows = torch.cat(list(self._vectors(block.episodes))).numpy()
        lengths = [self.store.episodes[episode].length for episode in block.episodes]
        table = pa.table(
            {
                "episode": np.repeat(np.arange(block.first, block.end, dtype=np.int32), lengths),
                "step": np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]),
                "embedding": pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1]),
            }
        )
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd", use_dictionary=["episode"], write_page_checksum=True)
        return bytes(sink.getvalue())

    def dimensions(self, files: BlockFiles) -> int:
        """Return D, the number of dimensions, from the first file."""
        return int(pq.read_schema(files.path(files.blocks[0])).field("embedding").type.list_size)

    @torch.no_grad()
    def _vectors(self, episodes: Sequence[int]) -> Iterator[Float[Tensor, "n D"]]:
        job, encoder = self.job, self.encoder
        if isinstance(encoder, ObservationEncoder):
            for episode in episodes:
                yield from observations(encoder, self.store, episode, job.cameras, job.batch_size)
            return
        for batch in frame_batches(self.store, episodes, job.cameras, job.batch_size, with_state=encoder.reads_state):
            state = None if batch.state is None else torch.from_numpy(batch.state).float().to(job.device)
            yield encoder.encode_image(torch.from_numpy(batch.frames).to(job.device), state).float().cpu()


@torch.no_grad()
def observations(
    encoder: ObservationEncoder, store: EpisodeStore, episode: int, cameras: Sequence[str], count: int
) -> Iterator[Float[Tensor, "n D"]]:
    """Yield the embeddings of an episode's steps, `count` at a time.

    Args:
        encoder: The encoder, in evaluation mode.
        store: The store; its frames are resized to the encoder's size. If an observation needs frames from before the
            episode's start, the first frame is repeated.
        episode: Number of the episode.
        cameras: The encoder's cameras in order.
        count: Number of steps per forward pass.
    """
    info, S, size = store.episodes[episode], encoder.config.stack, encoder.config.size
    device = next(encoder.parameters()).device
    told = [info.instruction] if encoder.takes_instruction else None
    before: Array | None = None
    for first in range(0, info.length, count):
        steps = np.arange(first, min(info.length, first + count))
        images = camera_images(store, episode, steps, cameras)
        n, C = images.shape[:2]
        images = resize(images.reshape(n * C, *images.shape[2:]), size).reshape(n, C, size, size, 3)
        window = np.concatenate([images[:1].repeat(S - 1, 0) if before is None else before, images])
        before = window[len(window) - (S - 1) :]
        stacks = torch.from_numpy(window)[torch.arange(n)[:, None] + torch.arange(S)]
        # [n, S, C, H, W, 3] -> the S frames of the first camera, then the S frames of the next camera.
        yield encoder(stacks.transpose(1, 2).flatten(1, 2).to(device), told).float().cpu()


def open_embedder(job: Embedding) -> Callable[[Block], bytes]:
    """Open model and data in another process, and return the function that embeds a block."""
    embedder = Embedder(job, open_dataset(job.data, dialect=job.dialect), _load(job.model, job.device))
    return decoded_by(job.video_backend, job.device, embedder.work)
