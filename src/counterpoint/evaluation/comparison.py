"""Compare rewards on the same videos with each other and with controls, which are needed to interpret the numbers.

`counterpoint.evaluation.bench` computes the numbers. All rows share one set of bootstrap samples, so the differences
between two rows are paired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from counterpoint.data.store import Cameras, EpisodeStore
from counterpoint.errors import BadInputError, require
from counterpoint.evaluation.bench import INPUTS, SHORT, Heatmap, Numbers, ask, bench_of, minus, over_seeds
from counterpoint.evaluation.definitions import REWARD
from counterpoint.evaluation.embedded import RECORDED
from counterpoint.evaluation.stages import stage_accuracy
from counterpoint.evaluation.statistics import Drawn, Estimate, as_share, seeds_interval
from counterpoint.provenance import provenance
from counterpoint.rewards.embedding import check_instructions
from counterpoint.rewards.sources import EncoderReward, FunctionReward, Reward, TolerantReward, constant, ramp

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Row:
    """A row of a comparison: the numbers of one reward.

    Attributes:
        name: The reward's name.
        control: True for controls: the ramp, the constant, random weights, linear classifiers of one frame and other
            reward forms.
        seeds: Number of training seeds; each number is a mean over the seeds.
        trained_on_these: True if the reward was trained on the compared videos.
        verdict: A sentence about the reward's accuracy.
        sources: The parts of the accuracy (`sources_of`); empty if there is only one instruction.
        inputs: Numbers, keyed by input and then by name in `definitions.REWARD`; undefined numbers are left out.
        over_seeds: The same numbers for the recorded videos, with an interval over training seeds.
        heatmaps: Mean last values under each instruction, of whole videos and, if computed, of short segments.
    """

    name: str
    control: bool
    seeds: int
    trained_on_these: bool
    verdict: str
    sources: Mapping[str, Estimate]
    inputs: Mapping[str, Mapping[str, Estimate]]
    over_seeds: Mapping[str, Estimate]
    heatmaps: tuple[Heatmap, ...]


@dataclass(frozen=True)
class Difference:
    """The numbers of one row minus the numbers of another row, paired video by video.

    Attributes:
        of: Name of the first row.
        over: Name of the row that is subtracted.
        numbers: Differences, keyed by the number's name.
    """

    of: str
    over: str
    numbers: Mapping[str, Estimate]


@dataclass(frozen=True)
class Comparison:
    """Rewards compared on the same videos.

    Attributes:
        videos: Number of videos.
        successes: Number of videos that succeed, or for which success is not recorded.
        failures: Source of the failures.
        threshold: Source of the thresholds of F1.
        instructions: The candidate instructions.
        chance: For each number's name, the level that a worthless reward reaches.
        fingerprint: Digest of the data's content.
        rows: Rewards, then controls.
        differences: The difference of every pair of rows.
        about: Data, split and versions.
        failed: Reasons why rewards have no row: functions that failed, by name.
    """

    videos: int
    successes: int
    failures: str
    threshold: str
    instructions: tuple[str, ...]
    chance: Mapping[str, float]
    fingerprint: str
    rows: tuple[Row, ...]
    differences: tuple[Difference, ...]
    about: dict[str, Any] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return strict JSON: undefined numbers are null."""
        return TypeAdapter(Comparison).dump_json(self, indent=2).decode() + "\n"

    @classmethod
    def from_json(cls, text: str) -> Comparison:
        """Read the output of `to_json`.

        Raises:
            BadInputError: If the text is not an output of `to_json`.
        """
        try:
            return TypeAdapter(cls).validate_json(text)
        except ValidationError as error:
            found = error.errors()[0]["msg"]
            raise BadInputError("comparison", found, "JSON by Comparison.to_json", "compare again") from None


