from __future__ import annotations

import json
from pathlib import Path

import pytest

from counterpoint.errors import BadInputError
from counterpoint.training import compare as module
from counterpoint.training.compare import compare
from tests.evaluation.fake_run import quick_words, write_data

SMALL = {
    **{"train.steps": 3, "train.epochs": None, "train.batch_size": 4, "train.eval_every": 0, "train.trackers": ()},
    **{"encoder.image_size": 32, "encoder.embed_dim": 8, "data.size": 32},
}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    quick_words(monkeypatch)
    monkeypatch.setenv("COUNTERPOINT_CACHE", str(tmp_path / "cache"))
    return write_data(tmp_path / "data", each=1)


@pytest.mark.slow
def test_recipes_are_trained_with_every_seed_and_compared(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    page = compare(recipes=["decisionnce_t-demo", "vip-demo"], data=data, out=out, seeds=2, overrides=SMALL)
    assert page == out / "compare.html"
    found = json.loads((out / "compare.json").read_text())
    rows = {row["name"]: row for row in found["rows"]}
    linear = [f"linear, {frame} frame" for frame in ("first", "middle", "last")]
    assert list(rows) == ["decisionnce_t-demo", "vip-demo", "ramp", "constant", "random weights", *linear]
    assert {name: row["seeds"] for name, row in rows.items()} == {
        **{"decisionnce_t-demo": 2, "vip-demo": 2},
        **{"ramp": 1, "constant": 1, "random weights": 2, **dict.fromkeys(linear, 1)},
    }
    assert not any(row["trained_on_these"] for row in rows.values())
    seeds = [json.loads((out / "runs" / f"vip-demo-{seed}" / "config.json").read_text()) for seed in (0, 1)]
    assert [config["train"]["seed"] for config in seeds] == [0, 1]

    def trained_again(*arguments: object, **options: object) -> None:
        raise AssertionError("a finished run was trained again")

    monkeypatch.setattr(module, "train", trained_again)
    before = (out / "compare.json").read_text()
    compare(recipes=["decisionnce_t-demo", "vip-demo"], data=data, out=out, seeds=2, overrides=SMALL)
    assert json.loads((out / "compare.json").read_text())["rows"] == json.loads(before)["rows"]


@pytest.mark.parametrize(
    ("recipes", "seeds", "word"),
    [
        (["decisionnce_t-demo", "decisionnce_t-demo"], 1, "each name once"),
        (["premier_taco-metaworld"], 1, "instructed clips"),
        (["no-such-recipe"], 1, "no such agent or recipe"),
        (["decisionnce_t-demo"], 0, "1 or more"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_any_training(
    recipes: list[str], seeds: int, word: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInputError, match=word):
        compare(recipes=recipes, data=tmp_path, out=tmp_path / "out", seeds=seeds)
    assert not (tmp_path / "out").exists()
