"""Rewards under instructions that fit a video, do not fit, contradict it, name a part of it, or use other words.

    python -m studies.rewards --preset widowx --data=WIDOWX --out runs/rewards_widowx

The study follows DecisionNCE (Appendix D, Table 2, Fig. 6) and AcTOL (sections 5.4 and 5.6, Theorem 4.4), with numbers
instead of example curves. A trial trains one row with one seed, on every part of the data in turn, and measures the
rest. Each method is measured by its own reward. A method that reads goal images instead of words gets the last frame of
a training episode, and has no numbers for instructions that no episode carries out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from counterpoint.data.cache import cached
from counterpoint.data.sampler import Sampler
from counterpoint.data.store import EpisodeStore
from counterpoint.data.store_views import OneCameraStore, StoreView, SubsetStore
from counterpoint.encoders.config import EncoderConfig
from counterpoint.encoders.dual import DualEncoder
from counterpoint.encoders.features import features_of
from counterpoint.errors import require
from counterpoint.evaluation import metrics
from counterpoint.evaluation.embedded import EmbeddedVideos, embed_store
from counterpoint.formats import open_dataset, split_names
from counterpoint.rewards.embedding import embed_text
from counterpoint.rewards.model import RewardModel, cosine, potential
from counterpoint.training.clips import ClipsRecipe, altered_clips, build_objective, extra_texts
from counterpoint.training.learner import ObjectiveLearner
from counterpoint.training.recipe import load_recipe
from studies.harness import Rows, Study, Tree, Trial, file_name, over_seeds
from studies.rewards.clips import PICKS, padded
from studies.rewards.config import RewardsConfig, Videos
from studies.rewards.measures import SEGMENTS, Numbers, alignment_change, means, short_segments, trend, two_actions
from studies.rewards.rewordings import reworded
from studies.rewards.searched import searched

Array = NDArray[np.float64]
WHOLE, TRAIN, TEST, PAIRS = "own videos", "train", "test", "pairs"
EACH_VIDEO = (f"{WHOLE}: matched", f"{WHOLE}: identification", "smoothness")
"""Groups with one entry per test video, in order."""
Stores = Mapping[Any, EpisodeStore]
"""Videos by name: the study's own (or their splits for training and test), and the further videos; failures have the
key (name, split)."""
Found = dict[str, list[Numbers]]
"""Groups of measurements by name, with one entry per video, or per pair of video and instruction."""


def rewards_study(config: RewardsConfig, out: Path) -> Tree:
    """Train and measure every row and write `rewards.json` and `results.parquet`."""
    study = Study("rewards and instructions", out, config)
    stores = {row: stores_of(config, row) for row in config.rows}  # features are computed here, once for all trials
    own = stores[next(iter(stores))]
    tested = [info.instruction for _, test in parts(config, own) for info in test.episodes]
    known = set(tested)
    for relation, pairs in config.relations.items():
        unknown = sorted(set(pairs) - known)
        expected = f"instructions of the data: {sorted(known)}"
        require(not unknown, f"relations.{relation}", unknown, expected, "correct it")
    trials = [
        Trial(file_name(row, f"seed{seed}"), partial(measure, config, row, seed), about={"row": row, "seed": seed})
        for seed in config.seeds
        for row in config.rows
    ]
    study.run(trials, config.processes)
    names = {name: name if isinstance(name, str) else ", ".join(name) for name in own}
    facts = {"fingerprints": {names[key]: store.fingerprint for key, store in own.items()}, "test_videos": len(tested)}
    facts["chance"] = 1 / len(known)
    return study.finish("rewards", summary(study.rows()), facts=facts)


def summary(rows: Rows, _: Tree | None = None) -> Tree:
    """Return `rows`: by row, group and number, the mean over seeds with a t interval; `n` is the count of one seed."""
    found: Tree = {}
    for name in dict.fromkeys(row["row"] for row in rows):
        runs = sorted((row for row in rows if row["row"] == name), key=lambda run: run["seed"])
        found[name] = {
            group: {
                key: int(value) if key == "n" else over_seeds([run["groups"][group][key] for run in runs])
                for key, value in numbers.items()
            }
            for group, numbers in runs[0]["groups"].items()
        }
    return {"rows": found}


def measure(config: RewardsConfig, row: str, seed: int) -> Tree:
    """Train one row with one seed and measure it.

    Returns:
        `groups`: means over videos by group and number. `tasks`: means over test videos by instruction and number.
    """
    stores, found, tasks = stores_of(config, row), dict[str, list[Numbers]](), dict[str, list[Numbers]]()
    for number, (own, test) in enumerate(parts(config, stores)):
        failed = [failures(stores[name, TRAIN]) for name in config.failures if config.rows[row].failures]
        train = joined([own, *failed])
        model = fit_row(config, row, train, seed + 1000 * number)
        clips = padded(train, config.rows[row].padding)
        measured = _measured(config, model, train, test, clips, stores)
        for group, records in measured.items():
            found.setdefault(group, []).extend(records)
        for info, *records in zip(test.episodes, *(measured[group] for group in EACH_VIDEO), strict=True):
            tasks.setdefault(info.instruction, []).append({key: one[key] for one in records for key in one})
        reader = reader_of(model, train)
        for name in config.failures:
            for text, numbers in told_apart(reader, test, failures(stores[name, TEST])).items():
                found.setdefault(f"success: {name}", []).append(numbers)
                tasks[text].append({f"auroc: {name}": numbers["auroc"]})
    groups, each = ({key: means(records) for key, records in of.items()} for of in (found, tasks))
    return {"form": model.form, "groups": groups, "tasks": each}


def fit_row(config: RewardsConfig, row: str, train: EpisodeStore, seed: int) -> RewardModel:
    """Train a row on clips that are padded as the row says, from the weights that it starts with."""
    chosen = config.rows[row]
    start = _start(config.model_dump_json(), chosen.start, train, seed) if chosen.start is not None else None
    clips = padded(train, chosen.padding)
    return fit(row_recipe(config, row), clips, seed, chosen.trained, pick=chosen.pick, start=start)


@cache
def _start(config: str, row: str, store: EpisodeStore, seed: int) -> dict[str, Tensor]:
    """Return the weights of a row with which other rows start, trained once per process on clips as recorded."""
    settings = RewardsConfig.model_validate_json(config)
    model = fit(row_recipe(settings, row), store, seed, settings.rows[row].trained, pick=settings.rows[row].pick)
    assert isinstance(model.encoder, DualEncoder)
    return model.encoder.state_dict()


def row_recipe(config: RewardsConfig, row: str, changes: Mapping[str, Any] | None = None) -> ClipsRecipe:
    """Return a row's recipe, with further changes."""
    chosen, found = config.rows[row], {}
    if chosen.settings != "recipe":
        found = searched(chosen.method or row, config.searches, authors=chosen.settings == "authors")
    recipe = load_recipe(chosen.recipe, {**config.overrides, **found, **chosen.overrides, **(changes or {})})
    assert isinstance(recipe, ClipsRecipe)
    return recipe