def compare(
    rewards: Mapping[str, Sequence[Reward]],
    store: EpisodeStore,
    *,
    validation: EpisodeStore | None = None,
    trained_on_these: Sequence[str] = (),
    instructions: Sequence[str] = (),
    paraphrases: Mapping[str, Sequence[str]] | None = None,
    segments: bool = False,
    cameras: Cameras = None,
    max_frames: int = 128,
    seed: int = 0,
    scenes: Mapping[str, Sequence[Reward]] | None = None,
    readings: Mapping[str, Sequence[Reward]] | None = None,
    features: Mapping[str, EpisodeStore] | None = None,
    about: Mapping[str, Any] | None = None,
) -> Comparison:
    """Compare rewards on the same videos with each other, and with a ramp, a constant and random weights.

    A function that fails costs its own row; `Comparison.failed` has the reason.

    Args:
        rewards: For each name, one reward, or a list with one reward per training seed.
        store: Episodes, each with two or more steps and an instruction; episodes recorded as failures count as such.
        validation: Episodes that fix the thresholds of F1. By default, the thresholds for each half of the videos are
            fixed on the other half.
        trained_on_these: Names of rewards that were trained on these videos.
        instructions: Further candidate instructions, in addition to those of the episodes.
        paraphrases: For every candidate instruction, paraphrases that were not in the training data.
        segments: True to measure the rewards on random and short segments of every video too.
        cameras: The camera, by default the store's first; with several, rewards are the mean over the cameras.
        max_frames: Maximum number of frames of a video, evenly spread.
        seed: Random seed of shuffles, segments, random weights and resamples.
        scenes: Further controls, which see one frame: the result of `counterpoint.evaluation.compare.scene_rewards`.
        readings: Further rows: other reward forms of the same encoder.
        features: The same episodes with precomputed features of a frozen backbone, keyed by the backbone's digest.
        about: Further facts to show on the page.

    Raises:
        BadInputError: If there is no reward, an episode cannot be scored, no video is a success, an instruction has no
            paraphrase, or all rewards fail.
    """
    require(rewards, "rewards", "none", "at least one", "name runs, LeRobot models or module:function")
    rewards = {
        name: [TolerantReward(one) if isinstance(one, FunctionReward) else one for one in group]
        for name, group in rewards.items()
    }
    texts = _candidates(store, validation, instructions, paraphrases)
    controls: dict[str, Sequence[Reward]] = {
        "ramp": [FunctionReward(ramp, "ramp", progress=True)],
        "constant": [FunctionReward(constant, "constant", progress=True)],
    }
    ours = [one for group in rewards.values() for one in group if isinstance(one, EncoderReward)]
    if first := next((one for one in ours if one.untrained() is not None), None):
        fresh = [first.untrained(seed + number) for number in range(max(map(len, rewards.values())))]
        controls["random weights"] = [one for one in fresh if one is not None]
    controls |= {**(scenes or {}), **(readings or {})}
    taken = {f"{name} (control)" if name in rewards else name: group for name, group in controls.items()}
    groups = {**rewards, **taken}
    members = [(name, one) for name, group in groups.items() for one in group]
    settings: dict[str, Any] = {"cameras": cameras, "max_frames": max_frames, "seed": seed}
    more: dict[str, Any] = {
        "thorough": sum(map(len, rewards.values())),
        "segments": segments,
        "paraphrases": paraphrases,
        "features": features,
    }
    answered = ask([one for _, one in members], store, texts, **settings, **more)
    stages = stage_accuracy([one for _, one in members], store, cameras=cameras, max_frames=max_frames)
    bench = bench_of(store, texts, seed)
    fixed: list[tuple[Array, NDArray[np.bool_]] | None] = [None] * len(members)
    if validation is not None:
        apart = bench_of(validation, texts, seed)
        for at, answers in enumerate(ask([one for _, one in members], validation, texts, **settings)):
            fixed[at] = apart.scores(answers.inputs[RECORDED]), apart.items[:, 2] == 2
    errors = {name: one.failure for name, one in members if isinstance(one, TolerantReward) and one.failure is not None}
    if errors.keys() >= rewards.keys():
        raise next(iter(errors.values()))
    groups = {name: group for name, group in groups.items() if name not in errors}
    drawn: dict[str, dict[str, Numbers]] = {}
    seeds: dict[str, list[dict[str, Numbers]]] = {}
    for name in groups:
        seeds[name] = [
            {
                **{
                    key: bench.numbers(said, key, fixed[at], stages[at], progress=_is_progress(one, said.cuts))
                    for key in said.inputs
                },
                **{key: bench.share(scores) for key, scores in said.rounds.items()},
            }
            for at, ((owner, one), said) in enumerate(zip(members, answered, strict=True))
            if owner == name
        ]
        drawn[name] = {key: over_seeds([one[key] for one in seeds[name]]) for key in seeds[name][0]}
    single = {name: drawn[name][RECORDED]["accuracy"] for name in (scenes or {}) if len(texts) > 1}
    rows = []
    for name in groups:
        said = [answers for (owner, _), answers in zip(members, answered, strict=True) if owner == name]
        maps = [bench.heatmap("whole videos", np.mean([one.inputs[RECORDED].ends for one in said], axis=0))]
        if all(SHORT in one.rounds for one in said):
            maps.append(bench.heatmap(SHORT, np.mean([one.rounds[SHORT].mean(axis=1) for one in said], axis=0)))
        kind = {"control": name in taken, "trained_on_these": name in trained_on_these}
        rows.append(_row(name, drawn[name], single, seeds[name], tuple(maps), len(texts), **kind))
    names = list(groups)
    pairs = [(one, other) for at, one in enumerate(names) for other in names[at + 1 :]]
    count = int(bench.success.sum())
    failures = "none recorded" + ": each video under another instruction stands in" * (len(texts) > 1)
    failures = f"{len(bench.own) - count} recorded" if bench.recorded else failures
    return Comparison(
        videos=len(bench.own),
        successes=count,
        failures=failures,
        threshold="validation" if validation is not None else "the other half of the videos",
        instructions=texts,
        chance=bench.chance(),
        fingerprint=store.fingerprint,
        rows=tuple(rows),
        differences=tuple(
            Difference(one, other, _estimates(minus(drawn[one][RECORDED], drawn[other][RECORDED])))
            for one, other in pairs
        ),
        about={**(about or {}), "seed": seed, "max_frames": max_frames, "provenance": provenance()},
        failed={name: f"{error.found}; expected {error.expected}" for name, error in errors.items()},
    )


