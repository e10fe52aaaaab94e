"""Write the golden of progress weighting, computed by LeRobot's own class `RABCWeights`.

    git clone https://github.com/huggingface/lerobot && git -C lerobot checkout 7427f31
    python tests/golden/make_rabc.py lerobot tests/golden

`rabc_a.npz` holds the progress of three episodes, and the weight of every frame and of one batch (whose weights add up
to its size) for two chunks and thresholds. `rabc.py` is executed alone: the module that it imports its base class from
is replaced by an empty one.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import numpy as np
import pandas as pd
import torch

SETTINGS = ((4, 0.01), (7, 0.2))
LENGTHS = (12, 9, 15)


def main(lerobot: Path, out: Path) -> None:
    """Write the two files."""
    for name in ("lerobot", "lerobot.utils", "lerobot.utils.import_utils", "lerobot.utils.sample_weighting"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["lerobot.utils.import_utils"]._pandas_available = True  # type: ignore[attr-defined]
    sys.modules["lerobot.utils.sample_weighting"].SampleWeighter = object  # type: ignore[attr-defined]
    scope: dict[str, object] = {"__name__": "rabc"}
    exec((lerobot / "src/lerobot/rewards/sarm/rabc.py").read_text(), scope)
    kind = scope["RABCWeights"]
    rng = np.random.default_rng(0)
    progress = np.concatenate([np.clip(np.linspace(0, 1, T) + rng.normal(0, 0.2, T), 0, 1) for T in LENGTHS])
    progress[[5, 20]] = np.nan
    table = pd.DataFrame(
        {
            "index": np.arange(len(progress)),
            "episode_index": np.repeat(np.arange(len(LENGTHS)), LENGTHS),
            "progress_sparse": progress.astype(np.float32),
        }
    )
    file = out / "rabc.parquet"
    table.to_parquet(file)
    batch = np.array([0, 3, 5, 11, 14, 20, 30, 35])
    found = {"progress": table["progress_sparse"].to_numpy(), "lengths": np.array(LENGTHS), "batch": batch}
    for chunk, kappa in SETTINGS:
        weigher = kind(file, chunk_size=chunk, kappa=kappa, device=torch.device("cpu"))  # type: ignore[operator]
        deltas = np.array([weigher._compute_delta(index) for index in range(len(progress))], np.float32)
        found[f"weights_{chunk}"] = weigher._compute_weights(deltas)
        found[f"batch_{chunk}"] = weigher.compute_batch_weights({"index": batch})[0].numpy()
    file.unlink()
    np.savez(out / "rabc_a.npz", **found)
    about = {"source": "huggingface/lerobot 7427f31, src/lerobot/rewards/sarm/rabc.py", "settings": SETTINGS}
    (out / "rabc_a.json").write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