def parts(config: RewardsConfig, stores: Stores) -> Iterator[tuple[EpisodeStore, EpisodeStore]]:
    """Yield training and test episodes: the data's own splits, or for every part the other parts and this part."""
    if WHOLE not in stores:
        yield stores[TRAIN], stores[TEST]
        return
    store = stores[WHOLE]
    texts = [info.instruction for info in store.episodes]
    fold = np.array([texts[:number].count(text) % config.folds for number, text in enumerate(texts)])
    for part in range(int(fold.max()) + 1):
        train, test = (np.flatnonzero(rows).tolist() for rows in (fold != part, fold == part))
        yield SubsetStore(store, train), SubsetStore(store, test)


def fit(
    recipe: ClipsRecipe,
    store: EpisodeStore,
    seed: int,
    trained: bool = True,
    *,
    pick: str = "own",
    start: Mapping[str, Tensor] | None = None,
) -> RewardModel:
    """Train a recipe for its number of steps on frames or features, and return its reward; see `checkpoints`."""
    steps = (recipe.train.steps or 1) if trained else 0
    return next(checkpoints(recipe, store, seed, (steps,), pick=pick, start=start))


def checkpoints(
    recipe: ClipsRecipe,
    store: EpisodeStore,
    seed: int,
    steps: Sequence[int],
    *,
    pick: str = "own",
    start: Mapping[str, Tensor] | None = None,
) -> Iterator[RewardModel]:
    """Train a recipe on frames or features, and yield its reward after each number of steps.

    A reward is valid until the next one is asked for, because training continues with the same weights.

    Args:
        recipe: The recipe.
        store: Training clips.
        seed: Random seed of weights and batches.
        steps: Numbers of steps, rising; 0 stands for the initial weights.
        pick: The way to draw the frames of a clip: a key of `PICKS`, or `own` for the objective's own way.
        start: Initial weights of the encoder; random weights by default.
    """
    torch.manual_seed(seed)
    objective = build_objective(recipe)
    objective.extra_texts = extra_texts(recipe, objective, store)
    store = altered_clips(recipe, store)
    if start is not None:
        objective.encoder.load_state_dict(start)
    learner = ObjectiveLearner(
        objective,
        recipe.optimizer,
        total_steps=recipe.train.steps or 1,
        accelerator=Accelerator(cpu=recipe.encoder.freeze_image),  # heads on stored features need no graphics card
    )
    spec = objective.sampling()
    spec = spec if pick == "own" else spec.with_index(pick=PICKS[pick])
    spec = spec.on_features(1) if recipe.encoder.freeze_image else spec
    sampler = Sampler(store, spec.bind(store, store.cameras[:1]), batch_size=recipe.train.batch_size, seed=seed)
    batches, done = enumerate(sampler.batches(0, max(steps))), 0
    for wanted in steps:
        objective.train()
        for step, batch in islice(batches, wanted - done):
            learner.update(batch, step)
        done = wanted
        kept = learner.exports()
        encoder = kept["encoder"]
        assert isinstance(encoder, DualEncoder)
        yield RewardModel(encoder.eval(), language_reward=kept.get("language_reward"))


