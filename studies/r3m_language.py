"""R3M by its own language reward: what `studies.metaworld_rewards` cannot see, since it scores cosines.

    python -m studies.r3m_language --data runs/demo-data --runs runs/study

G(o_0, o_t, l) of each seed's R3M run, on test: rank correlation with time under the video's own instruction and under
the others, and how often the own instruction scores highest at the end.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from counterpoint.encoders.dual import DualEncoder
from counterpoint.evaluation.embedded import embed_store
from counterpoint.evaluation.metrics import matched, value_order_correlation
from counterpoint.objectives.r3m import LanguageReward
from counterpoint.provenance import provenance
from studies.harness import RESULTS
from studies.metaworld_rewards import interval, split_store


def main() -> None:
    """Score every seed and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--result", type=Path, default=RESULTS / "r3m_language.json")
    arguments = parser.parse_args()
    seeds = [of_run(run, arguments.data) for run in sorted(arguments.runs.glob("r3m-seed*"))]
    found: dict[str, Any] = {key: interval([seed[key] for seed in seeds]) for key in seeds[0]}
    about = {"command": "python -m studies.r3m_language --data DATA --runs RUNS", "provenance": provenance()}
    arguments.result.write_text(json.dumps(found | about, indent=1) + "\n")
    print({key: value["values"] for key, value in found.items()})


def of_run(run: Path, data: Path) -> dict[str, float]:
    """VOC under the own and under other instructions, and accuracy at the last frame."""
    encoder = DualEncoder.from_pretrained(run)
    videos = embed_store(encoder, split_store(data, "test"))
    reward = LanguageReward(encoder.embed_dim, encoder.embed_dim)
    reward.load_state_dict(load_file(run / "model" / "language_reward.safetensors"))
    text = torch.tensor(videos.text, dtype=torch.float32)[:, None]
    own, others, last = [], [], []
    for video, column in zip(videos.videos, videos.own, strict=True):
        frames = torch.tensor(video, dtype=torch.float32)
        with torch.no_grad():
            # The sigmoid saturates; ranks are those of its argument.
            curves = reward.logit(frames[0], frames[None], text).double().numpy()
        correlations = [value_order_correlation(curve) for curve in curves]
        own.append(correlations[column])
        others.append(float(np.mean([c for at, c in enumerate(correlations) if at != column])))
        last.append(curves[:, -1])
    hits = matched(np.stack(last), videos.own)
    return {"voc": float(np.mean(own)), "voc_wrong_instruction": float(np.mean(others)), "accuracy": float(hits.mean())}


if __name__ == "__main__":
    main()
