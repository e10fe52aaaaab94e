"""Figures of the occupancy study, drawn from its result file: colours that colour-blind readers can tell apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from counterpoint.errors import import_extra
from studies.occupancy.known import KNOWN
from studies.occupancy.methods import METHODS

MAIN = ("mc_infonce_renormalise", "c_learning", "sr", "td_infonce")
VARIANTS = ("c_learning", "c_learning_normalised", "c_learning_pairs", "c_learning_both", "td_infonce")
MONTE_CARLO = ("mc_infonce_renormalise", "mc_infonce_clip", "mc_infonce_reject")

# Okabe and Ito's palette, with markers so that nothing rests on colour alone.
LOOK = {
    "td_infonce": ("#0072B2", "o"),
    "sr": ("#E69F00", "s"),
    "c_learning": ("#009E73", "^"),
    "mc_infonce_renormalise": ("#D55E00", "D"),
    "mc_infonce_clip": ("#CC79A7", "v"),
    "mc_infonce_reject": ("#8C510A", "P"),
    "c_learning_normalised": ("#56B4E9", "v"),
    "c_learning_pairs": ("#CC79A7", "P"),
    "c_learning_both": ("#E69F00", "X"),
}
CUTS = {"episodes": "episodes of {length}", "trajectory": "one trajectory"}
PAPER = {"mc_infonce_renormalise": 1500, "c_learning": 130, "sr": 20}
ERROR, DATA = "mean |p̂ - p|", "transitions"

Tree = Mapping[str, Any]


def plot_all(result: Tree, out: Path) -> None:
    """Draw every figure as a PNG.

    Args:
        result: What `occupancy.json` holds.
        out: The folder.
    """
    pyplot = import_extra("matplotlib.pyplot", "report")
    settings = {"font.size": 9, "axes.grid": True, "grid.alpha": 0.25, "legend.frameon": False, "figure.dpi": 130}
    with pyplot.rc_context(settings):
        for name, plot in FIGURES.items():
            figure = plot(pyplot, result)
            figure.savefig(out / f"occupancy_{name}.png", bbox_inches="tight")
            pyplot.close(figure)


def _study(pyplot: Any, result: Tree) -> Any:
    """The paper's Fig. 3: error against gradient steps, and against data."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9.2, 3.9), sharey=True)
    _curves(left, result, "episodes", "decayed", MAIN)
    _efficiency(right, result, "episodes", "decayed", MAIN)
    _floors(right, result, "episodes", ("temporal_difference", "monte_carlo_renormalise"))
    _curve_title(left, result)
    right.set_ylabel("")
    right.set_title(f"after {result['config']['steps']:,} steps")
    _legend(figure, right)
    return figure


def _companions(pyplot: Any, result: Tree) -> Any:
    """What the ratios depend on: where episodes end, and whether the step size decays."""
    figure, axes = pyplot.subplots(2, 2, figsize=(9.2, 7.0), sharex=True, sharey=True)
    for row, cut in zip(axes, CUTS, strict=True):
        for axis, schedule in zip(row, ("decayed", "constant"), strict=True):
            _efficiency(axis, result, cut, schedule, MAIN)
            _floors(axis, result, cut, ("temporal_difference", "monte_carlo_renormalise"))
            axis.set_title(f"{_cut(result, cut)}, {schedule} step size")
    for axis in axes[0]:
        axis.set_xlabel("")
    for axis in axes[:, 1]:
        axis.set_ylabel("")
    _legend(figure, axes[0, 0])
    return figure


def _tails(pyplot: Any, result: Tree) -> Any:
    """Monte Carlo under three rules for the end of an episode, with what each could reach."""
    figure, axis = pyplot.subplots(figsize=(5.6, 4.2))
    methods = (*MONTE_CARLO, "td_infonce")
    _efficiency(axis, result, "episodes", "decayed", methods)
    for method in methods:
        floor = "temporal_difference" if method == "td_infonce" else f"monte_carlo_{METHODS[method].tail}"
        _floors(axis, result, "episodes", (floor,), colour=LOOK[method][0], label="")
    axis.plot([], [], "--", color="0.4", label="floor of the data, same colour")
    axis.set_title(f"{_cut(result, 'episodes')}, decayed step size")
    _legend(figure, axis)
    return figure


def _known(pyplot: Any, result: Tree) -> Any:
    """The paper's Fig. 11: with a known model nothing is left of the error."""
    figure, axis = pyplot.subplots(figsize=(5.6, 4.2))
    for name, title in KNOWN.items():
        curve = result["known_model"][name]
        printed = name.endswith("_printed")
        looks = {"c_learning_pairs": "c_learning", "mc_infonce_clip": "mc_infonce_renormalise"}
        colour, marker = LOOK[looks.get(name, name.removesuffix("_printed"))]
        axis.plot(
            curve["steps"], curve["error"], color="0.2" if printed else colour, marker=None if printed else marker,
            markevery=4, markersize=4, linestyle=":" if printed else "-", label=title,
        )  # fmt: skip
    axis.set(xscale="log", yscale="log", xlabel="gradient steps (expected gradients)", ylabel=ERROR)
    axis.set_title("known model, double precision")
    _legend(figure, axis)
    return figure


