"""Figures of the occupancy study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from studies.occupancy.known import KNOWN
from studies.occupancy.methods import METHODS
from studies.plots import AMBER, BLUE, GREEN, PINK, SKY, VERMILLION, bar, legend, names, panels, plain, save

MAIN = ("mc_infonce_renormalise", "c_learning", "sr", "td_infonce")
VARIANTS = ("c_learning", "c_learning_normalised", "c_learning_pairs", "c_learning_both", "td_infonce")
MONTE_CARLO = ("mc_infonce_renormalise", "mc_infonce_clip", "mc_infonce_reject")

LOOK = {
    "td_infonce": (BLUE, "o"),
    "sr": (AMBER, "s"),
    "c_learning": (GREEN, "^"),
    "mc_infonce_renormalise": (VERMILLION, "D"),
    "mc_infonce_clip": (PINK, "v"),
    "mc_infonce_reject": ("#8C510A", "P"),
    "c_learning_normalised": (SKY, "v"),
    "c_learning_pairs": (PINK, "P"),
    "c_learning_both": (AMBER, "X"),
}
CUTS = {"episodes": "episodes of {length}", "trajectory": "one trajectory"}
PAPER = {"mc_infonce_renormalise": 1500, "c_learning": 130, "sr": 20}
ERROR, DATA = "mean |p̂ - p|", "transitions"

Tree = Mapping[str, Any]


def plot_all(result: Tree, out: Path) -> None:
    """Write every figure as a PNG.

    Args:
        result: The content of `occupancy.json`.
        out: The folder.
    """
    for name, plot in FIGURES.items():
        save(plot(result), out / f"occupancy_{name}.png")


def _study(result: Tree) -> Any:
    """Plot error against gradient steps, and against data (the paper's Fig. 3)."""
    figure, ((left, right),) = panels(1, 2, 9.2, 4.2, sharey=True)
    _curves(left, result, MAIN)
    _efficiency(right, result, "episodes", "decayed", MAIN)
    _limits(right, result, "episodes", ("temporal_difference", "monte_carlo_renormalise"))
    plain(right, f"after {result['config']['steps']:,} steps", DATA)
    legend(figure, right)
    return figure


def _companions(result: Tree) -> Any:
    """Plot the effects of cutting data into episodes and of a decaying step size."""
    figure, axes = panels(2, 2, 9.2, 7.3, sharex=True, sharey=True)
    for row, cut in zip(axes, CUTS, strict=True):
        for axis, schedule in zip(row, ("decayed", "constant"), strict=True):
            _efficiency(axis, result, cut, schedule, MAIN)
            _limits(axis, result, cut, ("temporal_difference", "monte_carlo_renormalise"))
            x, y = DATA if cut == "trajectory" else "", ERROR if schedule == "decayed" else ""
            plain(axis, f"{_cut(result, cut)}, {schedule} step size", x, y)
    legend(figure, axes[0][0])
    return figure


def _tails(result: Tree) -> Any:
    """Plot Monte Carlo under three rules for the end of an episode, with the limit of each rule."""
    figure, ((axis,),) = panels(1, 1, 5.8, 4.6)
    methods = (*MONTE_CARLO, "td_infonce")
    _efficiency(axis, result, "episodes", "decayed", methods)
    for method in methods:
        limit = "temporal_difference" if method == "td_infonce" else f"monte_carlo_{METHODS[method].tail}"
        _limits(axis, result, "episodes", (limit,), colour=LOOK[method][0], label="")
    axis.plot([], [], "--", color="0.4", label="what it converges to, same colour")
    plain(axis, f"{_cut(result, 'episodes')}, decayed step size", DATA, ERROR)
    legend(figure, axis, 2)
    return figure


def _known(result: Tree) -> Any:
    """Plot the error with a known model, which falls to rounding (the paper's Fig. 11)."""
    figure, ((axis,),) = panels(1, 1, 5.8, 4.6)
    for name, title in KNOWN.items():
        curve, printed = result["known_model"][name], name.endswith("_printed")
        looks = {"c_learning_pairs": "c_learning", "mc_infonce_clip": "mc_infonce_renormalise"}
        colour, marker = LOOK[looks.get(name, name.removesuffix("_printed"))]
        look = {"color": "0.2", "linestyle": ":"} if printed else {"color": colour, "marker": marker}
        axis.plot(curve["steps"], curve["error"], markevery=4, markersize=4, label=title, **look)
    scales = {"xscale": "log", "yscale": "log"}
    plain(axis, "known model, double precision", "gradient steps (expected gradients)", ERROR, **scales)
    legend(figure, axis, 2)
    return figure


def _variants(result: Tree) -> Any:
    """Plot variants between C-learning and TD InfoNCE, which differ by one change each (the paper's Fig. 12)."""
    figure, (axes,) = panels(1, 3, 11.5, 4.2, sharey=True)
    _curves(axes[0], result, VARIANTS)
    for axis, schedule in zip(axes[1:], ("decayed", "constant"), strict=True):
        _efficiency(axis, result, "episodes", schedule, VARIANTS)
        _limits(axis, result, "episodes", ("temporal_difference",))
        plain(axis, f"{schedule} step size", DATA)
    legend(figure, axes[1])
    return figure


def _ratios(result: Tree) -> Any:
    """Plot every ratio with its interval, and the paper's ratios."""
    figure, ((axis,),) = panels(1, 1, 7.6, 4.8)
    rows: list[str] = []
    for method in MAIN[:-1]:
        for cut in CUTS:
            for schedule, fill in (("decayed", "full"), ("constant", "none")):
                found, (colour, marker) = result["advantages"][cut][schedule][method], LOOK[method]
                bar(axis, len(rows), found, colour, marker, fillstyle=fill)
                axis.plot(PAPER[method], len(rows), "|", color="0.3", markersize=14)
                title = {"sr": "SR"}.get(method, METHODS[method].title.partition(",")[0])
                rows.append(f"{title}: {_cut(result, cut)}, {schedule}")
    axis.plot([], [], "|", color="0.3", markersize=14, label="the paper's ratio")
    axis.axvline(1, color="0.4", linewidth=0.8)
    last = max(result["config"]["sizes"])
    plain(axis, x=f"times less data TD InfoNCE needs for the error at {last:.0e} transitions", xscale="log")
    names(axis, rows)
    legend(figure, axis)
    return figure


def _efficiency(axis: Any, result: Tree, cut: str, schedule: str, methods: Sequence[str]) -> None:
    for method in methods:
        table = result["errors"][cut][schedule][method]
        low, value, high = ([at[key] for at in table.values()] for key in ("low", "mean", "high"))
        _line(axis, method, [int(size) for size in table], low, value, high, markersize=5)
    axis.set(xscale="log", yscale="log")


def _limits(
    axis: Any, result: Tree, cut: str, names: Sequence[str], *, colour: str | None = None, label: str | None = None
) -> None:
    dashes = {"temporal_difference": (0, (5, 2)), "monte_carlo_renormalise": (0, (2, 2))}
    titles = {
        "temporal_difference": "what temporal differences converge to",
        "monte_carlo_renormalise": "what Monte Carlo converges to",
    }
    for name in names:
        table = result["limit_errors"][cut][name]
        axis.plot(
            [int(size) for size in table], [at["mean"] for at in table.values()], color=colour or "0.4",
            linewidth=1.1, linestyle="--" if colour else dashes[name],
            label=titles[name] if label is None else label or None,
        )  # fmt: skip


def _curves(axis: Any, result: Tree, methods: Sequence[str]) -> None:
    for method in methods:
        own = result["curves"]["episodes"]["decayed"][method]
        _line(axis, method, own["steps"], own["low"], own["value"], own["high"], markersize=4, markevery=4)
    title = f"{result['config']['curve_size']:,} transitions, decayed step size"
    plain(axis, title, "gradient steps", ERROR, xscale="log", yscale="log")


def _line(axis: Any, method: str, x: Any, low: Any, value: Any, high: Any, **look: Any) -> None:
    """Plot a curve with its interval; a lower end below 0 is replaced by a tenth of the upper end."""
    colour, marker = LOOK[method]
    axis.plot(x, value, color=colour, marker=marker, label=METHODS[method].title, **look)
    kept = [max(a, b / 10) for a, b in zip(low, high, strict=True)]
    axis.fill_between(x, kept, high, color=colour, alpha=0.2, linewidth=0)


def _cut(result: Tree, cut: str) -> str:
    return CUTS[cut].format(length=result["config"]["episode_length"])


FIGURES = {
    "study": _study,
    "companions": _companions,
    "tails": _tails,
    "known": _known,
    "variants": _variants,
    "ratios": _ratios,
}
