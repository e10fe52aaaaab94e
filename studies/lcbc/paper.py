"""Success in AcTOL's Tables 6 to 11: the best evaluation of a policy, as the mean over cameras and seeds."""

from __future__ import annotations

METHODS = ("CLIP", "R3M", "LIV", "DecisionNCE", "AcTOL without bridge", "AcTOL")

SUCCESS: dict[int, dict[str, tuple[float, ...]]] = {
    5: {
        "kitchen/sdoor_open": (0.387, 0.687, 0.550, 0.593, 0.715, 0.855),
        "kitchen/ldoor_open": (0.020, 0.183, 0.060, 0.097, 0.115, 0.200),
        "kitchen/micro_open": (0.030, 0.077, 0.070, 0.070, 0.105, 0.183),
        "kitchen/knob1_on": (0.070, 0.193, 0.130, 0.263, 0.235, 0.247),
        "kitchen/light_on": (0.077, 0.290, 0.220, 0.243, 0.470, 0.623),
        "metaworld/assembly": (0.483, 0.635, 0.618, 0.540, 0.668, 0.628),
        "metaworld/bin-picking": (0.353, 0.333, 0.323, 0.310, 0.390, 0.410),
        "metaworld/button-press-topdown": (0.343, 0.273, 0.327, 0.277, 0.207, 0.420),
        "metaworld/hammer": (0.512, 0.632, 0.610, 0.657, 0.747, 0.695),
    },
    15: {
        "kitchen/sdoor_open": (0.710, 0.810, 0.850, 0.920, 0.845, 0.995),
        "kitchen/ldoor_open": (0.080, 0.310, 0.190, 0.187, 0.295, 0.375),
        "kitchen/micro_open": (0.157, 0.220, 0.283, 0.270, 0.295, 0.370),
        "kitchen/knob1_on": (0.147, 0.193, 0.297, 0.333, 0.540, 0.535),
        "kitchen/light_on": (0.280, 0.577, 0.517, 0.450, 0.735, 0.815),
        "metaworld/assembly": (0.730, 0.807, 0.843, 0.733, 0.940, 0.825),
        "metaworld/bin-picking": (0.403, 0.170, 0.370, 0.367, 0.503, 0.645),
        "metaworld/button-press-topdown": (0.520, 0.450, 0.547, 0.433, 0.483, 0.655),
        "metaworld/hammer": (0.760, 0.833, 0.813, 0.830, 0.907, 0.840),
    },
    25: {
        "kitchen/sdoor_open": (0.663, 0.847, 0.917, 0.917, 0.920, 1.000),
        "kitchen/ldoor_open": (0.087, 0.353, 0.260, 0.270, 0.370, 0.370),
        "kitchen/micro_open": (0.187, 0.400, 0.350, 0.370, 0.400, 0.425),
        "kitchen/knob1_on": (0.237, 0.340, 0.453, 0.473, 0.570, 0.625),
        "kitchen/light_on": (0.387, 0.617, 0.617, 0.513, 0.780, 0.810),
        "metaworld/assembly": (0.693, 0.877, 0.873, 0.857, 0.937, 0.935),
        "metaworld/bin-picking": (0.360, 0.147, 0.237, 0.470, 0.517, 0.660),
        "metaworld/button-press-topdown": (0.660, 0.483, 0.660, 0.580, 0.550, 0.765),
        "metaworld/hammer": (0.788, 0.897, 0.897, 0.883, 0.930, 0.885),
    },
}
"""Success of `METHODS` by number of demonstrations and task."""

CHANGES = {
    "kitchen/sdoor_open": (-0.290, -0.045, 0.010),
    "kitchen/ldoor_open": (-0.035, -0.015, 0.010),
    "kitchen/micro_open": (-0.045, 0.030, -0.025),
    "kitchen/knob1_on": (-0.085, -0.065, -0.005),
    "kitchen/light_on": (-0.125, -0.010, 0.010),
}
"""Change of success of LIV, DecisionNCE and AcTOL under two other wordings, by task (Table 2)."""


def printed(demonstrations: int, tasks: list[str]) -> dict[str, list[float]]:
    """Return success in the tasks by method; empty if the tables lack one of the tasks."""
    by_task = SUCCESS.get(demonstrations, {})
    if not all(task in by_task for task in tasks):
        return {}
    return {method: [by_task[task][at] for task in tasks] for at, method in enumerate(METHODS)}
