"""All that numbers can say about an encoder on held-out, instructed videos, with intervals; to JSON and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from counterpoint.data.draws import StartGoal, sample_rng
from counterpoint.data.store import Cameras, EpisodeStore
from counterpoint.encoders.calibration import RewardForm
from counterpoint.errors import BadInputError, require
from counterpoint.evaluation import metrics
from counterpoint.evaluation.embedded import EmbeddedVideos, embed_store
from counterpoint.evaluation.scenes import FRAMES, Scenes, linear_scores
from counterpoint.evaluation.statistics import (
    Estimate,
    mean_bca,
    mean_percentile,
    mean_where_defined,
    share_over_tasks,
    statistic_percentile,
)
from counterpoint.rewards.model import (
    Embedder,
    SegmentScore,
    cosine,
    embed_text,
    goal_similarity,
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
        form: The reward that the encoder was trained for. Estimates of every form are kept: `voc.potential`,
            `voc.similarity`, `voc.transition`.
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
        """Return an estimate by name; `voc` means `voc.potential`, say, where `form` is `potential`."""
        return self.estimates[name if name in self.estimates else f"{name}.{self.form}"]

    def verdict(self, *, held_out: bool = True) -> str:
        """Return in one sentence what was learned, by the accuracy of whole videos beside chance and one frame."""
        names = [f"{way}{name}" for way in ("", "linear_") for name in FRAMES]
        frames = {name: self[f"accuracy_{name}_frame"] for name in names if f"accuracy_{name}_frame" in self.estimates}
        best = max(frames, key=lambda name: frames[name].value)
        way = "a linear classifier of " if best.startswith("linear_") else ""
        shown = f"{way}the {best.removeprefix('linear_')} frame"
        alone = (shown, frames[best].value, self[f"accuracy_over_{best}_frame"])
        return verdict(self["accuracy_whole_video"], len(self.instructions), alone, held_out=held_out)

    def to_json(self) -> str:
        """Return strict JSON: undefined numbers are null."""
        return TypeAdapter(Evaluation).dump_json(self, indent=2).decode() + "\n"

    @classmethod
    def from_json(cls, text: str) -> Evaluation:
        """Read the output of `to_json`.

        Raises:
            BadInputError: Other text.
        """
        try:
            return TypeAdapter(cls).validate_json(text)
        except ValidationError as error:
            found = error.errors()[0]["msg"]
            raise BadInputError("evaluation", found, "JSON by Evaluation.to_json", "evaluate again") from None


def verdict(accuracy: Estimate, instructions: int, alone: tuple[str, float, Estimate], *, held_out: bool = True) -> str:
    """Return in one sentence whether a reward tells instructions apart, and by more than the scene.

    Args:
        accuracy: Share of videos whose own instruction scores highest.
        instructions: Number of instructions; a guess gets one over it.
        alone: The single frame that does best: its name, its accuracy, and the accuracy it falls short by, paired.
        held_out: False for videos that the encoder was trained on.
    """
    chance, (frame, same, gain) = 1 / instructions, alone
    videos = f"{accuracy.n} {'held-out ' if held_out else ''}videos{'' if held_out else ' it was trained on'}"
    interval = f"95 % interval {100 * accuracy.low:.0f} to {100 * accuracy.high:.0f} %, chance {100 * chance:.0f} %"
    share = f"in {100 * accuracy.value:.0f} % of {videos} ({interval})"
    if not accuracy.low > chance:
        worse = "Worse than chance" if accuracy.high < chance else "No better than chance"
        return f"{worse}: puts the right one of {instructions} instructions first {share}."
    if same >= accuracy.value:
        return (
            f"Recognises the scene: tells the right instruction from the others {share}, "
            f"and {frame} alone does as well ({100 * same:.0f} %)."
        )
    told = f"Tells the right instruction from the others {share}"
    if gain.low > 0:
        return f"{told}; {frame} alone gets {100 * same:.0f} %."
    return f"{told}; {frame} alone gets {100 * same:.0f} %, a difference that {accuracy.n} videos cannot settle."


Array = NDArray[np.float64]


Curve = Callable[[Array, Array], Array]

CURVES: Mapping[RewardForm, Curve] = {"potential": potential, "similarity": potential, "transition": transition}
SEGMENTS: Mapping[RewardForm, SegmentScore] = {
    "potential": potential_gain,
    "similarity": goal_similarity,
    "transition": transition_score,
}
SHORT = 0.2
"""A short segment is a fifth of its video."""
DRAWS, TRAJECTORIES = 5, 100
"""DecisionNCE's Table 2 (Appendix E.3): five samples of a hundred trajectories."""


