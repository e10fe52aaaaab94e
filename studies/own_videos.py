"""Rewards from a few real videos: the recipes `*-videos`, trained on some videos of a task and tested on the others.

    python -m studies.own_videos --preset widowx --data=WIDOWX --out runs/own_videos
    python -m studies.own_videos --preset bridge --data=BRIDGE_RLDS --out runs/own_videos_bridge

The videos of each instruction are divided into folds, and each fold is tested by models that were trained on the rest.
A seed determines the folds and the initial weights. Every number is compared with the same number from one frame, from
a frozen video and from a reversed video, and with logistic regression on the backbone's features of one frame or of the
difference of two frames. The recipes' rates, temperatures and steps were searched on other videos (`studies.tune`), and
on BridgeData, whose rows therefore keep older values; their dropout was chosen on seed 0, which is not reported.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from pydantic import Field, PositiveInt
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from counterpoint.config import FrozenConfig
from counterpoint.data.draws import sample_rng
from counterpoint.data.store import EpisodeStore
from counterpoint.data.store_views import SubsetStore
from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder
from counterpoint.encoders.features import features_of
from counterpoint.evaluation import metrics
from counterpoint.evaluation.embedded import EmbeddedVideos, embed_store
from counterpoint.formats import open_dataset
from counterpoint.training.recipe import load_recipe
from counterpoint.training.train import train
from studies.harness import Rows, Study, Tree, Trial, estimate, file_name, main, markdown, number, over_seeds
from studies.rewards.measures import CURVES, SEGMENTS, one_frame_scores

Array = NDArray[np.float64]

RECORDED = "as recorded"
ONE_FRAME = "logistic regression, {}"
NUMBERS = ("accuracy", "triples", "one_word_apart", "voc", "voc_wrong")


class Row(FrozenConfig):
    """A row of the table.

    Attributes:
        recipe: A recipe whose reward reads instructions.
        overrides: Dotted keys of the recipe and their values.
    """

    recipe: str
    overrides: dict[str, Any] = Field(default_factory=dict)


class OwnVideosConfig(FrozenConfig):
    """Recipes, videos and folds.

    Attributes:
        data: A data set of real videos.
        rows: The recipes to train, by name.
        seeds: Seeds of the folds and of the initial weights.
        folds: Number of folds of each instruction's videos.
        overrides: Dotted keys of every recipe and their values; a row's own overrides take precedence.
        processes: Number of trials that run in parallel.
    """

    data: str
    rows: dict[str, Row]
    seeds: tuple[int, ...] = (1, 2, 3, 4)
    folds: PositiveInt = 2
    overrides: dict[str, Any] = Field(default_factory=dict)
    processes: PositiveInt = 1


def own_videos_study(config: OwnVideosConfig, out: Path) -> Tree:
    """Train and test every recipe on every fold."""
    study, store = Study("own videos", out, config), open_dataset(config.data)
    features_of(_backbone(config), store)  # once, before trials run side by side
    names = [(ONE_FRAME.format(which), partial(_logistic, config, which)) for which in FRAMES]
    names += [(name, partial(_trained, config, name, out)) for name in config.rows]
    trials = [
        Trial(file_name(name, seed, fold), partial(run, seed, fold), about=about)
        for name, run in names
        for seed in config.seeds
        for fold in range(config.folds)
        for about in [{"row": name, "seed": seed, "fold": fold}]
    ]
    study.run(trials, config.processes)
    tasks = {info.instruction for info in store.episodes}
    facts = {"data": store.fingerprint, "videos": len(store.episodes), "chance": 1 / len(tasks)}
    return study.finish("own_videos", summary(study.rows()), facts=facts)


def summary(rows: Rows, _: Tree | None = None) -> Tree:
    """Return `rows`: by row, input and number, the mean over seeds (each the mean over folds) with a t interval."""
    found: Tree = {}
    for name in dict.fromkeys(row["row"] for row in rows):
        own = [row for row in rows if row["row"] == name]
        seeds = sorted({row["seed"] for row in own})
        for kind in own[0]["numbers"]:
            for key in NUMBERS:
                each = [[row["numbers"][kind].get(key) for row in own if row["seed"] == seed] for seed in seeds]
                values = [float(np.mean([v for v in fold if v is not None])) for fold in each if None not in fold]
                if values:
                    share = key in NUMBERS[:3]
                    found.setdefault(name, {}).setdefault(kind, {})[key] = over_seeds(values, share=share)
    return {"rows": found}


def table(result: Tree) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of the page's table."""
    shown = ["right instruction first", "right against wrong", "one word apart", "VOC, right", "VOC, wrong"]
    head = ["row", "input", *shown]

    def cell(found: Tree | None) -> str:
        if found is None:
            return ""
        return f"{number(found['mean'])} [{number(found['low'])}, {number(found['high'])}]"

    rows = [
        [name if at == 0 else "", kind, *(cell(numbers.get(key)) for key in NUMBERS)]
        for name, inputs in result["rows"].items()
        for at, (kind, numbers) in enumerate(inputs.items())
    ]
    return head, rows


