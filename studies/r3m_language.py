"""R3M's own language reward, which `studies.metaworld_rewards` does not measure, since it scores cosines.

    python -m studies.r3m_language --data=runs/demo-data --runs=runs/metaworld_rewards/runs --out runs/r3m_language

G(o_0, o_t, l) of each seed's R3M run is computed on the split `test`. The study reports its rank correlation with time,
under the video's own instruction and under other instructions, and how often the own instruction scores highest at the
end.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch

from counterpoint.encoders.dual import DualEncoder
from counterpoint.encoders.hub import further_weights
from counterpoint.encoders.weights import fit_weights
from counterpoint.evaluation.embedded import embed_store
from counterpoint.evaluation.metrics import matched, value_order_correlation
from counterpoint.objectives.r3m import LanguageReward
from counterpoint.rewards.model import LANGUAGE_REWARD
from studies.harness import Rows, Study, Tree, Trial, main, over_seeds
from studies.metaworld_rewards import RunsConfig, run_name, split_store

NUMBERS = ("voc", "voc_wrong_instruction", "accuracy")


class R3MLanguageConfig(RunsConfig):
    """Runs of R3M that are scored."""


def r3m_language_study(config: R3MLanguageConfig, out: Path) -> Tree:
    """Score every seed and write `r3m_language.json` and `results.parquet`."""
    study = Study("R3M's language reward", out, config)
    study.run([Trial(f"r3m-{s}", partial(score, config, s), about={"seed": s}) for s in config.seeds], config.processes)
    return study.finish("r3m_language", summary(study.rows()))


def summary(rows: Rows, _: Tree | None = None) -> Tree:
    """Return each number's mean over seeds with a t interval."""
    return {key: over_seeds([row[key] for row in rows]) for key in NUMBERS}


def score(config: R3MLanguageConfig, seed: int) -> Tree:
    """Return VOC under the video's own and under other instructions, and the accuracy at the last frame."""
    run = Path(config.runs) / run_name("r3m", seed)
    encoder = DualEncoder.from_pretrained(run)
    videos = embed_store(encoder, split_store(Path(config.data), "test"))
    reward = LanguageReward(encoder.embed_dim, encoder.embed_dim)
    saved = further_weights(run, LANGUAGE_REWARD)
    assert saved is not None
    fit_weights(reward, saved[1], saved[0])
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
    accuracy = matched(np.stack(last), videos.own).mean()
    return dict(zip(NUMBERS, (float(np.mean(own)), float(np.mean(others)), float(accuracy)), strict=True))


if __name__ == "__main__":
    main("r3m_language")
