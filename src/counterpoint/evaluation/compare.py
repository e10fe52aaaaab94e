"""`counterpoint compare`: rewards side by side on the same videos, beside controls without which numbers say little.

`docs/methods/metrics.md` defines every number; `reward_bench.py` asks and computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from markupsafe import Markup
from numpy.typing import NDArray
from pydantic import TypeAdapter

from counterpoint.data.store import Cameras, EpisodeStore, camera_names
from counterpoint.errors import require
from counterpoint.evaluation.report import TEMPLATES, open_unseen, read_config, shown
from counterpoint.evaluation.reward_bench import (
    ALONE,
    INPUTS,
    RECORDED,
    Bench,
    Numbers,
    ask,
    bench_of,
    minus,
    over_seeds,
)
from counterpoint.evaluation.reward_eval import Heatmap, verdict
from counterpoint.evaluation.scenes import open_training, scene_rewards
from counterpoint.evaluation.statistics import Estimate, seeds_interval, wider, wilson
from counterpoint.files import write_atomically
from counterpoint.formats import split_names
from counterpoint.provenance import provenance
from counterpoint.rewards.model import check_instructions, embed_steps
from counterpoint.rewards.page import render, signed
from counterpoint.rewards.sources import EncoderReward, FunctionReward, Reward, constant, open_reward, ramp

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

GOALS = 4
"""Training episodes whose last frames are the goal of an instruction, for encoders without language."""
NUMBERS = {
    "voc": "VOC, Spearman",
    "voc_pearson": "VOC, Pearson",
    "accuracy": "accuracy among all instructions",
    "triples_easy": "right against wrong",
    "triples_one_word_apart": "right against one word changed",
    "confusion_gap": "diagonal minus rest",
    "kendall_tau_b": "failure < half < success, tau-b",
    "auroc": "success, AUROC",
    "auprc": "success, AUPRC",
    "f1": "success, F1",
    "grade_error": "error on 1 to 5",
}
"""Name -> heading; of the last, less is better."""


@dataclass(frozen=True)
class Row:
    """A reward's numbers.

    Attributes:
        name: The reward.
        control: True for the ramp, the constant, random weights and linear classifiers of one frame.
        seeds: Number of training seeds that its numbers are means over.
        trained_on_these: True where the compared videos were trained on.
        verdict: Its accuracy in a sentence.
        inputs: Input (`INPUTS`, `wrong text`) -> name -> number; undefined ones are left out.
        over_seeds: The same of the recorded videos, with an interval over training seeds.
        confusion: Mean final values, a row a task.
    """

    name: str
    control: bool
    seeds: int
    trained_on_these: bool
    verdict: str
    inputs: Mapping[str, Mapping[str, Estimate]]
    over_seeds: Mapping[str, Estimate]
    confusion: Heatmap


@dataclass(frozen=True)
class Difference:
    """The numbers of one row minus those of another, paired video by video.

    Attributes:
        of: Name of the first row.
        over: Name of the row that is subtracted.
        numbers: Name -> difference.
    """

    of: str
    over: str
    numbers: Mapping[str, Estimate]


@dataclass(frozen=True)
class Comparison:
    """Rewards compared on the same videos.

    Attributes:
        videos: Number of videos.
        successes: Number of those that succeed or say nothing about it.
        failures: Where failures come from.
        threshold: Where the thresholds of F1 come from.
        instructions: The candidates; a guess is right in one of so many.
        fingerprint: Content of the data.
        rows: Rewards, then controls.
        differences: Every two rows.
        about: Data, split, versions.
    """

    videos: int
    successes: int
    failures: str
    threshold: str
    instructions: tuple[str, ...]
    fingerprint: str
    rows: tuple[Row, ...]
    differences: tuple[Difference, ...]
    about: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return strict JSON: undefined numbers are null."""
        return TypeAdapter(Comparison).dump_json(self, indent=2).decode() + "\n"

    @classmethod
    def from_json(cls, text: str) -> Comparison:
        """Read the output of `to_json`."""
        return TypeAdapter(cls).validate_json(text)


