from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from counterpoint.blocks import Block, Engine
from counterpoint.data.episode import Array
from counterpoint.data.resize import resize
from counterpoint.data.statistics import Statistics
from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder
from counterpoint.encoders.embed import Embedder, embed
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.errors import BadInputError
from counterpoint.files import sha256_of
from counterpoint.folder import digests_of, lock
from counterpoint.formats import open_dataset
from tests.formats.made import TorchcodecStandIn, write_lerobot, write_videos


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Episodes of 5, 7 and 3 steps, of two cameras, with state."""
    return write_lerobot(tmp_path / "data")


def save_encoder(folder: Path, seed: int = 0, **config: Any) -> Path:
    torch.manual_seed(seed)
    return DualEncoder(EncoderConfig(image_size=32, embed_dim=8, **config)).save_pretrained(folder)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_encoder(tmp_path / "model")


def rows(out: Path) -> dict[str, Array]:
    table = pq.read_table(out / "blocks")
    vectors = np.stack(table["embedding"].to_numpy(zero_copy_only=False))
    return {"episode": table["episode"].to_numpy(), "step": table["step"].to_numpy(), "embedding": vectors}


def contents(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((out / "blocks").iterdir())}


def test_embeddings_are_the_encoder_s_in_files_that_anyone_reads(data: Path, model: Path, tmp_path: Path) -> None:
    out = embed(data, model=model, out=tmp_path / "out", cameras=("wrist",))
    found, encoder, store = rows(out), DualEncoder.from_pretrained(model), open_dataset(data)
    assert found["episode"].tolist() == [0] * 5 + [1] * 7 + [2] * 3
    assert found["step"].tolist() == [*range(5), *range(7), *range(3)]
    frames = np.concatenate([store.frames(e, np.arange(n), "wrist") for e, n in enumerate(store.lengths)])
    with torch.no_grad():
        expected = encoder.encode_image(torch.from_numpy(frames)).numpy()
    np.testing.assert_allclose(found["embedding"], expected, atol=1e-5)
    schema = pq.read_schema(out / "blocks" / "block-000000.parquet")
    assert [str(schema.field(name).type) for name in ("episode", "step")] == ["int32", "int32"]
    assert str(schema.field("embedding").type) == "fixed_size_list<element: float>[8]"


def test_the_json_says_what_the_files_are(data: Path, model: Path, tmp_path: Path) -> None:
    out = embed(data, model=model, out=tmp_path / "out")
    about = json.loads((out / "embeddings.json").read_text())
    assert about["model"] == digests_of(model)
    assert about["data"] == open_dataset(data).fingerprint
    assert (about["cameras"], about["dimensions"], about["frames"], about["episodes"]) == (["top"], 8, 15, 3)
    (file,) = about["files"]
    digest = sha256_of(out / file.pop("file"))
    assert file == {"episodes": [0, 2], "frames": 15, "sha256": digest}


def test_the_robot_s_state_is_read_where_the_encoder_reads_it(data: Path, tmp_path: Path) -> None:
    state = Statistics(mean=(0.0, 1.0, 2.0), deviation=(1.0, 2.0, 3.0), low=(-9.0,) * 3, high=(9.0,) * 3)
    model = save_encoder(tmp_path / "model", state=state)
    found = rows(embed(data, model=model, out=tmp_path / "out"))["embedding"]
    encoder, store = DualEncoder.from_pretrained(model), open_dataset(data)
    seen, felt = store.frames(0, np.arange(5)), store.state(0)
    assert felt is not None
    with torch.no_grad():
        expected = encoder.encode_image(torch.from_numpy(seen), torch.from_numpy(felt)).numpy()
    np.testing.assert_allclose(found[:5], expected, atol=1e-5)
    with pytest.raises(BadInputError, match="episode 0: found no state"):
        embed(write_videos(tmp_path / "videos"), model=model, out=tmp_path / "none")


@pytest.mark.parametrize("stack", [1, 3])
def test_an_observation_is_the_frames_that_end_with_the_step(stack: int, data: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    encoder = ObservationEncoder(ObservationConfig(kind="drq", size=24, stack=stack, cameras=2, embed_dim=6)).eval()
    encoder.save_pretrained(tmp_path / "model")
    out = embed(data, model=tmp_path / "model", out=tmp_path / "out", cameras=("wrist", "top"), batch_size=2)
    found, store = rows(out)["embedding"], open_dataset(data)
    views = [resize(store.frames(1, np.arange(7), name), 24) for name in ("wrist", "top")]
    for step in range(7):
        steps = np.maximum(np.arange(step - stack + 1, step + 1), 0)
        frames = torch.from_numpy(np.concatenate([view[steps] for view in views]))[None]
        with torch.no_grad():
            np.testing.assert_allclose(found[5 + step], encoder(frames)[0].numpy(), atol=1e-5)


def test_an_interrupted_call_continues_with_the_same_bytes(
    data: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("counterpoint.blocks.SMALLEST", 1)
    whole, out = embed(data, model=model, out=tmp_path / "whole"), tmp_path / "out"
    assert len(contents(whole)) == 3
    work, seen = Embedder.work, list[int]()

    def counted(self: Embedder, block: Block) -> bytes:
        if block.number == 2 and 2 not in seen:
            seen.append(2)
            raise KeyboardInterrupt
        seen.append(block.number)
        return work(self, block)

    monkeypatch.setattr(Embedder, "work", counted)
    with pytest.raises(KeyboardInterrupt):
        embed(data, model=model, out=out)
    assert "files" not in json.loads((out / "embeddings.json").read_text())
    assert sorted(contents(out)) == ["block-000000.parquet", "block-000001.parquet"]
    embed(data, model=model, out=out)
    assert seen == [0, 1, 2, 2]
    assert contents(out) == contents(whole)
    about = [json.loads((folder / "embeddings.json").read_text()) for folder in (whole, out)]
    assert about[0]["files"] == about[1]["files"]


@pytest.mark.slow
def test_processes_write_the_same_bytes(
    data: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("counterpoint.blocks.SMALLEST", 1)
    one = embed(data, model=model, out=tmp_path / "one")
    two = embed(data, model=model, out=tmp_path / "two", engine=Engine(workers=2))
    assert contents(one) == contents(two)


def test_folders_of_something_else_are_refused(data: Path, model: Path, tmp_path: Path) -> None:
    out = embed(data, model=model, out=tmp_path / "out")
    before = contents(out)
    with pytest.raises(BadInputError, match=r"found embeddings with another \[data\]"):
        embed(write_videos(tmp_path / "videos"), model=model, out=out)
    with pytest.raises(BadInputError, match=r"found embeddings with another \[model\]"):
        embed(data, model=save_encoder(tmp_path / "other", seed=1), out=out)
    with pytest.raises(BadInputError, match=r"found embeddings with another \[cameras\]: cameras = \['top'\]"):
        embed(data, model=model, out=out, cameras=("wrist",))
    with pytest.raises(BadInputError, match=r"found embeddings with another \[batch_size\]"):
        embed(data, model=model, out=out, batch_size=3)
    with pytest.raises(BadInputError, match="files that are not embeddings"):
        embed(data, model=model, out=data)
    assert contents(out) == before


def test_two_processes_do_not_write_into_one_folder(data: Path, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / ".embeddings.json.0123456789ab").touch()  # of a process that was killed at its first write
    with lock(out / ".lock", "embeds"), pytest.raises(BadInputError, match=r"a run that process .* embeds"):
        embed(data, model=model, out=out)
    embed(data, model=model, out=out)
    assert sorted(path.name for path in out.iterdir()) == [".lock", "SHA256SUMS", "blocks", "embeddings.json"]


def test_bad_input_is_refused_before_anything_is_written(data: Path, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for options, words in (
        ({"cameras": ("side",)}, "side"),
        ({"cameras": ("top", "wrist")}, "camera: found top, wrist"),
        ({"batch_size": 0}, "--batch-size: found 0"),
        ({"engine": Engine(workers=0)}, "--workers: found 0"),
        ({"precision": "fp8"}, "--precision: found 'fp8'; expected no or bf16"),
        ({"video_backend": "opencv"}, "--video-backend: found 'opencv'; expected pyav or torchcodec"),
        ({"model": tmp_path / "none"}, "no such file"),
    ):
        with pytest.raises(BadInputError, match=words):
            embed(data, **{"model": model, "out": out, **options})  # type: ignore[arg-type]
    torch.manual_seed(0)
    ObservationEncoder(ObservationConfig(kind="none", cameras=0)).save_pretrained(tmp_path / "blind")
    with pytest.raises(BadInputError, match="reads no camera"):
        embed(data, model=tmp_path / "blind", out=out)
    assert not out.exists()


def test_bfloat16_is_close_and_is_told(data: Path, model: Path, tmp_path: Path) -> None:
    whole = rows(embed(data, model=model, out=tmp_path / "whole"))["embedding"]
    out = embed(data, model=model, out=tmp_path / "half", precision="bf16")
    half = rows(out)["embedding"]
    assert half.dtype == np.float32
    assert 0 < np.abs(half - whole).max() < 0.02 * np.abs(whole).max()
    assert json.loads((out / "embeddings.json").read_text())["precision"] == "bf16"
    with pytest.raises(BadInputError, match="another"):
        embed(data, model=model, out=out)


def test_torchcodec_decodes_on_the_device(
    data: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = TorchcodecStandIn.install(monkeypatch).opened
    out = embed(data, model=model, out=tmp_path / "out", video_backend="torchcodec")
    assert {device for _, _, device in opened} == {"cpu"}
    with pytest.raises(BadInputError, match="another"):
        embed(data, model=model, out=out)


def test_a_damaged_file_is_made_again(data: Path, model: Path, tmp_path: Path) -> None:
    out = embed(data, model=model, out=tmp_path / "out")
    before = contents(out)
    file = out / "blocks" / "block-000000.parquet"
    pq.write_table(pq.read_table(file).slice(0, 4), file)
    embed(data, model=model, out=out)
    assert contents(out) == before
