from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from counterpoint import blocks, progress
from counterpoint.blocks import Block, BlockFiles, Engine, Opener, Work, blocks_of, work_through
from counterpoint.errors import BadInputError, MissingExtraError
from counterpoint.folder import write_part
from tests.ray_nodes import two_nodes

LENGTHS = np.full(40, 100)
"""Forty episodes, fourteen blocks."""


def content(block: Block) -> bytes:
    return json.dumps([block.number, block.first, block.end, block.frames]).encode()


def open_plain() -> Work:
    return content


def open_counting(folder: Path) -> Work:
    """Note every block that is computed."""

    def work(block: Block) -> bytes:
        (folder / f"{block.number}-{os.urandom(4).hex()}").touch()
        return content(block)

    return work


def open_killed_always() -> Work:
    def work(block: Block) -> bytes:
        if block.number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return content(block)

    return work


def open_damaged() -> Work:
    raise BadInputError("data", "a damaged file", "a whole one", "copy it again")


def files_in(folder: Path) -> BlockFiles:
    return BlockFiles(folder, ".json", blocks_of(LENGTHS))


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture
def expected(tmp_path: Path) -> dict[str, bytes]:
    assert work_through(files_in(tmp_path / "expected"), content, open_plain, Engine(), title="Working") == 4000
    return written(tmp_path / "expected" / "blocks")


def test_blocks_are_full_in_order_and_decided_by_the_data_alone() -> None:
    found = blocks_of(LENGTHS)
    assert [block.number for block in found] == list(range(14))
    assert [episode for block in found for episode in block.episodes] == list(range(40))
    assert {block.frames for block in found[:-1]} == {300}
    assert sum(block.frames for block in found) == 4000
    assert len(blocks_of(np.full(1000, 64))) == 63  # 64000 frames: each the first multiple of 64 from 1000 on
    assert blocks_of(np.array([5, 10**6, 7]))[0].episodes == range(2)
    assert blocks_of(np.full(10**6, 100))[0].frames == 8200


@pytest.mark.parametrize(("gpu", "device"), [(True, "cpu"), (True, "cuda"), (False, "cpu")])
def test_long_work_on_the_processor_names_the_option_that_uses_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, gpu: bool, device: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(progress, "LONG", 0.0)
    work_through(files_in(tmp_path), content, open_plain, Engine(), title="Labelling", device=device)
    assert ("; --device cuda makes it shorter" in capsys.readouterr().err) == (gpu and device == "cpu")


def test_finished_blocks_are_kept_and_leftovers_removed(tmp_path: Path, expected: dict[str, bytes]) -> None:
    files, notes = files_in(tmp_path / "out"), tmp_path / "notes"
    notes.mkdir()
    write_part(files.root, files.name(files.blocks[3]), expected["block-000003.json"])
    files.path(files.blocks[5]).write_bytes(expected["block-000005.json"])  # killed before its line in the journal
    write_part(files.root, files.name(files.blocks[7]), expected["block-000007.json"])
    files.path(files.blocks[7]).write_bytes(b"damaged")
    (files.folder / ".block-000004.json.0123456789ab").write_bytes(b"half")
    assert work_through(files, open_counting(notes), open_plain, Engine(), title="Working") == 3700
    assert len(list(notes.iterdir())) == 13
    assert written(files.folder) == expected
    assert work_through(files, open_counting(notes), open_plain, Engine(), title="Working") == 0


def test_files_of_no_block_are_reported(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    files.folder.mkdir()
    (files.folder / "block-000099.json").touch()
    with pytest.raises(BadInputError, match=r"block-000099.json: found another file; expected the files of 14 blocks"):
        work_through(files, content, open_plain, Engine(), title="Working")


@pytest.mark.slow
def test_processes_write_the_same(tmp_path: Path, expected: dict[str, bytes]) -> None:
    files = files_in(tmp_path / "out")
    work_through(files, content, open_plain, Engine(workers=2), title="Working")
    assert written(files.folder) == expected


def test_a_block_that_kills_its_workers_is_named(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    files.folder.mkdir()
    for _ in range(blocks.ATTEMPTS):
        files.begin(files.blocks[1])
    with pytest.raises(BadInputError, match="episodes 3 to 5: found 4 workers that died over them"):
        files.begin(files.blocks[1])
    files.clean()
    files.begin(files.blocks[1])


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (Engine(workers=0), "--workers: found 0"),
        (Engine(address="127.0.0.1:6379"), "--address: found '127.0.0.1:6379'; expected none, without Ray"),
        (Engine("ray", address="127.0.0.1:1"), "cluster 127.0.0.1:1: found nothing that answers"),
        (Engine("ray", address="nowhere"), "cluster nowhere: found no address; expected HOST:PORT"),
    ],
)
def test_engines_that_cannot_work_are_refused(engine: Engine, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "import_extra", lambda module, extra: None)
    with pytest.raises(BadInputError, match=words):
        engine.check()


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ray", "ray.data"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"\[ray\]"):
        Engine("ray").check()


def test_without_a_cluster_ray_means_processes_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def in_processes(files: BlockFiles, opener: Opener, workers: int, todo: Sequence[Block]) -> Iterator[int]:
        asked.append(workers)
        return blocks._in_threads(files, opener(), todo, 1)

    monkeypatch.setattr(blocks, "_in_processes", in_processes)
    monkeypatch.setattr(blocks, "_cores", lambda: 2)
    files = files_in(tmp_path / "here")
    work_through(files, content, open_plain, Engine("ray"), title="Working")
    assert asked == [2]
    assert not files.left()


@pytest.mark.release
def test_ray_hands_on_bad_input_and_names_blocks_that_kill(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra `ray`")
    with two_nodes() as address:
        check_on_ray(Engine("ray", workers=2, address=address), tmp_path)


def check_on_ray(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="data: found a damaged file"):
        work_through(files_in(tmp_path / "damaged"), content, open_damaged, engine, title="Working")
    # Ray would end this process if one of them went on.
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("StreamingExecutor", "iter_"))]
    files = files_in(tmp_path / "killed")
    with pytest.raises(BadInputError, match="episodes 3 to 5: found 4 workers that died over them"):
        work_through(files, content, open_killed_always, engine, title="Working")
    assert files.left()
    work_through(files, content, open_plain, Engine(), title="Working")
    assert not files.left()