def backbones_table(rows: Rows) -> str:
    """Return the numbers of the videos as recorded, with the margin of the two VOCs."""
    lines = []
    for name in dict.fromkeys(row["row"] for row in rows if not row["row"].startswith("logistic")):
        own = [row for row in rows if row["row"] == name]
        seeds = [
            [row["numbers"][RECORDED] for row in own if row["seed"] == s] for s in sorted({r["seed"] for r in own})
        ]
        shares = [
            over_seeds([float(np.mean([one[key] for one in folds])) for folds in seeds], share=True)
            for key in ("accuracy", "triples")
        ]
        margin = over_seeds([float(np.mean([one["voc"] - one["voc_wrong"] for one in folds])) for folds in seeds])
        lines.append([name, *(estimate(one, share=True) for one in shares), estimate(margin)])
    return markdown(["row", "right instruction first", "right against wrong", "VOC, right minus wrong"], lines)


def _backbone(config: OwnVideosConfig) -> DualEncoder:
    recipe = next(iter(config.rows.values())).recipe
    settings: EncoderConfig = load_recipe(recipe, config.overrides).encoder  # type: ignore[attr-defined]
    return DualEncoder(settings).eval()


def _dealt(store: EpisodeStore, seed: int, fold: int, folds: int) -> tuple[list[int], list[int]]:
    """Return the numbers of the videos to train on and to test on."""
    tasks = [info.instruction for info in store.episodes]
    tested: list[int] = []
    for at, task in enumerate(dict.fromkeys(tasks)):
        own = [video for video, other in enumerate(tasks) if other == task]
        tested += sample_rng(seed, at, "folds").permutation(own)[fold::folds].tolist()
    return [video for video in range(len(tasks)) if video not in tested], sorted(tested)


def _trained(config: OwnVideosConfig, name: str, out: Path, seed: int, fold: int) -> Tree:
    store, row = open_dataset(config.data), config.rows[name]
    kept, tested = _dealt(store, seed, fold, config.folds)
    overrides = {"train.seed": seed, "data.folds": 0, "train.eval_every": 0, "train.trackers": ()}
    run = train(
        row.recipe,
        SubsetStore(store, kept),
        out / "runs" / file_name(name, seed, fold),
        overrides={**overrides, **config.overrides, **row.overrides},
    )
    encoder = DualEncoder.from_pretrained(run.model)
    features = SubsetStore(features_of(encoder, store), tested)
    embedded = embed_store(encoder, features, instructions=_instructions(store))
    return {"numbers": _numbers(embedded, encoder.config.reward_form)}


def _instructions(store: EpisodeStore) -> tuple[str, ...]:
    return tuple(dict.fromkeys(info.instruction for info in store.episodes))


def _numbers(embedded: EmbeddedVideos, form: Any) -> Tree:
    """Return the numbers by input: the videos as recorded, reversed, frozen, and only one frame."""
    videos = {
        RECORDED: embedded.videos,
        "reversed": tuple(video[::-1] for video in embedded.videos),
        "frozen": tuple(np.repeat(video[:1], len(video), axis=0) for video in embedded.videos),
    }
    found: Tree = {}
    for kind, ones in videos.items():
        whole = np.concatenate([SEGMENTS[form](video[:1], video[-1:], embedded.text) for video in ones])
        found[kind] = _told(whole, embedded.own, embedded.instructions)
        curves = [CURVES[form](video, embedded.text) for video in ones]
        orders = np.array([[metrics.value_order_correlation(curve) for curve in each] for each in curves])
        mine = orders[np.arange(len(orders)), embedded.own]
        found[kind] |= {
            "voc": float(mine.mean()),
            "voc_wrong": float((orders.sum(axis=1) - mine).mean() / (orders.shape[1] - 1)),
        }
    for frame, scores in one_frame_scores(embedded).items():
        found[f"{frame} frame alone"] = _told(scores, embedded.own, embedded.instructions)
    return found


def _told(scores: Float[Array, "V L"], own: NDArray[np.int64], instructions: tuple[str, ...]) -> Tree:
    """Return how often the right instruction scores highest, and how often it scores higher than another one."""
    hard = metrics.one_word_apart(instructions)
    found = {
        "accuracy": float(metrics.matched(scores, own).mean()),
        "triples": float(np.nanmean(metrics.triples(scores, own))),
    }
    return found | ({"one_word_apart": float(np.nanmean(metrics.triples(scores, own, hard)))} if hard.any() else {})


FRAMES = ("first frame", "middle frame", "last frame", "last minus first")


def _logistic(config: OwnVideosConfig, which: str, seed: int, fold: int) -> Tree:
    """Classify videos by the features of one frame, or of the difference of two."""
    store = open_dataset(config.data)
    features = features_of(_backbone(config), store)
    rows = []
    for video in range(len(store.episodes)):
        own = features.features(video)
        assert own is not None
        first, middle, last = own[0, 0], own[len(own) // 2, 0], own[-1, 0]
        rows.append(dict(zip(FRAMES, (first, middle, last, last - first), strict=True))[which])
    instructions = _instructions(store)
    labels = np.array([instructions.index(info.instruction) for info in store.episodes])
    kept, tested = _dealt(store, seed, fold, config.folds)
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=2000))
    model.fit(np.stack([rows[video] for video in kept]), labels[kept])
    scores = np.full((len(tested), len(instructions)), -np.inf)
    scores[:, model.classes_] = model.predict_log_proba(np.stack([rows[video] for video in tested]))
    seen = "two frames" if which == FRAMES[-1] else "one frame"
    return {"numbers": {seen: _told(scores, labels[tested], instructions)}}


if __name__ == "__main__":
    main("own_videos")