def _variants(pyplot: Any, result: Tree) -> Any:
    """The paper's Fig. 12: from C-learning towards TD InfoNCE, one step at a time."""
    figure, axes = pyplot.subplots(1, 3, figsize=(11.5, 3.9), sharey=True)
    _curves(axes[0], result, "episodes", "decayed", VARIANTS)
    _curve_title(axes[0], result)
    for axis, schedule in zip(axes[1:], ("decayed", "constant"), strict=True):
        _efficiency(axis, result, "episodes", schedule, VARIANTS)
        _floors(axis, result, "episodes", ("temporal_difference",))
        axis.set_ylabel("")
        axis.set_title(f"{schedule} step size")
    _legend(figure, axes[1])
    return figure


def _ratios(pyplot: Any, result: Tree) -> Any:
    """Every ratio with its interval, the paper's beside them."""
    figure, axis = pyplot.subplots(figsize=(7.6, 4.6))
    rows: list[str] = []
    scenes = [(cut, schedule) for cut in CUTS for schedule in ("decayed", "constant")]
    fills = ("full", "none")
    for method in MAIN[:-1]:
        for cut, schedule in scenes:
            found = result["advantages"][cut][schedule][method]
            y = len(rows)
            colour, marker = LOOK[method]
            axis.errorbar(
                found["ratio"], y, xerr=[[found["ratio"] - found["low"]], [found["high"] - found["ratio"]]],
                color=colour, marker=marker, capsize=3, fillstyle=fills[schedule == "constant"],
            )  # fmt: skip
            axis.plot(PAPER[method], y, "|", color="0.3", markersize=14)
            rows.append(f"{_short(method)}: {_cut(result, cut)}, {schedule}")
    axis.plot([], [], "|", color="0.3", markersize=14, label="the paper's ratio")
    axis.set_yticks(range(len(rows)), rows)
    axis.invert_yaxis()
    axis.axvline(1, color="0.4", linewidth=0.8)
    last = max(result["config"]["sizes"])
    axis.set(xscale="log", xlabel=f"times less data TD InfoNCE needs for the error at {last:.0e} transitions")
    _legend(figure, axis)
    return figure


def _efficiency(axis: Any, result: Tree, cut: str, schedule: str, methods: Sequence[str]) -> None:
    for method in methods:
        table = result["errors"][cut][schedule][method]
        sizes = [int(size) for size in table]
        colour, marker = LOOK[method]
        axis.plot(
            sizes, [at["mean"] for at in table.values()], color=colour, marker=marker, markersize=5,
            label=METHODS[method].title,
        )  # fmt: skip
        _band(axis, sizes, [at["low"] for at in table.values()], [at["high"] for at in table.values()], colour)
    axis.set(xscale="log", yscale="log", xlabel=DATA, ylabel=ERROR)


def _floors(
    axis: Any, result: Tree, cut: str, names: Sequence[str], *, colour: str | None = None, label: str | None = None
) -> None:
    dashes = {"temporal_difference": (0, (5, 2)), "monte_carlo_renormalise": (0, (2, 2))}
    titles = {
        "temporal_difference": "floor of the data, temporal differences",
        "monte_carlo_renormalise": "floor of the data, Monte Carlo",
    }
    for name in names:
        table = result["floors"][cut][name]
        axis.plot(
            [int(size) for size in table], [at["mean"] for at in table.values()], color=colour or "0.4",
            linewidth=1.1, linestyle="--" if colour else dashes[name],
            label=titles[name] if label is None else label or None,
        )  # fmt: skip


def _curves(axis: Any, result: Tree, cut: str, schedule: str, methods: Sequence[str]) -> None:
    for method in methods:
        curve = result["curves"][cut][schedule][method]
        colour, marker = LOOK[method]
        axis.plot(
            curve["steps"], curve["value"], color=colour, marker=marker, markersize=4, markevery=4,
            label=METHODS[method].title,
        )  # fmt: skip
        _band(axis, curve["steps"], curve["low"], curve["high"], colour)
    axis.set(xscale="log", yscale="log", xlabel="gradient steps", ylabel=ERROR)


def _band(axis: Any, x: Sequence[int], low: Sequence[float], high: Sequence[float], colour: str) -> None:
    """An interval below 0 cannot be drawn on a logarithmic scale: it ends at a tenth of its upper end."""
    kept = [max(a, b / 10) for a, b in zip(low, high, strict=True)]
    axis.fill_between(x, kept, high, color=colour, alpha=0.2, linewidth=0)


def _curve_title(axis: Any, result: Tree) -> None:
    axis.set_title(f"{result['config']['curve_size']:,} transitions, decayed step size")


def _cut(result: Tree, cut: str) -> str:
    return CUTS[cut].format(length=result["config"]["episode_length"])


def _short(method: str) -> str:
    return {"sr": "SR"}.get(method, METHODS[method].title.partition(",")[0])


def _legend(figure: Any, axis: Any) -> None:
    """Below the axes, outside them."""
    handles, labels = axis.get_legend_handles_labels()
    columns = min(3, len(labels)) if figure.get_figwidth() > 7 else min(2, len(labels))
    figure.tight_layout()
    figure.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=columns)


FIGURES = {
    "study": _study,
    "companions": _companions,
    "tails": _tails,
    "known": _known,
    "variants": _variants,
    "ratios": _ratios,
}
