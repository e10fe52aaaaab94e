"""Write the first rows that OGBench's own scripts record, in this project's environment (MuJoCo 3.3.0).

    python tests/golden/make_ogbench_data.py data_gen_scripts OUT

`OUT/ogbench_data_a.npz` holds, for each data set, the first rows of one episode whose random numbers were seeded. There
are no random actions in manipulation, since they come from a generator that cannot be seeded.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROWS, SEED = 60, 7
SCRIPTS: dict[str, tuple[str, list[str]]] = {
    "pointmaze-medium-navigate": ("generate_locomaze", ["--noise=0.5"]),
    "pointmaze-medium-stitch": ("generate_locomaze", ["--noise=0.5"]),
    "cube-single-play": ("generate_manipspace", []),
    "cube-double-noisy": ("generate_manipspace", ["--p_random_action=0"]),
    "scene-play": ("generate_manipspace", []),
    "puzzle-3x3-play": ("generate_manipspace", []),
    "powderworld-medium-play": ("generate_powderworld", []),
}


def main(scripts: str, out: str) -> None:
    """Run each script for one short episode and write its rows."""
    import gymnasium
    import numpy as np
    from absl import flags

    sys.path.insert(0, scripts)
    # The maze's script imports the learner of its experts, which a point mass does not need.
    for name in ("agents", "utils", "utils.evaluation", "utils.flax_utils"):
        module: Any = type(sys)(name)
        module.SACAgent = module.supply_rng = module.restore_agent = None
        sys.modules.setdefault(name, module)
    made: Any = gymnasium.make
    arrays: dict[str, Any] = {}

    def seeded(*args: Any, **kwargs: Any) -> Any:
        env = made(*args, **kwargs)
        reset = env.reset
        env.reset = lambda **options: reset(seed=SEED, **options)
        np.random.seed(SEED)
        return env

    setattr(gymnasium, "make", seeded)  # noqa: B010
    for dataset, (script, options) in SCRIPTS.items():
        env, _, kind = dataset.rpartition("-")
        path = Path(out) / f"{dataset}.npz"
        for name in list(flags.FLAGS):
            if name not in ("help", "helpfull", "helpshort", "helpxml"):
                delattr(flags.FLAGS, name)
        sys.modules.pop(script, None)
        module = __import__(script)
        given = [f"--env_name={env}-v0", f"--dataset_type={kind}", f"--save_path={path}", "--num_episodes=1"]
        flags.FLAGS([script, *given, f"--max_episode_steps={ROWS}", *options])
        module.main([])
        with np.load(path) as found:
            arrays |= {f"{dataset}/{name}": found[name] for name in found.files}
        path.unlink()
        path.with_name(f"{dataset}-val.npz").unlink()
    np.savez_compressed(Path(out) / "ogbench_data_a.npz", **arrays)
    about = {"official": "seohongpark/ogbench@1d41409", "file": "data_gen_scripts", "rows": ROWS, "seed": SEED}
    (Path(out) / "ogbench_data_a.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
