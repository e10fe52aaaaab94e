from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from studies.labelled_cloning import KINDS, ROWS, LabelledCloningConfig, Policies, labels_table, success_table, summary


def test_filters_keep_whole_episodes() -> None:
    data: dict[str, Any] = {
        "episode": np.repeat([0, 1, 2, 3], [3, 5, 2, 4]),
        "success": np.array([True, True, False, False]),
        "done": np.array([True, False, False, True]),
        "progress": np.concatenate([np.linspace(0, end, n) for end, n in ((0.9, 3), (0.4, 5), (0.2, 2), (0.8, 4))]),
        "wrong": np.zeros(14),
    }
    config = LabelledCloningConfig(model="none")

    def kept(row: str) -> list[float]:
        weights = ROWS[row](data, config, np.random.default_rng(0))
        return [set(weights[data["episode"] == number]).pop() for number in range(4)]

    assert kept("successes alone") == [1, 1, 0, 0]
    assert kept("everything") == [1, 1, 1, 1]
    assert kept("filtered") == kept("better half") == [1, 0, 0, 1]
    assert sum(kept("random half")) == 2


def test_tables_hold_every_row_and_task() -> None:
    cells = [{"task": task, "seed": seed} for task in ("a", "b") for seed in (0, 1)]
    rows: list[dict[str, Any]] = [{**cell, "success": dict.fromkeys(ROWS, 0.5), "episodes": 4} for cell in cells]
    final = dict.fromkeys(("succeeds", *KINDS), 0.5)
    rows += [{**cell, "detected": 0.8, "final_progress": final} for cell in cells]
    found = summary(rows)
    assert found["gain"]["RA-BC"]["mean"] == 0
    assert found["gate"]["n"] == 16
    assert all(row in success_table(found) for row in ROWS)
    assert all(kind in labels_table(found) for kind in KINDS)


def test_policies_side_by_side_are_policies_alone() -> None:
    torch.manual_seed(0)
    together = Policies(2, (5, 8, 4))
    torch.manual_seed(0)
    layers = [nn.Linear(5, 8), nn.Linear(8, 4)]
    seen = torch.randn(3, 5)
    alone = layers[1](layers[0](seen).relu()).tanh()
    for row in together(seen.expand(2, -1, -1)):
        torch.testing.assert_close(row, alone)