def _candidates(
    store: EpisodeStore,
    validation: EpisodeStore | None,
    further: Sequence[str],
    paraphrases: Mapping[str, Sequence[str]] | None,
) -> tuple[str, ...]:
    """Return the instructions of the episodes, then the further ones; raise if the data cannot be compared."""
    both = [info for part in (store, validation) if part is not None for info in part.episodes]
    texts = tuple(dict.fromkeys([*(info.instruction for info in both), *further]))
    hint = "leave other episodes out: SubsetStore"
    for number, info in enumerate(both):
        good = info.length > 1 and info.instruction.strip()
        found = f"{info.length} step(s), instruction {info.instruction!r}"
        require(good, f"episode {number}", found, "two steps or more, and an instruction", hint)
    require(both, "data", "no episodes", "at least one", "compare on episodes that exist")
    check_instructions(texts)
    hint = "compare on data with successes"
    require(any(info.success is not False for info in store.episodes), "data", "failures alone", "a success", hint)
    missing = [text for text in texts if not (paraphrases or {}).get(text)]
    require(not (paraphrases and missing), "paraphrases", f"none of {missing}", "one or more of each", "add some")
    return texts


def _is_progress(reward: Reward, cuts: Array) -> bool:
    """Return True if a reward is progress: it is declared as such, or it is a function with all values in [0, 1]."""
    return reward.progress or (isinstance(reward, FunctionReward) and cuts.min() >= 0.0 and cuts.max() <= 1.0)


def _estimates(numbers: Numbers) -> dict[str, Estimate]:
    return {name: drawn.estimate() for name, drawn in numbers.items()}


def _row(
    name: str,
    drawn: Mapping[str, Numbers],
    single: Mapping[str, Drawn],
    seeds: Sequence[Mapping[str, Numbers]],
    heatmaps: tuple[Heatmap, ...],
    instructions: int,
    *,
    control: bool,
    trained_on_these: bool,
) -> Row:
    inputs = {key: _estimates(part) for key, part in drawn.items()}
    several = instructions > 1
    if several and len(seeds) == 1:
        for key in INPUTS:
            inputs[key]["accuracy"] = as_share(inputs[key]["accuracy"])
    sources: dict[str, Estimate] = {}
    if several:
        first, last = (
            [drawn[frame]["accuracy"], *(found for name, found in single.items() if frame in name)]
            for frame in ("first frame", "last frame")
        )
        sources = sources_of(drawn[RECORDED]["accuracy"], first, last)
    return Row(
        name=name,
        control=control,
        seeds=len(seeds),
        trained_on_these=trained_on_these,
        verdict=verdict(inputs[RECORDED]["accuracy"], instructions, sources, held_out=not trained_on_these)
        if several
        else _verdict_of_one_task(inputs, held_out=not trained_on_these),
        sources=sources,
        inputs=inputs,
        over_seeds={
            key: seeds_interval(np.array([one[RECORDED][key].values[0] for one in seeds]), share=not REWARD[key].signed)
            for key in (drawn[RECORDED] if len(seeds) > 1 else ())
        },
        heatmaps=heatmaps,
    )


