"""`counterpoint compare`: compare rewards on the same videos, and write one page and the same numbers as JSON.

`counterpoint report` makes the same comparison for one run, and adds numbers about its encoder.

A reward should distinguish instructions better than a classifier that sees only the scene or the end state. This
control (`scene_rewards`) is a logistic regression that predicts an episode's instruction from its first, middle or last
frame. The classifier reads the features of a frozen backbone, or else the encoder's embeddings.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from markupsafe import Markup
from numpy.typing import NDArray

from counterpoint.data.store import EpisodeStore, camera_names
from counterpoint.data.store_views import OneCameraStore, SubsetStore
from counterpoint.encoders.dual import DualEncoder
from counterpoint.encoders.features import features_of
from counterpoint.errors import import_extra, require, require_extras
from counterpoint.evaluation.bench import Heatmap
from counterpoint.evaluation.comparison import Comparison, compare
from counterpoint.evaluation.definitions import REWARD, spelt
from counterpoint.evaluation.embedded import RECORDED
from counterpoint.evaluation.grades import compare_grades
from counterpoint.evaluation.held_out import open_training, open_unseen, read_config, trains_on
from counterpoint.files import write_atomically
from counterpoint.formats import recognise, split_names
from counterpoint.progress import ProgressBar
from counterpoint.rewards.embedding import STATE, Embedder, FrozenPart, embed_frames, embed_steps
from counterpoint.rewards.model import RewardModel
from counterpoint.rewards.page import breakable, render, signed
from counterpoint.rewards.sources import EPISODE, Curves, EncoderReward, Frames, Reward, open_reward
from counterpoint.workers import IN_PROCESS, Foreign

Array = NDArray[np.float64]

TEMPLATES = Path(__file__).parent / "templates"
NEEDED = dict.fromkeys(("jinja2", "matplotlib", "scipy", "sklearn"), "report")
"""Modules that a comparison and its page import, each with its extra; a missing one is reported before any work."""
GOALS = 4
"""Number of training episodes per instruction whose last frames serve as goals, for encoders without language."""
MOST_COLUMNS = 20
"""Maximum number of instructions in a heat map."""


def compare_command(
    rewards: Mapping[str, Sequence[str]],
    data: Path,
    out: Path,
    *,
    split: str | None = None,
    cameras: Sequence[str] = (),
    max_videos: int = 100,
    max_frames: int = 128,
    seed: int = 0,
    device: str = "cpu",
    foreign: Foreign = IN_PROCESS,
    dialect: str | None = None,
) -> Path:
    """Compare rewards on the episodes of a data set that no reward was trained on; return the page.

    Every reward's main number, with its interval, is printed. Thresholds are fixed on the split `val`, if another split
    is compared.

    Args:
        rewards: For each name, one source or one source per training seed; sources are arguments of
            `counterpoint.rewards.sources.open_reward`.
        data: The data set.
        out: The folder to write.
        split: Name of the split; by default `test`, or `val` if there is no `test`.
        cameras: The cameras; by default the cameras of the runs if all runs have the same, otherwise the first camera.
        max_videos: Maximum number of videos; larger sets are sampled at random.
        max_frames: Maximum number of frames of a video, evenly spread.
        seed: Random seed of samples, shuffles, random weights and resamples.
        device: The device that computes.
        foreign: How models of others run.
        dialect: The dialect of HDF5 files, if the files do not identify it.

    Raises:
        BadInputError: If a reward or the data cannot be used.
        MissingExtraError: If the extra `report` is not installed.
    """
    require(not out.exists() or out.is_dir(), out, "a file", "a folder", "choose another --out")
    require_extras(NEEDED)
    opened = {
        name: [open_reward(source, name=name, device=device, foreign=foreign) for source in sources]
        for name, sources in rewards.items()
    }
    if recognise(data).name == "graded":
        options: dict[str, Any] = {"max_videos": max_videos, "max_frames": max_frames, "seed": seed}
        return compare_grades(opened, data, out, split=split, **options)
    files = {name: [Path(source) / "config.json" for source in sources] for name, sources in rewards.items()}
    configs = {name: [read_config(file) for file in found if file.is_file()] for name, found in files.items()}
    settings: dict[str, Any] = {"max_videos": max_videos, "max_frames": max_frames, "seed": seed, "dialect": dialect}
    found = compare_unseen(opened, configs, data, split=split, cameras=cameras, **settings)
    return write_comparison(found.comparison, out)


@dataclass(frozen=True)
class Compared:
    """A comparison, with the recorded episodes and the cameras that it used."""

    comparison: Comparison
    store: EpisodeStore
    cameras: tuple[str, ...]


def compare_unseen(
    rewards: Mapping[str, Sequence[Reward]],
    configs: Mapping[str, Sequence[Mapping[str, Any]]],
    data: Path,
    *,
    split: str | None,
    cameras: Sequence[str] = (),
    max_videos: int,
    seed: int,
    dialect: str | None = None,
    check: Callable[[EpisodeStore], None] | None = None,
    **options: Any,
) -> Compared:
    """Compare opened rewards on episodes that no reward was trained on.

    Args:
        rewards: For each name, one reward, or a list with one reward per training seed.
        configs: For each name, the configurations of its runs; rewards that are not runs have none.
        data: The data set.
        split: Name of the split.
        cameras: The cameras; by default the cameras of the runs if all runs have the same, otherwise the first camera.
        max_videos: Maximum number of videos.
        seed: Random seed.
        dialect: The dialect of HDF5 files; by default as in the runs that were trained on the data set.
        check: Called with the episodes before anything is embedded; it may refuse them.
        options: Further options of `compare`.
    """
    flat = [config for found in configs.values() for config in found]
    store, about, trained = open_unseen(flat, data, split, most=max_videos, seed=seed, dialect=dialect)
    if check is not None:
        check(store)
    trained_views = {tuple(config["data"].get("cameras") or ()) for config in flat if "data" in config}
    if not cameras and len(trained_views) == 1:
        (cameras,) = trained_views
        cameras = store.cameras if cameras == ("all",) else cameras
    views = camera_names(tuple(cameras) or None, store)
    seen = iter(trained)
    flattered = [name for name, found in configs.items() if max([next(seen) for _ in found], default=False)]
    fixing = "val" if about["split"] not in (None, "val") and "val" in split_names(data) else None
    validation = None
    if fixing is not None:
        validation = open_unseen(flat, data, fixing, most=max_videos, seed=seed, dialect=dialect)[0]
    texts = {info.instruction for part in (store, validation) if part for info in part.episodes}
    runs = [
        (one, config)
        for name, group in rewards.items()
        for one, config in zip(group, configs[name], strict=False)
        if isinstance(one, EncoderReward)
    ]
    judged = about.pop("judged", [])
    apart = [pair for one, config in runs if "judged" in config for pair in _appoint_judges(one, config, judged)]
    sources = {id(one): config for one, config in [*runs, *apart] if "data" in config}
    other = next(iter(sources.values()), _training_split(data, about["split"], dialect))
    for one in [*(one for group in rewards.values() for one in group), *(judge for judge, _ in apart)]:
        if isinstance(one, EncoderReward) and one.model.form == "goal":
            one.goals = _goals(one, sources.get(id(one), other), texts, views)
    for reading in [one for group in options.get("readings", {}).values() for one in group]:
        _read_judges(reading, [one for one, _ in runs])
    first = next(((one, config) for one, config in runs if "data" in config), None)
    comparison = compare(
        rewards,
        store,
        scenes=None if first is None else scene_rewards(*first, texts, seed, judged=judged),
        validation=validation,
        trained_on_these=flattered,
        features=_features(runs, store, data, views),
        cameras=views,
        seed=seed,
        about=about,
        **options,
    )
    return Compared(comparison, store, views)


def _appoint_judges(
    reward: EncoderReward, config: Mapping[str, Any], judged: Sequence[int]
) -> list[tuple[EncoderReward, Mapping[str, Any]]]:
    """Choose for each compared episode the run's judge that was not trained on it; return judges and settings.

    Judges are the models of cross-fitting: each was trained without one part of the episodes.

    Args:
        reward: The run's reward.
        config: The run's configuration.
        judged: The number of each compared episode in the whole data set; empty if judges are not needed.
    """
    found: list[tuple[EncoderReward, Mapping[str, Any]]] = []
    if reward.run is None:
        return found
    for number, part in enumerate(map(set, config["judged"])):
        episodes = [at for at, episode in enumerate(judged) if episode in part]
        if episodes:
            folder = reward.run / "judges" / str(number)
            judge = EncoderReward(RewardModel.from_pretrained(folder, device=_device(reward)), reward.name)
            judge.model.calibration = reward.model.calibration
            reward.judges |= dict.fromkeys(episodes, judge)
            found.append((judge, read_config(folder / "config.json")))
    return found


def _device(reward: EncoderReward) -> str:
    encoder = reward.model.encoder
    return str(encoder.mean.device) if isinstance(encoder, DualEncoder) else "cpu"


def _read_judges(reading: Reward, runs: Sequence[EncoderReward]) -> None:
    """Give the run's judges to another reward form of the run's encoder; the judges then score in this form."""
    for run in runs:
        if isinstance(reading, EncoderReward) and reading.model.encoder is run.model.encoder:
            judges = {id(one): one for one in run.judges.values() if isinstance(one, EncoderReward)}
            read = {
                key: EncoderReward(RewardModel(one.model.encoder, form=reading.model.form), reading.name)
                for key, one in judges.items()
            }
            reading.judges |= {episode: read[id(one)] for episode, one in run.judges.items()}


def _training_split(data: Path, compared: str | None, dialect: str | None) -> Mapping[str, Any] | None:
    """Return the configuration of a run on the split `train`, unless there is none beside the compared split."""
    beside = compared not in (None, "train") and "train" in split_names(data)
    return {"data": {"path": str(data), "train_split": "train", "dialect": dialect}} if beside else None


def _goals(
    reward: EncoderReward, config: Mapping[str, Any] | None, texts: set[str], cameras: tuple[str, ...]
) -> dict[str, Array]:
    """Return, for each instruction, the embedded last frames of its first `GOALS` training episodes.

    Args:
        reward: The reward.
        config: The configuration of the run that was trained on these episodes; for a reward that is no run, that of
            another run, or the result of `_training_split`.
        texts: The instructions.
        cameras: The cameras.
    """
    expected, hint = "a split train beside the compared one, or a run", "name a run too, or leave the reward out"
    require(config, reward.name, "no training episodes, whose last frames would be its goal images", expected, hint)
    assert config is not None
    opened, hint = open_training(config), "put them back, or leave the reward out"
    require(opened is not None, reward.name, f"no training data at {config['data']['path']}", "its goal images", hint)
    assert opened is not None
    store, numbers = opened
    views = camera_names(cameras, store)
    found: dict[str, list[Array]] = {}
    for number in numbers:
        info = store.episodes[number]
        images = found.setdefault(info.instruction, [])
        if info.instruction in texts and info.success is not False and len(images) < GOALS:
            images.append(embed_steps(reward.model.encoder, store, number, np.array([info.length - 1]), views))
    return {text: np.concatenate(images) for text, images in found.items() if images}


def _features(
    runs: Sequence[tuple[EncoderReward, Mapping[str, Any]]], store: SubsetStore, data: Path, cameras: tuple[str, ...]
) -> dict[str, EpisodeStore]:
    """Return stored features of frozen backbones, by digest, for runs trained on one camera of these data."""
    found: dict[str, EpisodeStore] = {}
    for reward, config in runs:
        encoder = reward.model.encoder
        if not (isinstance(encoder, DualEncoder) and encoder.config.freeze_image):
            continue
        if len(cameras) == 1 and trains_on(config, data):
            whole = store.whole if cameras == store.cameras[:1] else OneCameraStore(store.whole, cameras[0])
            kept = features_of(encoder, whole, root=config["data"].get("cache"))
            found[encoder.backbone_digest] = SubsetStore(kept, store.indices)
    return found


def write_comparison(comparison: Comparison, out: Path) -> Path:
    """Write `OUT/compare.html` and `OUT/compare.json`, print a summary, and return the page.

    Raises:
        MissingExtraError: If the extra `report` is not installed.
    """
    page = render("compare.html.j2", [TEMPLATES], **page_values(comparison))
    write_atomically(out / "compare.json", comparison.to_json())
    write_atomically(out / "compare.html", page)
    for row in comparison.rows:
        if not row.control:
            print(f"{row.name}: {row.verdict}")
    for name, reason in comparison.failed.items():
        print(f"{name}: left out, since it failed: found {reason}")
    return out / "compare.html"


def page_values(comparison: Comparison) -> dict[str, Any]:
    """Return the values that fill the template `compare.html.j2`."""
    first, rows = comparison.rows[0], comparison.rows
    named = [name for name in REWARD if any(name in row.inputs[RECORDED] for row in rows)]
    return {
        "report_style": Markup((TEMPLATES / "report.css").read_text()),
        "c": comparison,
        "several": len(comparison.instructions) > 1,
        "about": comparison.about,
        "metrics": REWARD,
        "named": named,
        "recorded": RECORDED,
        "differences": [d for d in comparison.differences if d.of == first.name],
        "heatmaps": [
            shown(heatmap, f"{row.name}, {heatmap.name}" if len(row.heatmaps) > 1 else row.name)
            for row in rows
            if not row.control
            for heatmap in row.heatmaps
        ],
        "signed": signed,
        "spelt": spelt,
        "breakable": breakable,
    }


def shown(heatmap: Heatmap, title: str) -> dict[str, Any]:
    """Return a heat map's values on the page: the first `MOST_COLUMNS` columns, and the largest |score| (`reach`)."""
    names = heatmap.columns[:MOST_COLUMNS]
    scores = zip(heatmap.rows, heatmap.values, strict=True)
    rows = [(names.index(row), values[: len(names)]) for row, values in scores if row in names]
    reach = max(abs(value) for _, values in rows for value in values) or 1.0
    return {"title": title, "names": names, "rows": rows, "reach": reach}


