from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

from counterpoint.encoders.weights import (
    fit_weights,
    read_torch_file,
    read_weights,
    start_from_file,
    tag_or_file,
    write_weights,
)
from counterpoint.errors import BadInputError


@pytest.mark.parametrize("name", ["openai", "laion2b_s34b_b79k", "r160_in1k"])
def test_tags_are_no_paths(name: str) -> None:
    assert tag_or_file(name) == (name, None)


@pytest.mark.parametrize("name", ["./openai", "/data/x", "runs/x", "weights.pt", "w.safetensors", "~/w"])
def test_paths_are(name: str) -> None:
    assert tag_or_file(name) == (None, Path(name).expanduser())


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt", "w.bin"])
def test_both_formats_come_back_bit_for_bit(tmp_path: Path, name: str) -> None:
    state = nn.Linear(3, 2).state_dict()
    if name.endswith("safetensors"):
        write_weights(state, tmp_path / name)
    else:
        torch.save(state, tmp_path / name)
    found = read_weights(tmp_path / name)
    assert found.keys() == state.keys()
    assert all(torch.equal(found[key], state[key]) for key in state)


def test_writing_leaves_nothing_else_and_is_readable_like_any_file(tmp_path: Path) -> None:
    shared = torch.arange(4.0)
    (tmp_path / "plain").touch()
    mode = (tmp_path / "plain").stat().st_mode
    (tmp_path / "plain").unlink()
    write_weights({"a": shared, "b": shared}, tmp_path / "w.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["w.safetensors"]
    assert (tmp_path / "w.safetensors").stat().st_mode == mode
    assert torch.equal(read_weights(tmp_path / "w.safetensors")["b"], shared)


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt"])
@pytest.mark.parametrize("keep", [0, 7, 200])
def test_truncated_files_are_named(tmp_path: Path, name: str, keep: int) -> None:
    path = tmp_path / name
    state = nn.Linear(30, 20).state_dict()
    if name.endswith("safetensors"):
        write_weights(state, path)
    else:
        torch.save(state, path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(BadInputError, match=name) as caught:
        read_weights(path)
    assert f"{keep} bytes" in caught.value.found


class Payload:
    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (Path("ran"),)


def test_code_inside_a_file_is_refused_and_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"weight": Payload()}, tmp_path / "w.pt")
    with pytest.raises(BadInputError, match="no code"):
        read_torch_file(tmp_path / "w.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Payload(), protocol=2))
    with pytest.raises(BadInputError, match="no code"):
        read_torch_file(tmp_path / "plain.pt")
    assert not (tmp_path / "ran").exists()


def test_what_is_no_state_dict_is_refused(tmp_path: Path) -> None:
    torch.save([torch.zeros(1)], tmp_path / "list.pt")
    with pytest.raises(BadInputError, match="found list"):
        read_weights(tmp_path / "list.pt")
    torch.save({"epoch": 3, "model": {}}, tmp_path / "training.pt")
    with pytest.raises(BadInputError, match="epoch, model"):
        read_weights(tmp_path / "training.pt")
    with pytest.raises(BadInputError, match="no such file"):
        read_weights(tmp_path / "absent.pt")
    with pytest.raises(BadInputError, match="from_pretrained"):
        read_weights(tmp_path)


def test_misfits_name_what_is_missing_unknown_and_misshapen() -> None:
    weights = {"weight": torch.zeros(5, 3), "scale": torch.zeros(1)}
    with pytest.raises(BadInputError) as caught:
        fit_weights(nn.Linear(3, 2), weights, Path("w.pt"))
    assert "lacks bias" in caught.value.found
    assert "unknown scale" in caught.value.found
    assert "weight [5, 3] instead of [2, 3]" in caught.value.found


def test_a_tag_for_a_tower_without_tags_is_refused() -> None:
    with pytest.raises(BadInputError, match=r"'imagenet'.*Linear has no pretrained tags"):
        start_from_file(nn.Linear(1, 1), "imagenet")