@dataclass(frozen=True)
class Reader:
    """A reward and the embeddings of its targets.

    Attributes:
        model: The reward.
        targets: For each instruction, its embedding or a goal image's, [D]; instructions with neither are missing.
    """

    model: RewardModel
    targets: Mapping[str, Array]

    def of(self, texts: Sequence[str]) -> Float[Array, "L D"]:
        """Return the targets of instructions, [L, D]; [0, D] if one of them has no target."""
        known = all(text in self.targets for text in texts)
        width = len(next(iter(self.targets.values())))
        return np.array([self.targets[text] for text in texts] if known else []).reshape(-1, width)

    def curves(self, frames: Float[Array, "T D"], targets: Float[Array, "L D"]) -> Float[Array, "L T"]:
        """Return the reward of every frame; for R3M, the value before the sigmoid, which saturates."""
        head = self.model.language_reward
        if self.model.form == "language" and head is not None:
            now, text = torch.from_numpy(frames).float(), torch.from_numpy(targets).float()[:, None]
            with torch.no_grad():
                return np.asarray(head.logit(now[0], now[None], text).double())  # type: ignore[operator]
        return self.model.score(self.model.form, frames, targets)

    def gains(
        self, frames: Float[Array, "T D"], targets: Float[Array, "L D"], ends: Sequence[tuple[int, int]]
    ) -> Float[Array, "N L"]:
        """Return the score of each segment under each target: the reward's segment score, or else the gain."""
        first, last = np.array(ends).T
        if self.model.form in SEGMENTS:
            return SEGMENTS[self.model.form](frames[first], frames[last], targets)
        curves = self.curves(frames, targets)
        return np.asarray((curves[:, last] - curves[:, first]).T)


def reader_of(model: RewardModel, train: EpisodeStore, more: Sequence[str] = ()) -> Reader:
    """Return the reader of a reward under the instructions of its training episodes and under further words.

    A reward that reads goal images gets the last frame of an instruction's first training episode, and no other words.
    """
    texts = list(dict.fromkeys(info.instruction for info in train.episodes))
    if model.form != "goal":
        wanted = list(dict.fromkeys([*texts, *more]))
        return Reader(model, dict(zip(wanted, embed_text(model.encoder, wanted), strict=True)))
    shown = embed_store(model.encoder, train, instructions=tuple(texts))
    last = shown.frames_at(-1)
    return Reader(model, {text: last[int(np.flatnonzero(shown.own == at)[0])] for at, text in enumerate(texts)})


def _measured(
    config: RewardsConfig,
    model: RewardModel,
    train: EpisodeStore,
    test: EpisodeStore,
    clips: EpisodeStore,
    stores: Stores,
) -> Found:
    """Return the measurements of one part; `clips` are its training episodes, padded or not."""
    texts = tuple(dict.fromkeys(info.instruction for info in train.episodes))
    embedded, words = embed_store(model.encoder, test, instructions=texts), model.form != "goal"
    others = {name: embed_store(model.encoder, stores[name]) for name in config.others} if words else {}
    related_texts = [text for pairs in config.relations.values() for some in pairs.values() for text in some]
    ways = [way for text in texts for way in reworded(text).values()] if config.reworded else []
    reworded_texts = [other for way in ways for other in way.values()]
    candidates = [text for other in others.values() for text in other.instructions]
    reader = reader_of(model, train, [*related_texts, *reworded_texts, *candidates])
    found = related(config, reader, embedded, WHOLE)
    if config.pairs:
        found["two actions"] = one_after_the_other(reader, embed_store(model.encoder, stores[PAIRS]), stores[PAIRS])
    found |= first_frames(embedded, words=words)
    found |= other_words(reader, embedded) if words and config.reworded else {}
    found["smoothness"] = smoothness(embedded)
    if config.gate:
        known = [info.instruction for info in train.episodes]
        kept = [at for at, text in enumerate(known) if known[:at].count(text) < config.gate]
        seen = embed_store(model.encoder, SubsetStore(clips, kept), instructions=texts)
        found |= related(config, reader, seen, "training videos")
    for name, other in others.items():
        found |= related(config, reader, other, name)
    return found


