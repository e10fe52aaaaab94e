"""The claims of ICon."""

from __future__ import annotations

from functools import partial

from studies.icon.summary import in_band, more
from studies.verdicts import Claim, Line

SMALLER = "small networks and 600 to 1,500 steps here"


def _line(
    test: str,
    *results: str,
    row: str = "ICon-Diff-C",
    baseline: str = "Diff-C",
    start: str = "scratch",
    effect: float | None = None,
    band: tuple[str, ...] = (),
) -> Line:
    """Return a line: success of a row minus a baseline's; the baseline of the gate is in `band`, or in all results."""
    seen = baseline if baseline in ("Diff-C", "Diff-T") else "Diff-C"
    return Line(
        test,
        results[-1],
        partial(more, *results, start=start, row=row, baseline=baseline),
        partial(in_band, *(band or results), start=start, baseline=seen),
        effect,
        papers_measure=True,
        fewest=8,
    )


CLAIMS = (
    Claim(
        "I1",
        "ICon",
        "its policies succeed more often than Diff-C's: by .057, mean of eight tasks (Tables 1 and 2)",
        (
            _line(
                "success on robosuite's CloseDrawer and Lift, [ICon and its baselines](icon.md), where Diff-C is in "
                ".3 to .9 (the paper's own on tasks of these names: .00 and -.04)",
                "icon_close_drawer",
                "icon_lift",
                effect=0.057,
            ),
        ),
        SMALLER,
    ),
    Claim(
        "I2",
        "ICon",
        "it helps the transformer policy, Diff-T, too: by .047, mean of five tasks (Table 1)",
        (
            _line(
                "success on CloseDrawer, [other policies](icon.md#other-policies-and-parts-of-icon)",
                "icon_methods",
                row="ICon-Diff-T",
                baseline="Diff-T",
                effect=0.047,
            ),
        ),
        SMALLER,
    ),
    *(
        Claim(
            number,
            "ICon",
            f"{part} (Fig. 5)",
            (
                _line(
                    f"success on CloseDrawer, [{change}](icon.md#other-policies-and-parts-of-icon); "
                    "the two were trained on different processors",
                    "icon_close_drawer",
                    "icon_methods",
                    baseline=f"ICon-Diff-C-{name}",
                    band=("icon_methods",),
                ),
            ),
            SMALLER,
        )
        for number, name, part, change in (
            ("I3", "random-keys", "keys by farthest points matter", "with them and with random keys"),
            ("I4", "last-layer", "the loss at all layers matters", "at all layers and at the last alone"),
        )
    ),
    Claim(
        "I5",
        "ICon",
        "its policies transfer better to other robots: by .023, mean of four (Table 3)",
        (
            _line(
                "Lift, Panda to Kinova3 and IIWA, [five demonstrations](icon.md#other-robots); Diff-C trained on these "
                "alone succeeds about as often (the paper's own on these two robots: .027 and -.020)",
                "icon_transfer",
                start="transferred",
                effect=0.023,
            ),
        ),
        SMALLER,
    ),
    Claim(
        "I6",
        "ICon",
        "succeeds more often on RLBench's five tasks (Table 1)",
        reason="its simulator, CoppeliaSim, cannot be had here",
    ),
)
