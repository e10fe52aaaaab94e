"""All that numbers can say about an encoder on held-out, instructed videos, with intervals; to JSON and back."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from counterpoint.data.draws import StartGoal, sample_rng
from counterpoint.data.store import EpisodeStore
from counterpoint.encoders.towers import RewardForm
from counterpoint.errors import BadInputError, require
from counterpoint.evaluation import metrics
from counterpoint.evaluation.embedded import EmbeddedVideos, embed_paraphrases, embed_store
from counterpoint.evaluation.probes import representation_estimates
from counterpoint.evaluation.statistics import Estimate, mean_bca, mean_where_defined, wilson
from counterpoint.rewards.model import (
    Embedder,
    SegmentScore,
    as_form,
    cosine,
    potential,
    potential_gain,
    transition,
    transition_score,
)


@dataclass(frozen=True)
class Heatmap:
    """Mean segment scores: DecisionNCE's Figure 6.

    Attributes:
        name: The kind of segments.
        rows: Instructions that the segments carry out.
        columns: Instructions they are scored under.
        values: Mean score [rows, columns].
    """

    name: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Evaluation:
    """Measured numbers, and the data behind them.

    Attributes:
        form: The reward that the encoder was trained for. Estimates of both forms are kept: `voc.potential`,
            `voc.transition`.
        seed: Random seed of segments, shuffles and resamples.
        videos: Number of videos.
        frames: Number of embedded frames.
        chance: Matched accuracy of a guess: one over the number of instructions.
        instructions: The candidates.
        fingerprint: Content of the data.
        estimates: Name -> number with interval; `docs/methods/metrics.md` defines each name.
        heatmaps: Short segments, then whole videos, scored as `form` says.
    """

    form: RewardForm
    seed: int
    videos: int
    frames: int
    chance: float
    instructions: tuple[str, ...]
    fingerprint: str
    estimates: Mapping[str, Estimate]
    heatmaps: tuple[Heatmap, ...]

    def __getitem__(self, name: str) -> Estimate:
        """Return an estimate by name; `voc` means `voc.potential` or `voc.transition`, as `form` says."""
        return self.estimates[name if name in self.estimates else f"{name}.{self.form}"]

    def to_json(self) -> str:
        """Return strict JSON: undefined numbers are null."""
        return json.dumps(_nan_to_none(asdict(self)), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Evaluation:
        """Read the output of `to_json`.

        Raises:
            BadInputError: Other text.
        """
        try:
            tree = json.loads(text)
            tree["estimates"] = {name: _estimate(parts) for name, parts in tree["estimates"].items()}
            tree["heatmaps"] = tuple(Heatmap(**_tuples(parts)) for parts in tree["heatmaps"])
            return cls(**{**tree, "instructions": tuple(tree["instructions"])})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInputError("evaluation", f"{error!r}", "JSON by Evaluation.to_json", "evaluate again") from None


def _nan_to_none(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {name: _nan_to_none(value) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_nan_to_none(value) for value in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


def _estimate(parts: Mapping[str, Any]) -> Estimate:
    values: dict[str, Any] = {name: math.nan if value is None else value for name, value in parts.items()}
    return Estimate(**values)


def _tuples(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {name: _tuples(value) for name, value in tree.items()}
    return tuple(_tuples(value) for value in tree) if isinstance(tree, list) else tree


Array = NDArray[np.float64]
Curve = Callable[[Array, Array], Array]

CURVES: Mapping[RewardForm, Curve] = {"potential": potential, "transition": transition}
SEGMENTS: Mapping[RewardForm, SegmentScore] = {"potential": potential_gain, "transition": transition_score}
SHORT = 0.2
"""A short segment is a fifth of its video."""


def evaluate_encoder(
    encoder: Embedder,
    store: EpisodeStore,
    *,
    form: RewardForm = "potential",
    seed: int = 0,
    instructions: Sequence[str] | None = None,
    paraphrases: Mapping[str, Sequence[str]] | None = None,
    camera: str | None = None,
    max_frames: int = 128,
) -> Evaluation:
    """Evaluate an encoder on held-out episodes, each embedded once.

    Args:
        encoder: The encoder.
        store: Held-out episodes.
        form: The reward that the encoder was trained for.
        seed: Random seed of segments, shuffles and resamples.
        instructions: Candidates; the store's own by default.
        paraphrases: Instruction -> paraphrases that training did not see.
        camera: The view; by default the store's first.
        max_frames: Greatest number of embedded frames of an episode, evenly spread.

    Raises:
        BadInputError: A store or instructions that cannot be evaluated; see `embed_store`.
    """
    embedded = embed_store(encoder, store, instructions=instructions, camera=camera, max_frames=max_frames)
    said = embed_paraphrases(encoder, embedded.instructions, paraphrases) if paraphrases else []
    return evaluate_embedded(embedded, form=form, seed=seed, paraphrases=said)


def evaluate_embedded(
    embedded: EmbeddedVideos, *, form: RewardForm = "potential", seed: int = 0, paraphrases: Sequence[Array] = ()
) -> Evaluation:
    """Evaluate embeddings; `paraphrases` are text embeddings [L, D], each a paraphrase of the instructions."""
    form = as_form(form)
    hint = "score it with counterpoint reward"
    require(form in CURVES, "form", form, "a form that compares frames with language: potential or transition", hint)
    estimates: dict[str, Estimate] = {}
    for name in CURVES:
        of_form = {
            **_time_estimates(embedded, CURVES[name], seed),
            **_grounding_estimates(embedded, SEGMENTS[name], paraphrases, seed),
        }
        estimates |= {f"{key}.{name}": value for key, value in of_form.items()}
    last = cosine(embedded.last(), embedded.text)
    estimates["accuracy_last_frame"] = _share(metrics.matched(last, embedded.own))
    estimates |= representation_estimates(embedded, seed)
    return Evaluation(
        form=form,
        seed=seed,
        videos=len(embedded.videos),
        frames=sum(len(video) for video in embedded.videos),
        chance=1 / len(embedded.instructions),
        instructions=embedded.instructions,
        fingerprint=embedded.fingerprint,
        estimates=estimates,
        heatmaps=(
            _heatmap(embedded, "short segments", segment_scores(embedded, SEGMENTS[form], SHORT, seed)),
            _heatmap(embedded, "whole videos", segment_scores(embedded, SEGMENTS[form], 1.0, seed)),
        ),
    )


def reward_curves(embedded: EmbeddedVideos, form: RewardForm) -> list[Float[Array, "L T"]]:
    """Return every video's curve under every instruction."""
    return [CURVES[form](video, embedded.text) for video in embedded.videos]


