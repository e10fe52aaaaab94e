"""`counterpoint report RUN`: one page on what an encoder learned, and the same numbers as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError
from counterpoint.evaluation.embedded import EmbeddedVideos, embed_store, spread
from counterpoint.evaluation.figures import bar, heatmap_view, training_charts, trajectories
from counterpoint.evaluation.held_out import open_held_out
from counterpoint.evaluation.result import Evaluation
from counterpoint.evaluation.reward_eval import evaluate_embedded, reward_curves
from counterpoint.provenance import provenance
from counterpoint.rewards.chart import Line, padded, signed
from counterpoint.rewards.curves import MEANING
from counterpoint.rewards.model import RewardForm, RewardModel, as_form, read_run_config
from counterpoint.rewards.page import PlayerView, jpeg, make_player, render, write_whole

__all__ = ["write_report"]

Array = NDArray[np.float64]

TEMPLATES = Path(__file__).parent / "templates"
PLAYERS, PICTURES, PICTURE_SIDE = 6, 48, 224
"""Videos on the page, pictures of each, and their longer side in pixels: about three megabytes."""


def write_report(
    run: Path,
    data: Path | None = None,
    *,
    split: str | None = None,
    seed: int = 0,
    max_videos: int = 200,
    max_frames: int = 128,
    device: str = "cpu",
) -> Path:
    """Evaluate a run's encoder on held-out episodes and write `RUN/report.html` and `RUN/report.json`.

    Args:
        run: The run's folder.
        data: Episodes to report on; by default the run's own data.
        split: Which split; by default `test`, or `val` where there is no `test`.
        seed: Of segments, shuffles and resamples.
        max_videos: Of more episodes than this, as many are drawn.
        max_frames: Frames of an episode that are embedded, evenly spread.
        device: Where to compute.

    Returns:
        The page.

    Raises:
        BadInputError: When the run is not finished, its configuration lacks a key, or the data cannot be
            evaluated.
        MissingExtraError: When the extra `report` is not installed.
    """
    config = read_run_config(run)
    rewards = RewardModel.from_pretrained(run, device=device)
    segments = as_form(config.get("segment_score") or rewards.form, f"{run / 'config.json'}: segment_score")
    held_out = open_held_out(config, run / "config.json", data, split, most=max_videos, seed=seed)
    embedded = embed_store(rewards.encoder, held_out.store, max_frames=max_frames)
    evaluation = evaluate_embedded(embedded, form=rewards.form, segments=segments, seed=seed)
    origin = provenance()
    about = {
        "run": run.resolve().name,
        "objective": _objective(config),
        "data": str(held_out.path),
        "split": held_out.split,
        "episodes_the_run_was_trained_on": held_out.seen,
        "episodes_left_out": held_out.left_out,
        "episodes_drawn_from": held_out.drawn_from,
        "max_frames": max_frames,
        "provenance": origin,
        "trained_with": config.get("provenance"),
    }
    result = json.dumps(about | {"evaluation": json.loads(evaluation.to_json())}, indent=2) + "\n"
    page = render(
        "report.html.j2",
        [TEMPLATES],
        report_style=Markup((TEMPLATES / "report.css").read_text()),
        about=about,
        evaluation=evaluation,
        width=embedded.text.shape[1],
        meaning=MEANING,
        players=_players(embedded, held_out.source, evaluation),
        heatmaps=[heatmap_view(heatmap) for heatmap in evaluation.heatmaps],
        trajectories=trajectories(embedded),
        training=training_charts(_metrics(run / "metrics.jsonl")),
        bar=bar,
        signed=signed,
        config=json.dumps(config, indent=2),
    )
    write_whole(run / "report.json", result.encode())
    write_whole(run / "report.html", page.encode())
    return run / "report.html"


def _objective(config: Mapping[str, Any]) -> str:
    section = config.get("objective", "unknown")
    return str(section.get("name", "unknown")) if isinstance(section, Mapping) else str(section)


def _metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl`; a last line that a kill left half-written is dropped."""
    if not path.is_file():
        return []
    found: list[dict[str, Any]] = []
    lines = path.read_text().splitlines()
    for number, text in enumerate(lines):
        try:
            line = json.loads(text)
            found.append({**line, "step": line["step"], "split": line["split"]})
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            if number < len(lines) - 1:
                raise BadInputError(
                    f"{path}, line {number + 1}",
                    found=f"{text[:60]!r}",
                    expected='an object with "step" and "split"',
                    mend="restore the file, or delete it for a report without training curves",
                ) from error
    return found


def _players(
    embedded: EmbeddedVideos, source: EpisodeStore, evaluation: Evaluation
) -> list[tuple[str, PlayerView]]:
    """The first video of each of the first instructions: (instruction, player).

    All share one range of values, so that a curve that rises little looks so.
    """
    curves = [_since_start(curve, evaluation.form) for curve in reward_curves(embedded, evaluation.form)]
    first = {int(own): at for at, own in reversed(list(enumerate(embedded.own)))}
    chosen = [first[own] for own in sorted(first, key=lambda own: first[own])][:PLAYERS]
    shown = np.concatenate([curves[at].ravel() for at in chosen])
    y_range = padded(float(shown.min()), float(shown.max()))
    return [_player(embedded, source, evaluation, at, curves[at], y_range) for at in chosen]


def _since_start(curve: Array, form: RewardForm) -> Array:
    """What a potential has gained since the first frame: only differences of a potential are rewards."""
    return curve - curve[:, :1] if form == "potential" else curve


def _player(
    embedded: EmbeddedVideos,
    source: EpisodeStore,
    evaluation: Evaluation,
    at: int,
    curve: Array,
    y_range: tuple[float, float],
) -> tuple[str, PlayerView]:
    own, steps = int(embedded.own[at]), embedded.steps[at]
    seconds = source.timestamps(at)[steps].tolist()
    others = sorted((i for i in range(len(curve)) if i != own), key=lambda i: curve[i, -1])
    strongest, rest = others[-1], others[:-1]
    grey = [Line(seconds, curve[i].tolist(), "rest") for i in rest]
    if grey:  # the label stands at the line in the middle
        middle = len(grey) // 2
        label = f"{len(grey)} other instruction{'s' if len(grey) > 1 else ''}"
        grey[middle] = Line(grey[middle].x, grey[middle].y, "rest", label)
    lines = [
        *grey,
        Line(seconds, curve[strongest].tolist(), "c1", embedded.instructions[strongest], live=True),
        Line(seconds, curve[own].tolist(), "c0", embedded.instructions[own], live=True),
    ]
    gained = evaluation.form == "potential"
    places = spread(len(steps), PICTURES)
    frames = source.frames(at, steps[places])
    view = make_player(
        lines,
        seconds,
        steps.tolist(),
        {int(p): jpeg(frame, side=PICTURE_SIDE, quality=70) for p, frame in zip(places, frames, strict=True)},
        y_label="reward gained (change of the cosine)" if gained else "reward (cosine)",
        summary=f"Reward of a video of {embedded.instructions[own]!r} under all instructions",
        y_range=y_range,
    )
    return embedded.instructions[own], view
