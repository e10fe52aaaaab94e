"""The tables of the occupancy study's page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from studies.harness import Tree, kept, markdown
from studies.occupancy.analysis import summarise
from studies.occupancy.figures import PAPER
from studies.occupancy.known import KNOWN
from studies.occupancy.limits import LIMITS
from studies.occupancy.methods import METHODS

SCENES = {
    ("episodes", "decayed"): "episodes of 100, decayed",
    ("episodes", "constant"): "episodes of 100, constant",
    ("trajectory", "decayed"): "one trajectory, decayed",
    ("trajectory", "constant"): "one trajectory, constant",
}
NORMALISED = "_rows_normalised"


def times(found: Tree | None) -> str:
    """Return a ratio with its interval, or as a bound."""
    if found is None:
        return ""
    low, value, high = (
        f"{found[key]:.2g}" if found[key] < 10 else f"{found[key]:.0f}" for key in ("low", "ratio", "high")
    )
    return f"{ {'at least': '≥ ', 'at most': '≤ ', 'mixed': 'about '}.get(found['bound'], '') }{value} [{low}, {high}]"


def thousandths(found: Tree | None) -> str:
    """Return an error in thousandths with half the width of its interval."""
    return "" if found is None else f"{1e3 * found['mean']:.2f} ± {1e3 * (found['high'] - found['mean']):.2f}"


def method_title(method: str) -> str:
    """Return the title of a method, with or without normalised rows."""
    title = METHODS[method.removesuffix(NORMALISED)].title
    return f"{title} (rows normalised)" if method.endswith(NORMALISED) else title


def powers(sizes: Sequence[int]) -> list[str]:
    """Return amounts of data as powers of ten."""
    return [f"{size:.0e}".replace("+0", "") for size in sizes]


def ratios(paper: str = "ratio in the paper") -> str:
    """The ratio of the data that each baseline and TD InfoNCE need."""
    table = kept("occupancy", summarise)["advantages"]
    methods = sorted(table["episodes"]["decayed"], key=lambda name: list(METHODS).index(name.removesuffix(NORMALISED)))
    rows = [
        [
            method_title(one),
            *(times(table[cut][schedule].get(one)) for cut, schedule in SCENES),
            str(PAPER.get(one, "")),
        ]
        for one in methods
    ]
    return markdown(["baseline", *SCENES.values(), paper], rows)


def errors(schedule: str) -> str:
    """Mean |p_hat - p| in thousandths, and the learning rates chosen from the least data to the most."""
    result = kept("occupancy", summarise)
    sizes, rows = [str(size) for size in result["config"]["sizes"]], []
    for method, by_size in result["errors"]["episodes"][schedule].items():
        if not method.endswith(NORMALISED):
            rates = ", ".join(f"{by_size[n]['learning_rate']:g}" for n in sizes)
            rows.append([method_title(method), *(thousandths(by_size[n]) for n in sizes), rates])
    return markdown(["method", *powers(result["config"]["sizes"]), "learning rates"], rows)


def limits(cut: str) -> str:
    """Return the errors of the methods' limits on the same data, in closed form, in thousandths."""
    result = kept("occupancy", summarise)
    table, ratios = result["limit_errors"][cut], result["limit_advantages"][cut]
    names = {name: "Monte Carlo, " + name.removeprefix("monte_carlo_") for name in LIMITS}
    names["temporal_difference"] = "temporal differences"
    sizes = [str(size) for size in result["config"]["sizes"]]
    rows = [[names[one], *(thousandths(table[one][n]) for n in sizes), times(ratios.get(one))] for one in LIMITS]
    return markdown(["limit of training", *powers(result["config"]["sizes"]), "times less data for TD"], rows)


def one_rate() -> str:
    """Return both methods at one constant learning rate for all amounts of data."""
    baselines = ("mc_infonce_renormalise", "c_learning", "sr")
    rows = [
        [f"{SCENES[cut, 'constant'].partition(',')[0]}, {rate}", *(times(found.get(one)) for one in baselines)]
        for cut, by_rate in kept("occupancy", summarise)["advantages_at_one_rate"].items()
        for rate, found in by_rate.items()
    ]
    return markdown(["learning rate", *map(method_title, baselines)], rows)


def sr_rates() -> str:
    """Return the successor representation at each constant rate, compared with TD InfoNCE at its best rate."""
    table = kept("occupancy", summarise)["advantages_over_sr_by_rate"]
    rows = [
        [f"{float(rate):g}", *(times(table[cut][rate]) for cut in ("episodes", "trajectory"))]
        for rate in table["episodes"]
    ]
    return markdown(["SR's learning rate", "episodes of 100", "one trajectory"], rows)


def by_batch() -> str:
    """Return final errors in thousandths for several batch sizes."""
    table, methods = kept("occupancy", summarise)["by_batch"], ("c_learning_both", "c_learning_pairs", "td_infonce")
    sizes = sorted(table[methods[0]], key=int)
    rows = [[method_title(one), *(thousandths(table[one][n]) for n in sizes)] for one in methods]
    return markdown(["method", *(f"batch of {n}" for n in sizes)], rows)


def known() -> str:
    """Return the remaining errors on expected gradients."""
    rows = [[name, f"{kept('occupancy', summarise)['known_model_error'][key]:.1e}"] for key, name in KNOWN.items()]
    return markdown(["method", "error"], rows)


def cost() -> str:
    """Return the processor time of training."""
    result = kept("occupancy", summarise)
    minutes, about = result["processor_seconds"] / 60, result["provenance"]["hardware"]
    row = [f"{about['cpu']}, {about['cores']} cores", f"{minutes:.0f}", f"{minutes / 2:.0f} minutes"]
    return markdown(["hardware", "processor minutes", "with two processes"], [row])


TABLES: dict[str, Callable[[], str]] = {
    "ratios": ratios,
    "errors decayed": partial(errors, "decayed"),
    "errors constant": partial(errors, "constant"),
    "limits episodes": partial(limits, "episodes"),
    "limits trajectory": partial(limits, "trajectory"),
    "one rate": one_rate,
    "sr rates": sr_rates,
    "by batch": by_batch,
    "known": known,
    "cost": cost,
}