def segment_scores(
    embedded: EmbeddedVideos, score: SegmentScore, share: float | None, seed: int, count: int = 16
) -> Float[Array, "V K L"]:
    """Score K segments of every video under every instruction.

    Args:
        embedded: Videos and instructions.
        score: DecisionNCE-P's (`potential_gain`) or -T's (`transition_score`).
        share: Length as a share of the video, with K uniform starts; 1 is the whole video (K = 1); `None`
            samples start and goal as training does (Eq. 8's rule).
        seed: Random seed of the samples, keyed on video and segment.
        count: K.
    """
    rows = []
    for number, video in enumerate(embedded.videos):
        rngs = (sample_rng(seed, number * count + k, "segment") for k in range(count))
        ends = np.array([_ends(len(video), share, rng) for rng in rngs])
        ends = ends[:1] if share == 1.0 else ends
        rows.append(score(video[ends[:, 0]], video[ends[:, 1]], embedded.text))
    return np.stack(rows)


def _ends(length: int, share: float | None, rng: np.random.Generator) -> tuple[int, int]:
    if share is None:
        start, goal = StartGoal()(np.array([length]), rng)[0]
        return int(start), int(goal)
    span = max(1, round(share * (length - 1)))
    start = int(rng.integers(0, length - span))
    return start, start + span


def _time_estimates(embedded: EmbeddedVideos, curve: Curve, seed: int) -> dict[str, Estimate]:
    """Return the rank correlation with time, and the controls without which it means nothing."""
    voc = metrics.value_order_correlation
    found: dict[str, list[float]] = {}
    for number, (video, own) in enumerate(zip(embedded.videos, embedded.own, strict=True)):
        mine = embedded.text[own : own + 1]
        values = curve(video, embedded.text)
        shuffled = sample_rng(seed, number, "shuffle").permutation(len(video))
        wrong = [voc(row) for column, row in enumerate(values) if column != own]
        for name, value in {
            "voc": voc(values[own]),
            "kendall_tau_b": metrics.kendall_tau_b(values[own]),
            "voc_wrong_instruction": float(np.mean(wrong)),
            "voc_reversed": voc(curve(video[::-1], mine)[0]),
            "voc_shuffled": voc(curve(video[shuffled], mine)[0]),
            "voc_of_a_ramp": voc(np.arange(len(video), dtype=np.float64)),
            "voc_of_a_constant": voc(np.ones(len(video))),
        }.items():
            found.setdefault(name, []).append(value)
    strata = embedded.own.tolist()
    return {name: mean_where_defined(np.array(values), strata, seed=seed) for name, values in found.items()}


def _grounding_estimates(
    embedded: EmbeddedVideos, score: SegmentScore, paraphrases: Sequence[Array], seed: int
) -> dict[str, Estimate]:
    """Return how well videos and instructions identify each other."""
    own, strata = embedded.own, embedded.own.tolist()
    whole = segment_scores(embedded, score, 1.0, seed)[:, 0]
    found = {
        "accuracy_whole_video": _share(metrics.matched(whole, own)),
        "triples_whole_video": mean_where_defined(metrics.triples(whole, own), strata, seed=seed),
        "confusion_gap": mean_bca(metrics.confusion_gap(whole, own), seed=seed),
    }
    hard = metrics.one_word_apart(embedded.instructions)
    if hard.any():
        found["triples_one_word_apart"] = mean_where_defined(metrics.triples(whole, own, hard), strata, seed=seed)
    for name, share in {"random": None, "short": SHORT}.items():
        by_segment = np.moveaxis(segment_scores(embedded, score, share, seed), 1, 0)
        hits = np.mean([metrics.matched(row, own) for row in by_segment], axis=0)
        found[f"accuracy_{name}_segments"] = mean_where_defined(hits, strata, seed=seed)
    if paraphrases:
        said = [segment_scores(embedded.in_other_words(text), score, 1.0, seed)[:, 0] for text in paraphrases]
        hits = np.mean([metrics.matched(row, own) for row in said], axis=0)
        found["accuracy_paraphrases"] = mean_where_defined(hits, strata, seed=seed)
    return found


def _heatmap(embedded: EmbeddedVideos, name: str, segments: Float[Array, "V K L"]) -> Heatmap:
    seen = [row for row in range(len(embedded.instructions)) if (embedded.own == row).any()]
    values = [segments[embedded.own == row].mean(axis=(0, 1)) for row in seen]
    return Heatmap(
        name=name,
        rows=tuple(embedded.instructions[row] for row in seen),
        columns=embedded.instructions,
        values=tuple(tuple(float(value) for value in row) for row in values),
    )


def _share(hits: NDArray[np.bool_]) -> Estimate:
    return wilson(int(hits.sum()), len(hits))