def failures(store: EpisodeStore) -> EpisodeStore:
    """Return the failed episodes of a store."""
    return SubsetStore(store, [at for at, info in enumerate(store.episodes) if info.success is False])


def joined(stores: Sequence[EpisodeStore]) -> EpisodeStore:
    """Return several stores as one."""
    counts = [len(store.episodes) for store in stores]
    numbers = np.concatenate([np.arange(count) for count in counts])
    return stores[0] if len(stores) == 1 else StoreView(stores, np.repeat(np.arange(len(stores)), counts), numbers)


def told_apart(reader: Reader, solved: EpisodeStore, failed: EpisodeStore) -> dict[str, Numbers]:
    """Return, for each instruction, the AUROC of whole videos' scores: successes against failures."""
    found: dict[str, Numbers] = {}
    scores: list[tuple[str, bool, float]] = []
    for store, success in ((solved, True), (failed, False)):
        shown = embed_store(reader.model.encoder, store, instructions=list(reader.targets))
        for video, own in zip(shown.videos, shown.own, strict=True):
            text = shown.instructions[own]
            score = reader.gains(video, reader.of([text]), [(0, len(video) - 1)])
            scores.append((text, success, float(score[0, 0])))
    for text in dict.fromkeys(text for text, success, _ in scores if not success):
        own = [(value, success) for words, success, value in scores if words == text]
        values, positive = np.array([value for value, _ in own]), np.array([success for _, success in own])
        found[text] = {"auroc": float(metrics.auroc(values, positive))}
    return found


def smoothness(embedded: EmbeddedVideos) -> list[Numbers]:
    """Return AcTOL's continuity of each video at unit length: the largest step over the mean step, and Eq. 4."""
    rows = [video / np.maximum(np.linalg.norm(video, axis=1, keepdims=True), 1e-12) for video in embedded.videos]
    return [{"jump_ratio": metrics.jump_ratio(row), "bridge": metrics.bridge_residual(row)} for row in rows]


def related(config: RewardsConfig, reader: Reader, embedded: EmbeddedVideos, name: str) -> Found:
    """Return trends under matched, mismatched and related instructions, and how often the right one scores highest."""
    targets, found = reader.of(embedded.instructions), dict[str, list[Numbers]]()
    for number, (video, own) in enumerate(zip(embedded.videos, embedded.own, strict=True)):
        text, curves = embedded.instructions[own], reader.curves(video, targets)
        related_texts = {key: pairs.get(text, ()) for key, pairs in config.relations.items()}
        named = {one for texts in related_texts.values() for one in texts}
        groups = {"matched": [curves[own]]}
        others = [curves[at] for at, one in enumerate(embedded.instructions) if at != own and one not in named]
        groups["mismatched"] = others
        for relation, texts in related_texts.items():
            words = reader.of(texts)
            groups[relation] = list(reader.curves(video, words)) if len(words) else []
        for relation, kept in groups.items():
            found.setdefault(f"{name}: {relation}", []).extend(trend(curve) for curve in kept)
        whole = reader.gains(video, targets, [(0, len(video) - 1)])
        short = reader.gains(video, targets, short_segments(len(video), number, seed=0))
        column = np.full(len(whole), own)
        numbers = {
            "voc_wrong": float(np.mean([trend(curve)["voc"] for curve in others])) if others else 0.0,
            "margin_common": margin_common(potential(video, targets), own),
            "accuracy": float(metrics.matched(whole, column)[0]),
            "pairs": float(metrics.triples(whole, column)[0]),
            "accuracy_short": float(metrics.matched(short, np.full(len(short), own)).mean()),
        }
        opposite = [at for at, one in enumerate(embedded.instructions) if one in related_texts.get(config.opposite, ())]
        if opposite:
            numbers["against_opposite"] = float(np.mean(whole[0, own] > whole[0, opposite]))
        found.setdefault(f"{name}: identification", []).append(numbers)
    return {group: records for group, records in found.items() if records}


