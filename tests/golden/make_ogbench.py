"""Write the goldens of OGBench's agents, computed by its own code in an environment of its own.

    git clone https://github.com/seohongpark/ogbench && cd ogbench && git checkout 1d41409
    python -m venv env && env/bin/pip install jax flax optax distrax ml_collections tqdm ogbench
    env/bin/python tests/golden/make_ogbench.py impls OUT

`OUT/ogbench_AGENT_a.npz` holds the parameters of a small agent (`p/...`), a batch, the losses and their gradients
(`grad/...`), and the parameters after three updates with that batch (`after/...`), all in float64; the file beside it
says how they were made.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

ROWS, OBSERVATION, ACTION, HIDDEN, UPDATES = 5, 6, 3, (16, 16), 3
AGENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "gcbc": ("gcbc", {}),
    "gcivl": ("gcivl", {}),
    "gciql": ("gciql", {}),
    "gciql_awr": ("gciql", {"actor_loss": "awr", "alpha": 3.0}),
    "crl": ("crl", {"latent_dim": 8}),
    "crl_awr": ("crl", {"latent_dim": 8, "actor_loss": "awr", "alpha": 3.0}),
    "qrl": ("qrl", {"latent_dim": 16}),
    "qrl_awr": ("qrl", {"latent_dim": 16, "actor_loss": "awr", "alpha": 3.0}),
    "hiql": ("hiql", {"rep_dim": 4}),
    "hiql_joint": ("hiql", {"rep_dim": 4, "low_actor_rep_grad": True}),
}


def main(impls: str, out: str) -> None:
    """Compute and write all goldens."""
    sys.path.insert(0, impls)
    import jax
    import jax.numpy as jnp
    import numpy as np
    from flax.traverse_util import flatten_dict, unflatten_dict

    jax.config.update("jax_enable_x64", True)
    for name, (kind, changes) in AGENTS.items():
        module = __import__(f"agents.{kind}", fromlist=["get_config"])
        agent_class = __import__("agents", fromlist=["agents"]).agents[kind]
        config, rng = module.get_config(), np.random.default_rng(43)
        for key in ("actor_hidden_dims", "value_hidden_dims"):
            if key in config:
                config[key] = HIDDEN
        config.update(changes)
        agent = agent_class.create(0, np.zeros((1, OBSERVATION)), np.zeros((1, ACTION)), config)
        # Every parameter differs from its initial value, so that biases and targets matter.
        flat = {
            path: jnp.asarray(np.asarray(value, np.float64) + 0.3 * rng.normal(size=value.shape))
            for path, value in flatten_dict(agent.network.params).items()
        }
        network = agent.network.replace(params=unflatten_dict(flat))
        agent = agent.replace(network=network)
        states = ["observations", "next_observations", "value_goals", "actor_goals"]
        states += ["low_actor_goals", "high_actor_goals", "high_actor_targets"]
        batch = {key: rng.normal(size=(ROWS, OBSERVATION)) for key in states}
        reached = np.array([0.0, 1.0, 0.0, 0.0, 1.0])
        batch |= {"actions": rng.uniform(-1, 1, (ROWS, ACTION)), "masks": 1 - reached, "rewards": reached - 1}
        loss_of = partial(agent.total_loss, batch, rng=jax.random.PRNGKey(0))
        gradient, info = jax.grad(loss_of, has_aux=True)(agent.network.params)
        arrays: dict[str, Any] = {f"p/{'/'.join(path)}": np.asarray(value) for path, value in flat.items()}
        arrays |= {f"grad/{'/'.join(path)}": np.asarray(value) for path, value in flatten_dict(gradient).items()}
        arrays |= {key: np.asarray(value, np.float64) for key, value in batch.items()}
        arrays |= {f"info/{key}": np.asarray(value, np.float64) for key, value in info.items()}
        goals = batch["high_actor_goals" if kind == "hiql" else "actor_goals"]
        action = agent.sample_actions(batch["observations"], goals, seed=jax.random.PRNGKey(0), temperature=0.0)
        arrays["acted"] = np.asarray(action)
        for _ in range(UPDATES):
            agent, _ = agent.update(batch)
        after = flatten_dict(agent.network.params)
        arrays |= {f"after/{'/'.join(path)}": np.asarray(value) for path, value in after.items()}
        np.savez_compressed(Path(out) / f"ogbench_{name}_a.npz", **arrays)
        about: dict[str, Any] = {
            "official": "seohongpark/ogbench@1d41409",
            "file": f"impls/agents/{kind}.py",
            "changes": changes,
        }
        about |= {"rows": ROWS, "observation": OBSERVATION, "action": ACTION, "hidden": HIDDEN, "dtype": "float64"}
        about["updates"] = UPDATES
        (Path(out) / f"ogbench_{name}_a.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
