"""`counterpoint rank DATA --model RUN`: the episodes of a data set by what a reward finds wrong with them, worst first.

Signs that an episode is bad, from the curve p of its own instruction over T frames::

    end        mean of p over the last tenth of the frames                          less is worse
    fall       max over s <= t of p_s - p_t: how much was undone                     more is worse
    stall      longest share of the frames in which the furthest p grows by < .02    more is worse
    unlike     share of frames that are unlike the model's training data             more is worse
    rival      end under the best other instruction, minus `end`                     more is worse

p is progress in [0, 1] if the reward has it; another reward's values are scaled by their range over the data set. The
score of an episode is the mean, over the signs, of the share of episodes that look better by the sign (ties count
half): 1 is the worst.
"""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from markupsafe import Markup
from numpy.typing import NDArray
from tyro.conf import Positional

from counterpoint.data.draws import sample_rng
from counterpoint.data.store import EpisodeStore, camera_names
from counterpoint.errors import require, require_extras
from counterpoint.evaluation.embedded import spread
from counterpoint.files import write_atomically
from counterpoint.formats import open_dataset, recognise
from counterpoint.formats.remote import is_remote, located
from counterpoint.parameter_types import Computes, Model, Name, Names
from counterpoint.progress import ProgressBar
from counterpoint.repositories import hub_id
from counterpoint.rewards.embedding import observed
from counterpoint.rewards.model import late_fusion
from counterpoint.rewards.page import Line, Panel, breakable, jpeg, make_player, render, signed
from counterpoint.rewards.sources import EncoderReward, Frames, Reward, open_reward
from counterpoint.workers import IN_PROCESS, Foreign

Array = NDArray[np.float64]

TEMPLATES = Path(__file__).parent / "templates"
GROWTH = 0.02
"""Growth of progress below which an episode stalls."""
WORSE = {"end": -1, "fall": 1, "stall": 1, "unlike": 1, "rival": 1}
"""The signs, and 1 where more is worse."""
PLAYERS, IMAGES, IMAGE_SIDE = 8, 40, 224
"""Number of episodes that are played on the page, images of each, and their longer side."""


@dataclass(frozen=True)
class Seen:
    """One episode, as the reward sees it.

    Attributes:
        curve: The curve of the episode's own instruction, [T].
        unlike: Share of frames unlike the training data; `nan` if the model does not say.
        rival: The other instruction with the highest end; empty if there is none.
        gap: The rival's end minus the episode's own; `nan` if there is no rival.
    """

    curve: Float[Array, " T"]
    unlike: float
    rival: str
    gap: float


@dataclass(frozen=True)
class Ranking:
    """The E episodes of a data set, ranked.

    Attributes:
        store: The data set.
        seen: The episodes, as the reward sees them.
        signs: The signs by name, [E] each.
        score: The scores, [E].
    """

    store: EpisodeStore
    seen: Sequence[Seen]
    signs: Mapping[str, Float[Array, " E"]]
    score: Float[Array, " E"]

    @property
    def order(self) -> list[int]:
        """The numbers of the episodes, worst first."""
        found: list[int] = np.argsort(-self.score, kind="stable").tolist()
        return found