def compare(
    rewards: Mapping[str, Sequence[Reward]],
    store: EpisodeStore,
    *,
    validation: EpisodeStore | None = None,
    trained_on_these: Sequence[str] = (),
    cameras: Cameras = None,
    max_frames: int = 128,
    seed: int = 0,
    scenes: Mapping[str, Sequence[Reward]] | None = None,
    about: Mapping[str, Any] | None = None,
) -> Comparison:
    """Compare rewards on the same videos, beside a ramp, a constant and random weights.

    Args:
        rewards: Name -> the reward, or several, its training seeds.
        store: Episodes, each of two steps or more and with an instruction; those recorded as failures count as such.
        validation: Episodes that fix the thresholds of F1; by default each half of the videos fixes the other's.
        trained_on_these: Names of rewards that were trained on these videos.
        cameras: The view, by default the store's first; of several, rewards are the mean of theirs.
        max_frames: Greatest number of frames of a video, evenly spread.
        seed: Random seed of shuffles, random weights and resamples.
        scenes: Further controls, which look at one frame: `counterpoint.evaluation.scenes.scene_rewards`.
        about: Facts for the page.

    Raises:
        BadInputError: No reward, an episode that cannot be scored, or no success.
    """
    require(rewards, "rewards", "none", "at least one", "name runs, LeRobot models or module:function")
    both = [info for part in (store, validation) if part is not None for info in part.episodes]
    instructions = tuple(dict.fromkeys(info.instruction for info in both))
    hint = "leave other episodes out: SubsetStore"
    for number, info in enumerate(both):
        good = info.length > 1 and info.instruction.strip()
        found = f"{info.length} step(s), instruction {info.instruction!r}"
        require(good, f"episode {number}", found, "two steps or more, and an instruction", hint)
    require(instructions, "data", "no episodes", "at least one", "compare on episodes that exist")
    check_instructions(instructions)
    hint = "compare on data with successes"
    require(any(info.success is not False for info in store.episodes), "data", "failures alone", "a success", hint)
    controls: dict[str, Sequence[Reward]] = {
        "ramp": [FunctionReward(ramp, "ramp", progress=True)],
        "constant": [FunctionReward(constant, "constant", progress=True)],
    }
    ours = [one for group in rewards.values() for one in group if isinstance(one, EncoderReward)]
    if first := next((one for one in ours if one.untrained() is not None), None):
        fresh = [first.untrained(seed + number) for number in range(max(map(len, rewards.values())))]
        controls["random weights"] = [one for one in fresh if one is not None]
    controls |= scenes or {}
    taken = {f"{name} (control)" if name in rewards else name: group for name, group in controls.items()}
    groups = {**rewards, **taken}
    members = [(name, one) for name, group in groups.items() for one in group]
    settings: dict[str, Any] = {"cameras": cameras, "max_frames": max_frames, "seed": seed}
    answered = ask([one for _, one in members], store, instructions, **settings)
    bench = bench_of(store, instructions, seed)
    fixed: list[tuple[Array, NDArray[np.bool_]] | None] = [None] * len(members)
    if validation is not None:
        apart = bench_of(validation, instructions, seed)
        for at, answers in enumerate(ask([one for _, one in members], validation, instructions, **settings)):
            fixed[at] = apart.scores(answers.inputs[RECORDED]), apart.items[:, 2] == 2
    drawn: dict[str, dict[str, Numbers]] = {}
    seeds: dict[str, list[Numbers]] = {}
    for name in groups:
        each = [
            {
                key: bench.numbers(answered[k], key, fixed[k], progress=_is_progress(one, answered[k].cuts))
                for key in answered[k].inputs
            }
            for k, (owner, one) in enumerate(members)
            if owner == name
        ]
        drawn[name] = {key: over_seeds([one[key] for one in each]) for key in each[0]}
        seeds[name] = [one[RECORDED] for one in each]
    bars = {
        f"a {name.replace(', ', ' classifier of the ')}": drawn[name][RECORDED]
        for name in (scenes or {})
        if name in drawn
    }
    rows = []
    for name in groups:
        ends = np.mean([answered[k].inputs[RECORDED].ends for k, (owner, _) in enumerate(members) if owner == name], 0)
        kind = {"control": name in taken, "trained_on_these": name in trained_on_these}
        rows.append(_row(bench, name, drawn[name], bars, seeds[name], ends, instructions, **kind))
    names = list(groups)
    pairs = [(one, other) for at, one in enumerate(names) for other in names[at + 1 :]]
    count = int(bench.success.sum())
    failures = "none recorded" + ": each video under another instruction stands in" * (len(instructions) > 1)
    failures = f"{len(bench.own) - count} recorded" if bench.recorded else failures
    return Comparison(
        videos=len(bench.own),
        successes=count,
        failures=failures,
        threshold="validation" if validation is not None else "the other half of the videos",
        instructions=instructions,
        fingerprint=store.fingerprint,
        rows=tuple(rows),
        differences=tuple(
            Difference(one, other, _estimates(minus(drawn[one][RECORDED], drawn[other][RECORDED])))
            for one, other in pairs
        ),
        about={**(about or {}), "seed": seed, "max_frames": max_frames, "provenance": provenance()},
    )