FRAMES = ("first", "middle", "last")
SCENES = 100
"""Maximum number of training episodes that a classifier learns from."""


def _fitted(features: Float[Array, "N E"], labels: NDArray[np.int64]) -> Any:
    linear, pipeline, preprocessing = (
        import_extra(f"sklearn.{name}", "report") for name in ("linear_model", "pipeline", "preprocessing")
    )
    model = pipeline.make_pipeline(preprocessing.StandardScaler(), linear.LogisticRegression(max_iter=2000))
    return model.fit(features, labels)


def _seeing(known: Embedder) -> Embedder:
    return FrozenPart(known) if isinstance(known, DualEncoder) and known.config.freeze_image else known


class SceneReward:
    """A reward from one frame: a classifier's probability of each instruction, the same at every step.

    Args:
        frame: `first`, `middle` or `last`.
        encoder: An encoder of frames.
        model: The fitted classifier of its embeddings.
        instructions: The instruction of each class of the model.

    Attributes:
        judges: With cross-fitting, the classifier that did not learn from an episode, keyed by the episode's number.
    """

    progress = False

    def __init__(self, frame: str, encoder: Embedder, model: Any, instructions: Sequence[str]) -> None:
        self.name, self.frame, self.encoder = f"linear, {frame} frame", frame, encoder
        self.model, self.instructions = model, tuple(instructions)
        self.judges: dict[int, SceneReward] = {}

    def watch(self, frames: Frames, shared: dict[Any, Any]) -> Curves:
        """Return the curves of a video, from the embeddings of other rewards if there are any.

        Otherwise, the first camera's frame is embedded at first use, once for all classifiers.
        """
        if (judge := self.judges.get(shared.get(EPISODE, -1))) is not None:
            return judge.watch(frames, shared)
        view, seen = next(iter(frames.values())), shared.setdefault("single frames", {})
        known = shared.get(self.encoder.digest if isinstance(self.encoder, FrozenPart) else id(self.encoder))
        told: dict[int, dict[str, float]] = {}

        def curves(
            steps: Int[NDArray[np.int64], " N"], instructions: Sequence[str], *, progress: bool = False
        ) -> Float[Array, "L N"]:
            at = int(steps[{"first": 0, "middle": len(steps) // 2, "last": -1}[self.frame]])
            if at not in seen and known is not None:
                seen[at] = known[at : at + 1] if known.ndim == 2 else known[at : at + 1, 0]
            if at not in seen:
                beside = {STATE: frames[STATE][at : at + 1]} if STATE in frames else {}
                seen[at] = embed_frames(self.encoder, {"": view[at : at + 1], **beside})
            if at not in told:
                chances = self.model.predict_proba(seen[at])[0].tolist()
                told[at] = dict(zip(self.instructions, chances, strict=True))
            return np.repeat([[told[at].get(text, 0.0)] for text in instructions], len(steps), axis=1)

        return curves


def scene_rewards(
    reward: EncoderReward, config: Mapping[str, Any], instructions: Iterable[str], seed: int, judged: Sequence[int] = ()
) -> dict[str, list[SceneReward]]:
    """Return the classifiers of single frames by name; empty if the run's data are missing or have only one task.

    Args:
        reward: The run's reward.
        config: The run's configuration; only its first camera is used.
        instructions: The candidate instructions; those without a training episode get probability 0.
        seed: Random seed of the sample of `SCENES` training episodes.
        judged: With cross-fitting, the number of each compared episode in the whole data set.
    """
    opened, columns = open_training(config), sorted(instructions)
    store, numbers = opened if opened is not None else (None, [])
    if store is None:
        return {}
    usable = [at for at in numbers if store.episodes[at].instruction in columns]
    order = np.random.default_rng(seed).permutation(len(usable))[:SCENES]
    chosen = [usable[at] for at in sorted(order.tolist())]
    labels = np.array([columns.index(store.episodes[at].instruction) for at in chosen], np.int64)
    if len(set(labels.tolist())) < 2:
        return {}
    names = config["data"].get("cameras") or None
    camera = camera_names(store.cameras if names == ["all"] else names, store)[0]
    encoder, rows = _seeing(reward.model.encoder), []
    with ProgressBar("Looking at single frames", len(chosen), "videos") as progress:
        for at in chosen:
            last = store.episodes[at].length - 1
            rows.append(embed_steps(encoder, store, at, np.array([0, (last + 1) // 2, last]), (camera,)))
            progress.advance()
    seen, found = np.stack(rows), {}
    for at, frame in enumerate(FRAMES):

        def classifier(without: Collection[int] = (), at: int = at, frame: str = frame) -> SceneReward | None:
            kept = [row for row, episode in enumerate(chosen) if episode not in without]
            if len(set(labels[kept].tolist())) < 2:
                return None
            model = _fitted(seen[kept, at], labels[kept])
            return SceneReward(frame, encoder, model, [columns[label] for label in model[-1].classes_])

        one = classifier()
        assert one is not None
        for part in map(set, config.get("judged", ()) if judged else ()):
            judge = classifier(part)
            one.judges |= {n: judge for n, episode in enumerate(judged) if episode in part and judge is not None}
        found[one.name] = [one]
    return found
