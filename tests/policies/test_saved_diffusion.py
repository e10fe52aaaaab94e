"""Diffusion policies in files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from counterpoint.encoders.hub import load
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder
from counterpoint.errors import BadInputError
from counterpoint.policies.cloned import ClonedPolicy
from counterpoint.policies.diffusion_policy import DiffusionPolicy
from counterpoint.policies.heads import ActionHead, HeadConfig
from tests.encoders.saved_kinds import write_digests
from tests.marks import quick
from tests.policies.demos import SAVED, observed
from tests.policies.small_diffusion import SIZE, A, P, policy, sights

SAVED_WITH: list[dict[str, Any]] = [
    {"ensemble": 0.2},
    {"network": "transformer", "width": 8, "heads": 2},
    {},
    {"use_state": False},
]


@pytest.mark.parametrize("settings", quick(SAVED_WITH[:2], SAVED_WITH))
def test_saved_and_loaded(settings: dict[str, Any], tmp_path: Path) -> None:
    made = policy(**settings)
    folder = made.save_pretrained(tmp_path / "model")
    assert {path.name for path in folder.iterdir()} == SAVED
    frames, state = sights(5, 2)
    for place in (folder, tmp_path):
        loaded = load(place)
        assert isinstance(loaded, DiffusionPolicy)
        assert loaded.config() == made.config()
        assert loaded.cameras == ("front", "wrist")
        assert not loaded.training
        made.reset([0, 1], [0, 1])
        loaded.reset([0, 1], [0, 1])
        for t in range(5):
            np.testing.assert_array_equal(
                loaded.act(observed(frames[t], state[t]), rows=[0, 1]),
                made.act(observed(frames[t], state[t]), rows=[0, 1]),
            )


def test_its_normalisation_is_saved_not_computed_again(tmp_path: Path) -> None:
    """A fine-tuned policy keeps that of its first training, whatever its demonstrations say."""
    made = policy()
    assert made.state_normalizer is not None
    made.state_normalizer.middle.fill_(123)
    loaded = DiffusionPolicy.from_pretrained(made.save_pretrained(tmp_path))
    assert loaded.state_normalizer is not None
    assert torch.equal(loaded.state_normalizer.middle, torch.full((P,), 123.0))


def test_loading_what_is_no_policy(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no such file"):
        load(tmp_path)
    folder = policy().save_pretrained(tmp_path / "saved")
    other = policy(use_state=False).save_pretrained(tmp_path / "other")
    whole, config = (folder / "model.safetensors").read_bytes(), (folder / "config.json").read_text()
    for damaged, message in (((other / "model.safetensors").read_bytes(), "lacks"), (whole[:-9], "bytes")):
        (folder / "model.safetensors").write_bytes(damaged)
        with pytest.raises(BadInputError, match=r"model\.safetensors: found sha256"):
            load(folder)
        write_digests(folder)
        with pytest.raises(BadInputError, match=message):
            load(folder)
    (folder / "model.safetensors").write_bytes(whole)
    tree = json.loads(config)
    for text, message in (
        (config[: len(config) // 2], "no model's configuration"),
        ("[]", "no model's configuration"),
        (json.dumps(tree | {"kind": "oracle"}), "kind 'oracle'; expected one of .*cloned"),
        (json.dumps(tree | {"config": tree["config"] | {"action_dim": "many"}}), "action_dim = 'many'"),
        (json.dumps(tree | {"config": tree["config"] | {"frame": 3}}), "frame: found 3"),
    ):
        (folder / "config.json").write_text(text)
        write_digests(folder)
        with pytest.raises(BadInputError, match=message):
            load(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(BadInputError, match="no such file"):
        load(folder)


def test_kinds_are_told_apart(tmp_path: Path) -> None:
    encoder = ObservationEncoder(ObservationConfig(size=SIZE, width=4, embed_dim=8, stack=2))
    cloned = ClonedPolicy(encoder, ActionHead(8, A, 0, HeadConfig(hidden=8)))
    folder = cloned.save_pretrained(tmp_path / "cloned")
    assert isinstance(load(folder), ClonedPolicy)
    with pytest.raises(BadInputError, match="kind"):
        DiffusionPolicy.from_pretrained(folder)
    with pytest.raises(BadInputError, match="kind"):
        ClonedPolicy.from_pretrained(policy().save_pretrained(tmp_path / "diffusion"))