def _is_progress(reward: Reward, cuts: Array) -> bool:
    """Return whether a reward has progress in [0, 1]: it says so, or it is a function whose values lie there."""
    return reward.progress or (isinstance(reward, FunctionReward) and cuts.min() >= 0.0 and cuts.max() <= 1.0)


def _estimates(numbers: Numbers) -> dict[str, Estimate]:
    return {name: drawn.estimate() for name, drawn in numbers.items()}


def _row(
    bench: Bench,
    name: str,
    drawn: Mapping[str, Numbers],
    bars: Mapping[str, Numbers],
    seeds: Sequence[Numbers],
    ends: Float[Array, "N L"],
    instructions: tuple[str, ...],
    *,
    control: bool,
    trained_on_these: bool,
) -> Row:
    inputs = {key: _estimates(part) for key, part in drawn.items()}
    several = len(instructions) > 1
    if several and len(seeds) == 1:  # a share of independent videos, whose interval has a width at 0 and 1 too
        for key in INPUTS:
            share = inputs[key]["accuracy"]
            inputs[key]["accuracy"] = wider(wilson(round(share.n * share.value), share.n), share)
    seen = [row for row in range(len(instructions)) if (bench.own[bench.success] == row).any()]
    means = [ends[bench.success & (bench.own == row)].mean(axis=0) for row in seen]
    return Row(
        name=name,
        control=control,
        seeds=len(seeds),
        trained_on_these=trained_on_these,
        verdict=_verdict(inputs, drawn, bars, len(instructions), held_out=not trained_on_these)
        if several
        else _verdict_of_one_task(inputs, held_out=not trained_on_these),
        inputs=inputs,
        over_seeds={
            key: seeds_interval(np.array([one[key].values[0] for one in seeds]), share=key not in SIGNED)
            for key in (drawn[RECORDED] if len(seeds) > 1 else ())
        },
        confusion=Heatmap(
            name=name,
            rows=tuple(instructions[row] for row in seen),
            columns=instructions,
            values=tuple(tuple(row.tolist()) for row in means),
        ),
    )


def _verdict(
    inputs: Mapping[str, Mapping[str, Estimate]],
    drawn: Mapping[str, Numbers],
    bars: Mapping[str, Numbers],
    instructions: int,
    *,
    held_out: bool,
) -> str:
    frames = {f"the {key}": drawn[key]["accuracy"] for key in ALONE}
    frames |= {name: numbers["accuracy"] for name, numbers in bars.items()}
    best = max(frames, key=lambda name: frames[name].values[0])
    gain = drawn[RECORDED]["accuracy"] - frames[best]
    alone = best, float(frames[best].values[0]), gain.estimate()
    return verdict(inputs[RECORDED]["accuracy"], instructions, alone, held_out=held_out)


def _verdict_of_one_task(inputs: Mapping[str, Mapping[str, Estimate]], *, held_out: bool) -> str:
    """Return what is left to say where no instruction can be mistaken for another."""
    voc, reversed_ = inputs[RECORDED]["voc"], inputs["reversed"]["voc"]
    seen = f"{voc.n} {'held-out videos' if held_out else 'videos it was trained on'}"
    rises = "Rises with time" if voc.low > 0 else "Does not rise with time"
    return (
        f"{rises}: rank correlation {voc.value:.2f} in {seen} (95 % interval {voc.low:.2f} to {voc.high:.2f}), "
        f"{reversed_.value:.2f} where they are reversed. There is one instruction, so nothing was told apart."
    )