def sources_of(accuracy: Drawn, first: Sequence[Drawn], last: Sequence[Drawn]) -> dict[str, Estimate]:
    """Return what a reward's accuracy comes from: the scene, the end state or the motion.

    All tasks could still follow the first frame of a video of a shared scene, so the first frame shows only the scene.
    The last frame shows the scene and the state in which the task ends.

    Args:
        accuracy: The reward's accuracy on whole videos.
        first: Accuracies from the first frame alone: the reward's, and that of a classifier. The best one counts.
        last: Accuracies from the last frame alone.

    Returns:
        `scene`: the accuracy from the first frame. `end state`: what the last frame adds to it. `motion`: what the
        whole video adds to the better of the two frames. The last two are paired differences.
    """
    scene, end = (max(each, key=lambda one: one.values[0]) for each in (first, last))
    best = max(scene, end, key=lambda one: one.values[0])
    return {"scene": scene.estimate(), "end state": (end - scene).estimate(), "motion": (accuracy - best).estimate()}


def _verdict_of_one_task(inputs: Mapping[str, Mapping[str, Estimate]], *, held_out: bool) -> str:
    """Return the verdict for data with only one task, which cannot test if a reward distinguishes instructions."""
    voc, reversed_ = inputs[RECORDED]["voc"], inputs["reversed"]["voc"]
    seen = f"{voc.n} {'held-out videos' if held_out else 'videos it was trained on'}"
    rises = "Rises with time" if voc.low > 0 else "Does not rise with time"
    return (
        f"{rises}: rank correlation {voc.value:.2f} in {seen} (95 % interval {voc.low:.2f} to {voc.high:.2f}), "
        f"{reversed_.value:.2f} where they are reversed. There is one instruction, so nothing was told apart."
    )


def verdict(accuracy: Estimate, instructions: int, sources: Mapping[str, Estimate], *, held_out: bool = True) -> str:
    """Return two sentences that say if a reward distinguishes instructions, and by what.

    Args:
        accuracy: Share of videos that score highest under their instruction.
        instructions: Number of instructions, L; guessing has an accuracy of 1/L.
        sources: The parts of the accuracy (`sources_of`).
        held_out: False for videos that the encoder was trained on.
    """
    chance = 1 / instructions
    videos = f"{accuracy.n} {'held-out ' if held_out else ''}videos{'' if held_out else ' it was trained on'}"
    interval = f"95 % interval {100 * accuracy.low:.0f} to {100 * accuracy.high:.0f} %, chance {100 * chance:.0f} %"
    share = f"in {100 * accuracy.value:.0f} % of {videos} ({interval})"
    if not accuracy.low > chance:
        worse = "Worse than chance" if accuracy.high < chance else "No better than chance"
        return f"{worse}: puts the right one of {instructions} instructions first {share}."
    scene, end, motion = (sources[name] for name in ("scene", "end state", "motion"))
    if motion.low > 0:
        lead = "Recognises the motion"
    elif scene.value >= accuracy.value:
        lead = "Recognises the scene"
    elif scene.value + end.value >= accuracy.value:
        lead = "Recognises the end state"
    else:
        lead = "Recognises the scene or the end state, and perhaps the motion"
    return (
        f"{lead}: tells the right instruction from the others {share}. The scene (first frame alone) gives "
        f"{100 * scene.value:.0f} %, the end state (last frame) adds {_points(end)}, the motion adds {_points(motion)}."
    )


def _points(difference: Estimate) -> str:
    value, low, high = (100 * part for part in (difference.value, difference.low, difference.high))
    return f"{value:.0f} points ({low:.0f} to {high:.0f})"
