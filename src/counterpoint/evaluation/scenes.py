"""A linear classifier of one frame: the bar that recognising the scene sets for a reward.

It is a logistic regression from the first, the middle or the last frame of the training episodes to their instruction,
on features of a frozen backbone, or else on the encoder's embeddings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from counterpoint.data.store import EpisodeStore, camera_names
from counterpoint.encoders.dual import DualEncoder
from counterpoint.errors import import_extra
from counterpoint.formats import open_dataset, split_names
from counterpoint.progress import ProgressBar
from counterpoint.rewards.model import STATE, Embedder, FrozenPart, embed_frames, embed_steps
from counterpoint.rewards.sources import Curves, EncoderReward, Frames

Array = NDArray[np.float64]
FRAMES = ("first", "middle", "last")
SCENES = 100
"""Most training episodes that a classifier learns from."""


@dataclass(frozen=True)
class Scenes:
    """First, middle and last frames, for a linear classifier of one frame.

    Attributes:
        training: Features of training episodes' frames, [N, 3, E]: of a frozen backbone, or embeddings.
        labels: Column of each training episode's instruction, [N].
        videos: Features of the evaluated videos' frames, [V, 3, E].
    """

    training: Float[Array, "N 3 E"]
    labels: NDArray[np.int64]
    videos: Float[Array, "V 3 E"]


def linear_scores(scenes: Scenes, instructions: int) -> dict[str, Float[Array, "V L"]]:
    """Return scores of the first, the middle and the last frame by logistic regression on training episodes' frames.

    Instructions that no training episode carries out score below all others.
    """
    found = {}
    for at, name in enumerate(FRAMES):
        model = _fitted(scenes.training[:, at], scenes.labels)
        scores = np.full((len(scenes.videos), instructions), -np.inf)
        scores[:, model[-1].classes_] = model.predict_log_proba(scenes.videos[:, at])
        found[name] = scores
    return found


def _fitted(features: Float[Array, "N E"], labels: NDArray[np.int64]) -> Any:
    linear, pipeline, preprocessing = (
        import_extra(f"sklearn.{name}", "report") for name in ("linear_model", "pipeline", "preprocessing")
    )
    model = pipeline.make_pipeline(preprocessing.StandardScaler(), linear.LogisticRegression(max_iter=2000))
    return model.fit(features, labels)


def open_training(config: Mapping[str, Any]) -> tuple[EpisodeStore, list[int]] | None:
    """Open the data of a run, as recorded, with the numbers of the episodes it was trained on; `None` if they moved."""
    section = config["data"]
    path, inside = Path(section["path"]), section.get("train_split")
    if not path.exists():
        return None
    store = open_dataset(path, split=inside if inside in split_names(path) else None)
    out = set(config.get("held_out", ()))
    return store, [number for number, info in enumerate(store.episodes) if number not in out and info.length > 1]


def scenes_of(
    known: Embedder,
    config: Mapping[str, Any],
    instructions: Sequence[str],
    seed: int,
    videos: EpisodeStore | None = None,
) -> Scenes | None:
    """Return single frames of a run's training episodes, and of videos; `None` without two instructions to learn.

    Args:
        known: The run's encoder.
        config: The run's configuration; of several cameras the first is read.
        instructions: The columns.
        seed: Random seed of the sample of `SCENES` training episodes.
        videos: The evaluated videos.
    """
    opened = open_training(config)
    if opened is None:
        return None
    columns = {text: at for at, text in enumerate(instructions)}
    store, numbers = opened
    usable = [at for at in numbers if store.episodes[at].instruction in columns]
    order = np.random.default_rng(seed).permutation(len(usable))[:SCENES]
    chosen = [usable[at] for at in sorted(order.tolist())]
    labels = np.array([columns[store.episodes[at].instruction] for at in chosen], np.int64)
    if len(set(labels.tolist())) < 2:
        return None
    names = config["data"].get("cameras") or None
    camera = camera_names(store.cameras if names == ["all"] else names, store.cameras)[0]
    encoder = _seeing(known)

    def features(of: EpisodeStore, number: int) -> Float[Array, "3 E"]:
        last = of.episodes[number].length - 1
        return embed_steps(encoder, of, number, np.array([0, (last + 1) // 2, last]), (camera,))

    others = [] if videos is None else [(videos, at) for at in range(len(videos.episodes))]
    with ProgressBar("Looking at single frames", len(chosen) + len(others), "videos") as progress:
        found = []
        for of, at in [*((store, at) for at in chosen), *others]:
            found.append(features(of, at))
            progress.advance()
    training = np.stack(found[: len(chosen)])
    return Scenes(training, labels, np.stack(found[len(chosen) :]) if others else training[:0])


def _seeing(known: Embedder) -> Embedder:
    return FrozenPart(known) if isinstance(known, DualEncoder) and known.config.freeze_image else known


class SceneReward:
    """The classifier of one frame as a reward: the chance of each instruction, the same at every step.

    Args:
        frame: `first`, `middle` or `last`.
        encoder: An encoder of frames.
        model: The fitted classifier of its embeddings.
        instructions: The instruction of each class of the model.
    """

    progress = False

    def __init__(self, frame: str, encoder: Embedder, model: Any, instructions: Sequence[str]) -> None:
        self.name, self.frame, self.encoder = f"linear, {frame} frame", frame, encoder
        self.model, self.instructions = model, tuple(instructions)

    def watch(self, frames: Frames, shared: dict[str, Any]) -> Curves:
        """Embed the frame of the first camera when a curve is asked for, once for all classifiers."""
        view, seen = next(iter(frames.values())), shared.setdefault("single frames", {})

        def curves(
            steps: Int[NDArray[np.int64], " N"], instructions: Sequence[str], *, progress: bool = False
        ) -> Float[Array, "L N"]:
            at = int(steps[{"first": 0, "middle": len(steps) // 2, "last": -1}[self.frame]])
            if at not in seen:
                beside = {STATE: frames[STATE][at : at + 1]} if STATE in frames else {}
                seen[at] = embed_frames(self.encoder, {"": view[at : at + 1], **beside})
            chances = dict(zip(self.instructions, self.model.predict_proba(seen[at])[0].tolist(), strict=True))
            return np.repeat([[chances.get(text, 0.0)] for text in instructions], len(steps), axis=1)

        return curves


def scene_rewards(
    reward: EncoderReward, config: Mapping[str, Any], instructions: Iterable[str], seed: int
) -> dict[str, list[SceneReward]]:
    """Return the classifiers of a run's training frames by name; none where its data are gone or name one task."""
    texts = sorted(instructions)
    scenes = scenes_of(reward.model.encoder, config, texts, seed)
    if scenes is None:
        return {}
    found = {}
    for at, frame in enumerate(FRAMES):
        model = _fitted(scenes.training[:, at], scenes.labels)
        one = SceneReward(frame, _seeing(reward.model.encoder), model, [texts[label] for label in model[-1].classes_])
        found[one.name] = [one]
    return found
