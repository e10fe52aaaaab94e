"""A linear classifier of one frame: the bar that recognising the scene sets for a reward.

It is a logistic regression from the first, the middle or the last frame of the training episodes to their instruction,
on features of a frozen backbone, or else on the encoder's embeddings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from counterpoint.data.store import camera_names
from counterpoint.encoders.dual import DualEncoder
from counterpoint.errors import import_extra
from counterpoint.evaluation.held_out import open_training
from counterpoint.progress import ProgressBar
from counterpoint.rewards.model import STATE, Embedder, FrozenPart, embed_frames, embed_steps
from counterpoint.rewards.sources import Curves, EncoderReward, Frames

Array = NDArray[np.float64]
FRAMES = ("first", "middle", "last")
SCENES = 100
"""Most training episodes that a classifier learns from."""


def _fitted(features: Float[Array, "N E"], labels: NDArray[np.int64]) -> Any:
    linear, pipeline, preprocessing = (
        import_extra(f"sklearn.{name}", "report") for name in ("linear_model", "pipeline", "preprocessing")
    )
    model = pipeline.make_pipeline(preprocessing.StandardScaler(), linear.LogisticRegression(max_iter=2000))
    return model.fit(features, labels)


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

    def watch(self, frames: Frames, shared: dict[Any, Any]) -> Curves:
        """Embed the frame of the first camera when a curve is asked for, once for all classifiers."""
        view, seen = next(iter(frames.values())), shared.setdefault("single frames", {})
        told: dict[int, dict[str, float]] = {}

        def curves(
            steps: Int[NDArray[np.int64], " N"], instructions: Sequence[str], *, progress: bool = False
        ) -> Float[Array, "L N"]:
            at = int(steps[{"first": 0, "middle": len(steps) // 2, "last": -1}[self.frame]])
            if at not in seen:
                beside = {STATE: frames[STATE][at : at + 1]} if STATE in frames else {}
                seen[at] = embed_frames(self.encoder, {"": view[at : at + 1], **beside})
            if at not in told:
                chances = self.model.predict_proba(seen[at])[0].tolist()
                told[at] = dict(zip(self.instructions, chances, strict=True))
            return np.repeat([[told[at].get(text, 0.0)] for text in instructions], len(steps), axis=1)

        return curves


def scene_rewards(
    reward: EncoderReward, config: Mapping[str, Any], instructions: Iterable[str], seed: int
) -> dict[str, list[SceneReward]]:
    """Return the classifiers of single frames by name; none where a run's data are gone or name one task.

    Args:
        reward: The run's reward.
        config: The run's configuration; the first of its cameras is read.
        instructions: The candidates; those that no training episode carries out have no chance.
        seed: Random seed of the sample of `SCENES` training episodes.
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
    camera = camera_names(store.cameras if names == ["all"] else names, store.cameras)[0]
    encoder, rows = _seeing(reward.model.encoder), []
    with ProgressBar("Looking at single frames", len(chosen), "videos") as progress:
        for at in chosen:
            last = store.episodes[at].length - 1
            rows.append(embed_steps(encoder, store, at, np.array([0, (last + 1) // 2, last]), (camera,)))
            progress.advance()
    found = {}
    for at, frame in enumerate(FRAMES):
        model = _fitted(np.stack(rows)[:, at], labels)
        one = SceneReward(frame, encoder, model, [columns[label] for label in model[-1].classes_])
        found[one.name] = [one]
    return found