def margin_common(curves: Float[Array, "L T"], own: int) -> float:
    """Return VOC under the right instruction minus its mean under the others, of curves that all methods share."""
    each = [trend(curve)["voc"] for curve in curves]
    return each[own] - float(np.mean(each[:own] + each[own + 1 :])) if len(each) > 1 else 0.0


def first_frames(embedded: EmbeddedVideos, *, words: bool) -> Found:
    """Return DecisionNCE's Table 2: similarities among first frames and to mean language, also mean-centred."""
    first = embedded.frames_at(0)
    centre = np.mean([video.mean(axis=0) for video in embedded.videos], axis=0)
    rows = {"similarity": first, "centred": first - centre}
    numbers = {name: float(metrics.pairwise_cosine(some)) for name, some in rows.items()}
    if words:
        language = embedded.text[embedded.own].mean(axis=0, keepdims=True)
        numbers["to_language"] = float(cosine(first, language).mean())
    return {"first frames": [numbers]}


def one_after_the_other(reader: Reader, embedded: EmbeddedVideos, store: EpisodeStore) -> list[Numbers]:
    """Return rewards' behaviour on clips in which one task follows another (AcTOL, section 5.4, Figs. 4 and 6)."""
    found = []
    for video, info in zip(embedded.videos, store.episodes, strict=True):
        (_, first), (boundary, second) = info.segments
        under_first, under_second = reader.curves(video, reader.of((first, second)))
        found.append(two_actions(under_first, under_second, boundary))
    return found


def other_words(reader: Reader, embedded: EmbeddedVideos) -> Found:
    """Return how rewards change with the words (AcTOL, section 5.6), and the used share of Theorem 4.4's bound."""
    targets, found = reader.of(embedded.instructions), dict[str, list[Numbers]]()
    for video, own in zip(embedded.videos, embedded.own, strict=True):
        curves, gains = reader.curves(video, targets), reader.gains(video, targets, [(0, len(video) - 1)])
        others = [at for at in range(len(targets)) if at != own]
        apart = float(np.mean([np.abs(curves[at] - curves[own]).mean() for at in others]))
        for kind, ways in reworded(embedded.instructions[own]).items():
            words = reader.of(list(ways.values()))
            new_curves, new_gains = reader.curves(video, words), reader.gains(video, words, [(0, len(video) - 1)])
            for at, text in enumerate(words):
                most, mean, bound = alignment_change(video, targets[own], text)
                numbers = {
                    "change": float(np.abs(new_curves[at] - curves[own]).mean()),
                    "change_of_another_instruction": apart,
                    "voc": trend(new_curves[at])["voc"],
                    "accuracy": float(new_gains[0, at] > max(gains[0, other] for other in others)),
                    "bound": bound,
                    "greatest_change": most,
                    "share_of_bound": most / bound if bound > 0 else 0.0,
                    "mean_share_of_bound": mean / bound if bound > 0 else 0.0,
                    "within_bound": float(most <= bound + 1e-9),
                }
                found.setdefault(f"words: {kind}", []).append(numbers)
    return found


def stores_of(config: RewardsConfig, row: str) -> dict[Any, EpisodeStore]:
    """Return the videos in the form that a row's encoder reads: features of its frozen backbone, or frames."""
    recipe = row_recipe(config, row)
    names = split_names(config.data)
    own = {name: name for name in (TRAIN, TEST)} if {TRAIN, TEST} <= set(names) else {WHOLE: None}
    videos: dict[Any, Videos] = {name: Videos(split=split, camera=config.camera) for name, split in own.items()}
    for name, data in config.failures.items():
        there = set(split_names(data))
        videos |= {(name, one): Videos(data=data, split=one, camera=config.camera) for one in {TRAIN, TEST} & there}
    if config.pairs:
        videos[PAIRS] = Videos(data=config.pairs, camera=config.camera)
    found = {
        name: _read(one.model_copy(update={"data": one.data or config.data}), recipe.encoder, recipe.data.size)
        for name, one in {**videos, **config.others}.items()
    }
    if config.per_task and TRAIN in found:
        texts = [info.instruction for info in found[TRAIN].episodes]
        few = [at for at, text in enumerate(texts) if texts[:at].count(text) < config.per_task]
        found[TRAIN] = SubsetStore(found[TRAIN], few)
    return found


@cache
def _read(videos: Videos, encoder: EncoderConfig, size: int) -> EpisodeStore:
    store = open_dataset(videos.data, split=videos.split)
    if videos.camera is not None:
        store = OneCameraStore(store, videos.camera)
    if not encoder.freeze_image:
        return cached(store, size=size)
    return features_of(DualEncoder(encoder), store)
