from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from counterpoint.errors import BadInputError
from counterpoint.training.run import list_checkpoints, load_checkpoint, newest_valid, save_checkpoint


def state() -> dict[str, Any]:
    return {
        "weights": {"a": torch.randn(3, 4), "b": torch.tensor(3)},
        "optimizer": {"state": {0: {"step": torch.tensor(2.0)}}, "groups": [{"lr": 1e-3, "betas": (0.9, 0.999)}]},
        "nothing": None,
        "flag": True,
        "text": "word",
        "rng": torch.get_rng_state(),
    }


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and a == b


def test_round_trip_keeps_every_type(tmp_path: Path) -> None:
    before = state()
    path = save_checkpoint(tmp_path, 7, before)
    step, after = load_checkpoint(path)
    assert step == 7
    assert equal(before, after)
    assert (tmp_path / "last").read_text() == "step-00000007"


def test_shared_tensors_are_kept_apart(tmp_path: Path) -> None:
    shared = torch.randn(4)
    _, after = load_checkpoint(save_checkpoint(tmp_path, 1, {"a": shared, "b": shared, "c": shared[:2]}))
    assert torch.equal(after["a"], after["b"])
    assert torch.equal(after["c"], shared[:2])


def test_only_the_newest_stay(tmp_path: Path) -> None:
    for step in range(5):
        save_checkpoint(tmp_path, step, {"x": torch.tensor(step)}, keep=2)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000003", "step-00000004"]


@pytest.mark.parametrize("name", ["state.safetensors", "state.json", "SHA256SUMS"])
@pytest.mark.parametrize("damage", ["truncate", "flip", "delete"])
def test_damage_is_found_and_the_older_one_taken(tmp_path: Path, name: str, damage: str) -> None:
    save_checkpoint(tmp_path, 1, state())
    newest = save_checkpoint(tmp_path, 2, state())
    file = newest / name
    content = bytearray(file.read_bytes())
    if damage == "truncate":
        file.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        content[len(content) // 2] ^= 0xFF
        file.write_bytes(content)
    else:
        file.unlink()
    with pytest.raises(BadInputError, match="delete this checkpoint"):
        load_checkpoint(newest)
    found = newest_valid(tmp_path)
    assert found is not None
    assert found[1] == 1
    assert len(found[3]) == 1


def test_all_damaged_is_an_error_not_a_fresh_start(tmp_path: Path) -> None:
    path = save_checkpoint(tmp_path, 1, state())
    (path / "state.json").write_text("{}")
    with pytest.raises(BadInputError, match="sha256"):
        newest_valid(tmp_path)


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert newest_valid(tmp_path / "absent") is None


def test_what_json_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="set"):
        save_checkpoint(tmp_path, 1, {"a": {1, 2}})
    assert newest_valid(tmp_path) is None