def rank(
    data: Positional[Path],
    *,
    model: Model,
    out: Path,
    worst: int = 10,
    max_frames: int = 128,
    rivals: int = 8,
    cameras: Names = (),
    seed: int = 0,
    device: Computes = "cpu",
    foreign: Foreign = IN_PROCESS,
    dialect: Name = None,
) -> Path:
    """Rank the episodes of a data set, worst first: OUT/rank.csv, and OUT/rank.html with players of the worst.

    The command that deletes the worst episodes of a LeRobot data set, in a copy, is printed. Look at them first.

    Time on two cores: one pass over at most `max_frames` frames of every episode, as for one reward of `compare`. Disk:
    some megabytes.

    Args:
        data: A data set of any format, whose episodes have instructions.
        model: A reward: a run, a folder of saved weights, a Hub id, the name of a released model, the folder of a
            LeRobot reward model, or module:function.
        out: The folder to write.
        worst: Number of episodes in the printed command.
        max_frames: Maximum number of frames of an episode, evenly spread.
        rivals: Maximum number of other instructions that each episode is scored under; 0 for none.
        cameras: Cameras whose rewards are averaged; by default the data's first camera.
        seed: Random seed of the choice of rivals.
        device: The device that computes, such as cuda.
        foreign: How a model of others runs.
        dialect: The dialect of HDF5 files, if the files do not identify it: see `counterpoint data info`.

    Returns:
        The page.

    Raises:
        BadInputError: If the data or the model cannot be used, an episode has no instruction, or the reward needs a
            goal instead.
        MissingExtraError: If the extra `report` is not installed.
    """
    require_extras({"jinja2": "report"})
    require(not out.exists() or out.is_dir(), out, "a file", "a folder", "choose another --out")
    require(worst >= 0, "--worst", worst, "0 or more", "leave it out")
    store = open_dataset(data, dialect=dialect)
    views = camera_names(tuple(cameras) or None, store)
    silent = next((number for number, info in enumerate(store.episodes) if not info.instruction), None)
    hint = "rank data with instructions"
    require(silent is None, data, f"episode {silent} without an instruction", "one in every episode", hint)
    reward = open_reward(str(model), device=device, foreign=foreign)
    goal = isinstance(reward, EncoderReward) and reward.model.form == "goal"
    require(not goal, model, "a reward that needs goal images", "one that reads instructions", "choose another")
    seen = look(reward, store, views, max_frames=max_frames, rivals=rivals, seed=seed)
    signs = signs_of(seen, unit=reward.progress)
    ranking = Ranking(store, seen, signs, scores_of(signs))
    chosen = ranking.order[:worst]
    command = edit_command(data, chosen, store)
    write_atomically(out / "rank.csv", rank_csv(ranking))
    write_atomically(out / "rank.html", rank_page(ranking, reward, data, views[0], command))
    print(f"Worst of {len(seen)} episodes: {', '.join(map(str, chosen))}")
    if command:
        print(f"Look at them in {out / 'rank.html'}; then, to leave them out of a copy:\n{command}")
    return out / "rank.html"


def look(
    reward: Reward, store: EpisodeStore, views: Sequence[str], *, max_frames: int = 128, rivals: int = 8, seed: int = 0
) -> list[Seen]:
    """Return every episode as a reward sees it; the arguments are those of `rank`."""
    texts = list(dict.fromkeys(info.instruction for info in store.episodes))
    places, found = {text: place for place, text in enumerate(texts)}, []
    with ProgressBar("Ranking", len(store.episodes), "episodes", shorten="--max-frames") as bar:
        for number, info in enumerate(store.episodes):
            steps = spread(info.length, max_frames)
            frames = observed(reward, store, number, steps, views)
            own, chance = places[info.instruction], sample_rng(seed, number, "rivals")
            chosen = sorted(chance.permutation(len(texts) - 1)[:rivals].tolist())  # places among the other texts
            others = [texts[at + (at >= own)] for at in chosen]
            found.append(see(reward, frames, {}, len(steps), [info.instruction, *others]))
            bar.advance()
    return found


def see(reward: Reward, frames: Frames, shared: dict[Any, Any], length: int, asked: Sequence[str]) -> Seen:
    """Return one episode as a reward sees it.

    Args:
        reward: The reward.
        frames: Images and state of the episode, as for `Reward.watch`, which also takes `shared`.
        shared: Embeddings that rewards share.
        length: Number of frames.
        asked: The episode's own instruction, then its rivals.
    """
    curves = reward.watch(frames, shared)(np.arange(length), asked, progress=True)
    known, unlike = reward.model.calibration if isinstance(reward, EncoderReward) else None, np.nan
    if known is not None and isinstance(reward, EncoderReward):
        unlike = float((late_fusion(known.novelty_of)(reward.embedded(frames, shared)) > 1).mean())
    ends = curves[:, -_tail(length) :].mean(axis=1)
    best = int(np.argmax(ends[1:])) + 1 if len(asked) > 1 else 0
    gap = float(ends[best] - ends[0]) if best else np.nan
    return Seen(curves[0], unlike, asked[best] if best else "", gap)


def _tail(length: int) -> int:
    return max(1, round(length / 10))


def signs_of(seen: Sequence[Seen], *, unit: bool) -> dict[str, Float[Array, " E"]]:
    """Return the signs of E episodes; those that are not known for any episode are left out.

    Args:
        seen: The episodes.
        unit: True if the curves are progress in [0, 1]; other curves are scaled by their range.
    """
    everything = np.concatenate([one.curve for one in seen])
    scale = 1.0 if unit else float(np.ptp(everything)) or 1.0
    signs = {
        "end": np.array([one.curve[-_tail(len(one.curve)) :].mean() for one in seen]) / scale,
        "fall": np.array([largest_fall(one.curve) for one in seen]) / scale,
        "stall": np.array([longest_stall(one.curve / scale) for one in seen]),
        "unlike": np.array([one.unlike for one in seen]),
        "rival": np.array([one.gap for one in seen]) / scale,
    }
    return {name: values for name, values in signs.items() if np.isfinite(values).any()}


