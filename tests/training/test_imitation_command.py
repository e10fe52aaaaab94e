from __future__ import annotations

import json
from pathlib import Path

import pytest

from counterpoint.cli import main
from counterpoint.errors import BadInputError
from counterpoint.policies.diffusion_policy import DiffusionPolicy
from counterpoint.training.train import train
from tests.policies.masked_demos import write_masked_demos

SMALL = """
kind = "imitation"
frame = 36

[encoder]
kind = "vit"
size = 32
stack = 1
cameras = 2
vit = { patch = 8, embed_dim = 24, depth = 2, heads = 3 }

[diffusion]
down_dims = [16, 32]
step_dim = 16
train_steps = 20

[icon]
agent_keys = 2
environment_keys = 6

[train]
steps = 2
batch_size = 4
eval_every = 2
trackers = []
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return str(path)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_masked_demos(tmp_path / "demos")


@pytest.mark.slow
def test_from_the_command_line(recipe: str, data: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    cache = f"--data.cache={tmp_path / 'cache'}"
    main(["train", recipe, "--data", str(data), "--out", str(run), cache])
    policy = DiffusionPolicy.from_pretrained(run)
    assert policy.cameras == ("top", "wrist")
    assert policy.demonstrations is not None
    assert policy.demonstrations.count == 3
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["split"] for line in lines] == ["train", "val", "seen"]
    tuned = tmp_path / "tuned"
    again = ["train", recipe, "--data", str(data), "--out", str(tuned), "--start-from", str(run), cache]
    main(again)
    assert (tuned / "model" / "model.safetensors").is_file()
    assert json.loads((tuned / "config.json").read_text())["identity"]["start_from"] == str(run.resolve())
    with pytest.raises(BadInputError, match="another \\[start_from\\]"):  # not continued from elsewhere
        train(recipe, data, tuned, overrides={"data.cache": str(tmp_path / "cache")})


def test_what_cannot_be_trained_is_one_message(recipe: str, data: Path, tmp_path: Path) -> None:
    cache = {"data.cache": str(tmp_path / "cache")}
    for changes, message in (
        ({"data.camera": ["top", "side"]}, "camera: found 'side'"),
        ({"data.camera": ["top", "top_mask"]}, "camera: found 'top_mask'"),
        ({"data.episodes": 9}, "found 3 demonstrations"),
        ({"icon.agent_keys": 16}, "16 \\+ 6 keys of 4 x 4 = 16 tokens"),
        ({"icon.agent_key": 2}, "unknown key 'icon.agent_key'"),
        ({"encoder.kind": "drq"}, "icon needs an encoder with tokens|vit is for kind 'vit'"),
    ):
        with pytest.raises(BadInputError, match=message):
            train(recipe, data, tmp_path / "run", overrides={**cache, **changes})
    with pytest.raises(BadInputError, match="--data: found none"):
        train(recipe, None, tmp_path / "run")