SIGNED = ("voc", "voc_pearson", "confusion_gap", "kendall_tau_b", "grade_error")
"""Numbers that are no shares."""


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
) -> Path:
    """Compare rewards on the episodes of a data set that none of them was trained on; return the page.

    Thresholds are fixed on the split `val`, where another split is compared.

    Args:
        rewards: Name -> sources, as `counterpoint.rewards.sources.open_reward` takes them: one, or one a training seed.
        data: The data set.
        out: The folder to write.
        split: Name of the split; by default `test`, or `val` where there is no `test`.
        cameras: The views; by default those that the runs were trained on, where they agree, else the first.
        max_videos: Greatest number of videos; of more, a sample is taken.
        max_frames: Greatest number of frames of a video, evenly spread.
        seed: Random seed of samples, shuffles, random weights and resamples.
        device: The device that computes.

    Raises:
        BadInputError: A reward or data that cannot be used.
    """
    require(not out.exists() or out.is_dir(), out, "a file", "a folder", "choose another --out")
    opened = {
        name: [open_reward(source, name=name, device=device) for source in sources] for name, sources in rewards.items()
    }
    files = {name: [Path(source) / "config.json" for source in sources] for name, sources in rewards.items()}
    configs = {name: [read_config(file) for file in found if file.is_file()] for name, found in files.items()}
    flat = [config for found in configs.values() for config in found]
    store, about, trained = open_unseen(flat, data, split, most=max_videos, seed=seed)
    trained_views = {tuple(config["data"].get("cameras") or ()) for config in flat if "data" in config}
    if not cameras and len(trained_views) == 1:
        (cameras,) = trained_views
        cameras = store.cameras if cameras == ("all",) else cameras
    seen = iter(trained)
    flattered = [name for name, found in configs.items() if max([next(seen) for _ in found], default=False)]
    names = split_names(data)
    fixing = "val" if about["split"] not in (None, "val") and "val" in names else None
    validation = None if fixing is None else open_unseen(flat, data, fixing, most=max_videos, seed=seed)[0]
    texts = {info.instruction for part in (store, validation) if part for info in part.episodes}
    for name, group in opened.items():
        for one, config in zip(group, configs[name], strict=False):
            if isinstance(one, EncoderReward) and one.model.form == "goal":
                one.goals = _goals(one, config, texts, tuple(cameras) or None)
    runs = [pair for name, group in opened.items() for pair in zip(group, configs[name], strict=False)]
    first = next(((one, config) for one, config in runs if isinstance(one, EncoderReward) and "data" in config), None)
    comparison = compare(
        opened,
        store,
        scenes=None if first is None else scene_rewards(*first, texts, seed),
        validation=validation,
        trained_on_these=flattered,
        cameras=tuple(cameras) or None,
        max_frames=max_frames,
        seed=seed,
        about=about,
    )
    return write_comparison(comparison, out)


def _goals(reward: EncoderReward, config: Mapping[str, Any], texts: set[str], cameras: Cameras) -> dict[str, Array]:
    """Return embedded last frames of the first `GOALS` training episodes under each instruction."""
    opened, hint = open_training(config), "put them back, or leave the reward out"
    require(opened is not None, reward.name, f"no training data at {config['data']['path']}", "its goal images", hint)
    assert opened is not None
    store, numbers = opened
    views = camera_names(cameras, store.cameras)
    found: dict[str, list[Array]] = {}
    for number in numbers:
        info = store.episodes[number]
        images = found.setdefault(info.instruction, [])
        if info.instruction in texts and info.success is not False and len(images) < GOALS:
            images.append(embed_steps(reward.model.encoder, store, number, np.array([info.length - 1]), views))
    return {text: np.concatenate(images) for text, images in found.items() if images}


def write_comparison(comparison: Comparison, out: Path) -> Path:
    """Write `OUT/compare.html` and `OUT/compare.json`; return the page.

    Raises:
        MissingExtraError: The extra `report` is not installed.
    """
    first = comparison.rows[0].name
    page = render(
        "compare.html.j2",
        [TEMPLATES],
        report_style=Markup((TEMPLATES / "report.css").read_text()),
        c=comparison,
        about=comparison.about,
        numbers={
            name: title
            for name, title in NUMBERS.items()
            if any(name in row.inputs[RECORDED] for row in comparison.rows)
        },
        inputs=tuple(comparison.rows[0].inputs),
        bars=any(row.name.startswith("linear, ") for row in comparison.rows),
        recorded=RECORDED,
        differences=[d for d in comparison.differences if d.of == first],
        heatmaps=[shown(row.confusion) | {"title": row.name} for row in comparison.rows if not row.control],
        signed=signed,
    )
    write_atomically(out / "compare.json", comparison.to_json())
    write_atomically(out / "compare.html", page)
    return out / "compare.html"