def largest_fall(curve: Float[Array, " T"]) -> float:
    """Return the largest fall of a curve from its highest value so far."""
    return float((np.maximum.accumulate(curve) - curve).max())


def longest_stall(curve: Float[Array, " T"]) -> float:
    """Return the longest share of the frames in which the furthest progress grows by less than `GROWTH`."""
    furthest = np.maximum.accumulate(curve)
    ends = np.searchsorted(furthest, furthest + GROWTH, side="left")
    return float((ends - np.arange(len(curve))).max() / len(curve))


def scores_of(signs: Mapping[str, Float[Array, " E"]]) -> Float[Array, " E"]:
    """Return the mean over signs of the share of episodes that look better by the sign; unknown signs count .5."""
    each = []
    for name, values in signs.items():
        bad = WORSE[name] * values
        in_order = np.sort(bad)
        less, upto = (np.searchsorted(in_order, bad, side=side) for side in ("left", "right"))
        better = less / len(bad) + (upto - less) / len(bad) / 2
        each.append(np.where(np.isfinite(values), better, 0.5))
    return np.asarray(np.mean(each, axis=0))


def rank_csv(ranking: Ranking) -> str:
    """Return one row per episode, worst first."""
    store, signs = ranking.store, ranking.signs
    buffer = io.StringIO(newline="")
    table = csv.writer(buffer, lineterminator="\n")
    table.writerow(["episode", "score", *signs, "rival_instruction", "instruction", "frames", "success"])
    for at in ranking.order:
        info, numbers = store.episodes[at], [f"{values[at]:.4f}" for values in signs.values()]
        success = "" if info.success is None else str(info.success).lower()
        table.writerow(
            [at, f"{ranking.score[at]:.4f}", *numbers, ranking.seen[at].rival, info.instruction, info.length, success]
        )
    return buffer.getvalue()


def edit_command(data: Path, episodes: Sequence[int], store: EpisodeStore) -> str:
    """Return LeRobot's command that leaves episodes out of a copy; empty for other formats, and at URLs."""
    root = located(data)
    if recognise(data).name != "lerobot" or not episodes or is_remote(root / "x"):
        return ""
    numbers = getattr(store, "numbers", range(len(store.episodes)))
    listed = ", ".join(str(numbers[at]) for at in sorted(episodes))
    named = hub_id(data)
    plain = root.resolve().name if named is None else named[0]
    copy = f"{data}_kept" if named is None else f"{Path(plain).name}_kept"
    name, place, kept = (shlex.quote(str(one)) for one in (plain, root, copy))
    return (
        f"lerobot-edit-dataset --repo_id {name} --root {place} --new_repo_id {name}_kept --new_root {kept} "
        f'--operation.type delete_episodes --operation.episode_indices "[{listed}]"'
    )


def rank_page(ranking: Ranking, reward: Reward, data: Path, camera: str, command: str) -> str:
    """Return the page: the worst episodes with players, and a table of all."""
    store, seen = ranking.store, ranking.seen
    players = []
    lowest, highest = (getattr(np.concatenate([one.curve for one in seen]), name)() for name in ("min", "max"))
    for at in ranking.order[:PLAYERS]:
        info, curve = store.episodes[at], seen[at].curve
        steps = spread(info.length, len(curve))
        shown = spread(len(steps), IMAGES)
        seconds = store.timestamps(at)[steps].tolist()
        lines = [Line(seconds, curve.tolist(), "c0", info.instruction, live=True)]
        panel = Panel(lines, "progress" if reward.progress else "reward", f"Episode {at}", (lowest, highest))
        images = {
            int(step): jpeg(frame, side=IMAGE_SIDE, quality=70)
            for step, frame in zip(shown, store.frames(at, steps[shown], camera), strict=True)
        }
        players.append((at, info.instruction, seen[at].rival, make_player([panel], seconds, steps.tolist(), images)))
    return render(
        "rank.html.j2",
        [TEMPLATES],
        report_style=Markup((TEMPLATES / "report.css").read_text()),
        data=data.name,
        model=reward.name,
        ranking=ranking,
        players=players,
        command=command,
        breakable=breakable,
        signed=signed,
    )