def evaluate_encoder(
    encoder: Embedder,
    store: EpisodeStore,
    *,
    form: RewardForm = "potential",
    seed: int = 0,
    instructions: Sequence[str] | None = None,
    paraphrases: Mapping[str, Sequence[str]] | None = None,
    cameras: Cameras = None,
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
        cameras: The view, by default the store's first; of several, scores are the mean (late fusion).
        max_frames: Greatest number of embedded frames of an episode, evenly spread.

    Raises:
        BadInputError: A store or instructions that cannot be evaluated (see `embed_store`), or an instruction without
            a paraphrase.
    """
    embedded = embed_store(encoder, store, instructions=instructions, cameras=cameras, max_frames=max_frames)
    others = [(paraphrases or {}).get(text, ()) for text in embedded.instructions]
    missing = [text for text, found in zip(embedded.instructions, others, strict=True) if not found]
    require(not (paraphrases and missing), "paraphrases", f"none of {missing}", "one or more of each", "add some")
    rounds = [embed_text(encoder, texts) for texts in zip(*others, strict=False)]
    return evaluate_embedded(embedded, form=form, seed=seed, paraphrases=rounds)


def evaluate_embedded(
    embedded: EmbeddedVideos,
    *,
    form: RewardForm = "potential",
    seed: int = 0,
    paraphrases: Sequence[Array] = (),
    scenes: Scenes | None = None,
) -> Evaluation:
    """Evaluate embeddings.

    Args:
        embedded: Videos and instructions.
        form: The reward that the encoder was trained for.
        seed: Random seed of segments, shuffles and resamples.
        paraphrases: Text embeddings [L, D], each a paraphrase of the instructions.
        scenes: Single frames for a linear classifier, the stronger bar that one frame sets.
    """
    require(form in CURVES, "form", form, " or ".join(CURVES), "score other forms with counterpoint reward")
    estimates: dict[str, Estimate] = {}
    alone = one_frame_scores(embedded)
    if scenes is not None:
        alone |= {f"linear_{name}": found for name, found in linear_scores(scenes, len(embedded.text)).items()}
    in_time = {curve: _time_estimates(embedded, curve, seed) for curve in dict.fromkeys(CURVES.values())}
    for name, curve in CURVES.items():
        of_form = in_time[curve] | _grounding_estimates(embedded, SEGMENTS[name], paraphrases, alone, seed)
        estimates |= {f"{key}.{name}": value for key, value in of_form.items()}
    for frame, scores in alone.items():
        estimates |= {f"{key}_{frame}_frame": found for key, found in _told_apart(embedded, scores, seed).items()}
    joint = embedded.side_by_side()
    estimates |= {**_smoothness(embedded, seed), **_first_frames(joint, seed)}
    estimates["effective_rank"] = metrics.effective_rank_estimate(joint.videos)
    probe = metrics.time_probe(joint.videos, seed=seed)
    if probe is not None:
        estimates["time_probe_r2"] = probe
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


def segment_scores(
    embedded: EmbeddedVideos, score: SegmentScore, share: float | None, seed: int, count: int = 16
) -> Float[Array, "V K L"]:
    """Score K segments of every video under every instruction.

    Args:
        embedded: Videos and instructions.
        score: DecisionNCE-P's (`potential_gain`), -T's (`transition_score`) or CLIP's (`goal_similarity`).
        share: Length as a share of the video, with K uniform starts; 1 is the whole video (K = 1); `None`
            samples start and goal as training does (Eq. 8's rule).
        seed: Random seed of the samples, keyed on video and segment.
        count: K.
    """
    rows = []
    for number, video in enumerate(embedded.videos):
        rngs = (sample_rng(seed, number * count + k, "segment") for k in range(1 if share == 1.0 else count))
        ends = np.array([_ends(len(video), share, rng) for rng in rngs])
        rows.append(score(video[ends[:, 0]], video[ends[:, 1]], embedded.text))
    return np.stack(rows)


def _ends(length: int, share: float | None, rng: np.random.Generator) -> tuple[int, int]:
    if share is None:
        start, goal = StartGoal()(np.array([length]), rng)[0]
        return int(start), int(goal)
    span = max(1, round(share * (length - 1)))
    start = int(rng.integers(0, length - span))
    return start, start + span


def _over_videos(rows: Sequence[Mapping[str, float]], embedded: EmbeddedVideos, seed: int) -> dict[str, Estimate]:
    """Return the mean of each number over the videos on which it is defined, one row a video."""
    strata = embedded.own.tolist()
    return {name: mean_where_defined(np.array([row[name] for row in rows]), strata, seed=seed) for name in rows[0]}


def _time_estimates(embedded: EmbeddedVideos, curve: Curve, seed: int) -> dict[str, Estimate]:
    """Return the rank correlation with time, and the controls without which it means nothing."""
    voc, rows = metrics.value_order_correlation, []
    for number, (video, own) in enumerate(zip(embedded.videos, embedded.own, strict=True)):
        mine = embedded.text[own : own + 1]
        values = curve(video, embedded.text)
        shuffled = sample_rng(seed, number, "shuffle").permutation(len(video))
        row = {
            "voc": voc(values[own]),
            "voc_pearson": metrics.value_time_correlation(values[own]),
            "kendall_tau_b": metrics.kendall_tau_b(values[own]),
            "voc_wrong_instruction": float(np.mean([voc(other) for other in np.delete(values, own, axis=0)])),
            "voc_reversed": voc(curve(video[::-1], mine)[0]),
            "voc_shuffled": voc(curve(video[shuffled], mine)[0]),
            "voc_frozen": voc(curve(video[np.full(len(video), len(video) // 2)], mine)[0]),
            "voc_of_a_ramp": voc(np.arange(len(video), dtype=np.float64)),
            "voc_of_a_constant": voc(np.ones(len(video))),
        }
        rows.append(row)
    return _over_videos(rows, embedded, seed)


def _grounding_estimates(
    embedded: EmbeddedVideos,
    score: SegmentScore,
    paraphrases: Sequence[Array],
    alone: Mapping[str, Float[Array, "V L"]],
    seed: int,
) -> dict[str, Estimate]:
    """Return how well videos and instructions identify each other."""
    own, strata = embedded.own, embedded.own.tolist()
    whole = segment_scores(embedded, score, 1.0, seed)[:, 0]
    backwards = score(embedded.frames_at(-1), embedded.frames_at(0), embedded.text)
    found = {f"{key}_whole_video": value for key, value in _told_apart(embedded, whole, seed).items()}
    found |= {f"{key}_reversed": value for key, value in _told_apart(embedded, backwards, seed).items()}
    found["confusion_gap"] = mean_bca(metrics.confusion_gap(whole, own), seed=seed)
    hits = metrics.matched(whole, own)
    for name, scores in alone.items():
        over = hits.astype(np.float64) - metrics.matched(scores, own)
        found[f"accuracy_over_{name}_frame"] = mean_percentile(over, strata, seed=seed)
    rounds = {
        f"accuracy_{name}_segments": np.moveaxis(segment_scores(embedded, score, share, seed), 1, 0)
        for name, share in (("random", None), ("short", SHORT))
    }
    if paraphrases:
        others = [segment_scores(replace(embedded, text=text), score, 1.0, seed)[:, 0] for text in paraphrases]
        rounds["accuracy_paraphrases"] = np.stack(others)
    for name, scores in rounds.items():
        shares = np.mean([metrics.matched(row, own) for row in scores], axis=0)
        found[name] = mean_where_defined(shares, strata, seed=seed)
    return found


def one_frame_scores(embedded: EmbeddedVideos) -> dict[str, Float[Array, "V L"]]:
    """Return the scores of the first, the middle and the last frame alone: their similarity to each instruction.

    A score that does as well from one frame recognises the scene and not what is done in it.
    """
    middle = np.array([len(video) // 2 for video in embedded.videos])
    rows: dict[str, int | NDArray[np.int64]] = {"first": 0, "middle": middle, "last": -1}
    return {name: potential(embedded.frames_at(at), embedded.text).T for name, at in rows.items()}


def _told_apart(embedded: EmbeddedVideos, scores: Float[Array, "V L"], seed: int) -> dict[str, Estimate]:
    """Return accuracy among all instructions, and right against wrong: all, and where one word differs."""
    own, strata = embedded.own, embedded.own.tolist()
    hits, hard = metrics.matched(scores, own), metrics.one_word_apart(embedded.instructions)
    found = {
        "accuracy": share_over_tasks(hits, strata, seed=seed),
        "triples": mean_where_defined(metrics.triples(scores, own), strata, seed=seed),
    }
    if hard.any():
        found["triples_one_word_apart"] = mean_where_defined(metrics.triples(scores, own, hard), strata, seed=seed)
    return found


def _heatmap(embedded: EmbeddedVideos, name: str, segments: Float[Array, "V K L"]) -> Heatmap:
    seen = [row for row in range(len(embedded.instructions)) if (embedded.own == row).any()]
    values = [segments[embedded.own == row].mean(axis=(0, 1)) for row in seen]
    return Heatmap(
        name=name,
        rows=tuple(embedded.instructions[row] for row in seen),
        columns=embedded.instructions,
        values=tuple(tuple(row.tolist()) for row in values),
    )


def _smoothness(embedded: EmbeddedVideos, seed: int) -> dict[str, Estimate]:
    """Return AcTOL's two properties beside those of the same frames in random order, at unit length."""
    rows = []
    for number, (video, steps, own) in enumerate(zip(embedded.videos, embedded.steps, embedded.own, strict=True)):
        times = steps.astype(np.float64)
        similarity = potential(video, embedded.text[own : own + 1])[0]
        flat = video.reshape(len(video), -1)
        unit = flat / np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1e-12)
        shuffled = sample_rng(seed, number, "shuffle").permutation(len(video))
        row = {
            "ordering": metrics.ordering(similarity, times),
            "ordering_shuffled": metrics.ordering(similarity[shuffled], times),
            "step_norm": float(metrics.step_norms(unit).mean()),
            "step_norm_shuffled": float(metrics.step_norms(unit[shuffled]).mean()),
            "jump_ratio": metrics.jump_ratio(unit),
            "bridge_residual": metrics.bridge_residual(unit, times),
            "bridge_residual_shuffled": metrics.bridge_residual(unit[shuffled], times),
        }
        rows.append(row)
    return _over_videos(rows, embedded, seed)


def _first_frames(embedded: EmbeddedVideos, seed: int) -> dict[str, Estimate]:
    """Return DecisionNCE's Table 2, and beside it centred embeddings and last and random frames.

    The language mean is over the videos' instructions, as annotations are averaged in the paper. Centred embeddings
    have the mean over all frames of all videos subtracted.
    """
    rng, count = sample_rng(seed, 0, "table 2"), len(embedded.videos)
    samples = [rng.choice(count, min(TRAJECTORIES, count), replace=False) for _ in range(DRAWS)]
    anywhere = [int(rng.integers(len(video))) for video in embedded.videos]
    first, last = embedded.frames_at(0), embedded.frames_at(-1)
    frames = {"first": first, "last": last, "random": embedded.frames_at(np.array(anywhere))}
    language = embedded.text[embedded.own].mean(axis=0)
    centre = np.mean([video.mean(axis=0) for video in embedded.videos], axis=0)
    found = {}
    for ending, offset in (("", 0.0), ("_centred", centre)):
        for name, rows in frames.items():
            found[f"{name}_frame_similarity{ending}"] = _pairwise(rows - offset, samples, seed)
        near = cosine(first - offset, language[None])
        value = float(np.mean([metrics.cosine_to((first - offset)[sample], language) for sample in samples]))
        interval = mean_percentile(near[np.unique(np.concatenate(samples)), 0], seed=seed)
        found[f"first_frame_to_language{ending}"] = replace(interval, value=value)
    return found


def _pairwise(rows: Float[Array, "V D"], samples: list[NDArray[np.int64]], seed: int) -> Estimate:
    """Return the mean over the samples; the interval resamples their videos and pairs no video with itself."""
    used = np.unique(np.concatenate(samples))
    gram = cosine(rows[used], rows[used])

    def statistic(sampled: NDArray[np.int64]) -> float:
        weight = np.bincount(sampled, minlength=len(used)).astype(np.float64)
        pairs = weight.sum() ** 2 - (weight**2).sum()
        inside = weight @ gram @ weight - (weight**2) @ np.diag(gram)
        return float(inside / pairs) if pairs else math.nan

    value = float(np.mean([metrics.pairwise_cosine(rows[sample]) for sample in samples]))
    return replace(statistic_percentile(statistic, len(used), seed=seed), value=value)
