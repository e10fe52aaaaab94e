"""Our policies behind LeRobot's policy interface, in its evaluation and its environments."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

policies = pytest.importorskip("lerobot.policies", reason="run by `make interchange`, in an environment of its own")

from lerobot.configs import PreTrainedConfig  # noqa: E402  (after importorskip)
from lerobot.envs import configs as envs  # noqa: E402
from lerobot.scripts import lerobot_eval  # noqa: E402

from counterpoint.data.episode import Array, Episode  # noqa: E402
from counterpoint.data.store import MemoryStore  # noqa: E402
from counterpoint.encoders.observation import ObservationConfig, ObservationEncoder  # noqa: E402
from counterpoint.envs.metaworld.env import MetaWorldEnv  # noqa: E402
from counterpoint.errors import BadInputError  # noqa: E402
from counterpoint.policies.cloned import ClonedPolicy  # noqa: E402
from counterpoint.policies.demonstrations import Demonstrations  # noqa: E402
from counterpoint.policies.diffusion import DiffusionHead  # noqa: E402
from counterpoint.policies.diffusion_policy import DiffusionPolicy  # noqa: E402
from counterpoint.policies.encoded import EncodedPolicy  # noqa: E402
from counterpoint.policies.heads import ActionHead, HeadConfig  # noqa: E402
from counterpoint.policies.lerobot_plugin import CounterpointConfig, CounterpointPolicy  # noqa: E402
from counterpoint.policies.networks import DiffusionConfig  # noqa: E402
from studies.lerobot_policies import (  # noqa: E402
    OURS,
    POLICIES,
    THEIRS,
    LerobotPoliciesConfig,
    demonstrate,
    in_lerobot,
    in_ours,
    learn,
    lerobot_env,
    record,
    replay,
)

pytestmark = pytest.mark.filterwarnings("ignore")
SIZE, STEPS = 64, 12  # pixels that the policies see, and steps of an episode


def pusht() -> Any:
    """PushT as LeRobot configures it; its images are 96 pixels wide, whatever the configuration says."""
    return envs.PushtEnv(episode_length=STEPS, visualization_height=96, visualization_width=96)


def recorded() -> Demonstrations:
    """Actions and positions of the agent over PushT's whole space, [0, 512]."""
    numbers = np.random.default_rng(0).uniform(0, 512, (40, 2)).astype(np.float32)
    numbers[:2] = [[0, 0], [512, 512]]
    frames = {"image": np.zeros((40, SIZE, SIZE, 3), np.uint8)}
    made = Episode(frames, "push the T", np.arange(40) / 10, actions=numbers, state=numbers)
    return Demonstrations.of(MemoryStore([made]), (SIZE, SIZE))


def encoder() -> ObservationEncoder:
    torch.manual_seed(0)
    return ObservationEncoder(ObservationConfig(size=32, width=8, embed_dim=12, stack=1, cameras=1))


def cloned(camera: str = "image", **settings: Any) -> ClonedPolicy:
    made, sizes = recorded(), {"hidden": 16, "token": 8, "layers": 1, "heads": 2}
    sees = encoder()
    head = ActionHead(12, 2, 2, HeadConfig(use_state=True, **{**sizes, **settings}))
    assert made.state is not None
    head.state_normalizer.standardise_by(made.state)
    head.normalizer.normalise_by(made.actions)
    return ClonedPolicy(sees, head, made, cameras=[camera]).eval()


def diffusion() -> DiffusionPolicy:
    made, sees = recorded(), encoder()
    sizes: dict[str, Any] = {"down_dims": (8, 16), "step_dim": 8, "train_steps": 20, "inference_steps": 3}
    head = DiffusionHead(2, 14, DiffusionConfig(horizon=8, executed=3, **sizes))
    head.normalizer.normalise_by(made.actions)
    settings: dict[str, Any] = {"state_dim": 2, "use_state": True, "frame": SIZE, "cameras": ["image"]}
    return DiffusionPolicy(sees, head, demonstrations=made, **settings).eval()


KINDS: list[Callable[[], EncodedPolicy]] = [
    cloned,
    partial(cloned, history=3),
    partial(cloned, language=True),  # its demonstrations' instruction, since PushT has none
    diffusion,
]


def executed_by_lerobot(policy: Any, rows: int, seeds: list[int]) -> Array:
    """The actions [n, T, A] of LeRobot's roll-out."""
    (env,) = pusht().create_envs(rows)["pusht"].values()
    processors = policies.make_pre_post_processors(policy.config, policy.config.pretrained_path)
    found = lerobot_eval.rollout(env, policy, *pusht().get_env_processors(), *processors, seeds)
    env.close()
    actions: Array = found["action"].numpy()
    return actions


def executed_by_us(policy: EncodedPolicy, rows: int, seeds: list[int]) -> Array:
    (env,) = pusht().create_envs(rows)["pusht"].values()
    seen, _ = env.reset(seed=seeds)
    policy.reset(range(rows), range(rows))
    actions = []
    for _ in range(STEPS):
        found = {"image": seen["pixels"], "state": seen["agent_pos"].astype(np.float32)}
        actions.append(policy.act(found, rows=range(rows)))
        seen, *_ = env.step(actions[-1])
    env.close()
    return np.stack(actions, axis=1)


@pytest.mark.parametrize("kind", KINDS)
def test_lerobot_executes_our_actions(kind: Callable[[], EncodedPolicy], tmp_path: Path) -> None:
    """Saved, made by LeRobot's factory and rolled out by LeRobot, a policy acts as it does here."""
    policy = kind()
    CounterpointPolicy.of(policy).save_pretrained(tmp_path)
    config = PreTrainedConfig.from_pretrained(tmp_path)
    config.pretrained_path = tmp_path
    loaded = policies.make_policy(config, env_cfg=pusht())
    assert isinstance(loaded, CounterpointPolicy)
    wanted = executed_by_us(policy, 2, [3, 4])
    np.testing.assert_array_equal(executed_by_lerobot(loaded, 2, [3, 4]), wanted)
    assert wanted.std(axis=1).max() > 1e-3  # it looks


def test_a_chunk_is_the_plan_that_is_executed(tmp_path: Path) -> None:
    made = CounterpointPolicy.of(diffusion())
    batch = {"observation.image": torch.rand(2, 3, SIZE, SIZE), "observation.state": torch.rand(2, 2) * 512}
    plan = made.predict_action_chunk(batch)
    assert plan.shape == (2, 7, 2)  # of a horizon of 8 and two observations
    made.reset()
    first = made.select_action(batch)
    assert first.shape == (2, 2)
    assert ((plan >= 0) & (plan <= 512)).all()


@pytest.mark.parametrize("camera", ["image", "front"])
def test_the_command_evaluates(camera: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CounterpointPolicy.of(cloned(camera)).save_pretrained(tmp_path / "policy")
    size = ["--env.visualization_height=96", "--env.visualization_width=96"]
    plugin, path = "--env.discover_packages_path=counterpoint.policies", f"--policy.path={tmp_path / 'policy'}"
    run = ["--env.type=pusht", "--env.episode_length=8", *size, "--eval.n_episodes=2", "--eval.batch_size=2"]
    run += ["--eval.use_async_envs=false"]  # LeRobot's worker processes do not find gym-pusht
    if camera != "image":
        run.append(f'--rename_map={{"observation.image": "observation.images.{camera}"}}')
    monkeypatch.setattr(sys, "argv", ["lerobot-eval", plugin, path, *run, f"--output_dir={tmp_path / 'out'}"])
    lerobot_eval.main()
    found = json.loads((tmp_path / "out/eval_info.json").read_text())
    assert found["overall"]["n_episodes"] == 2
    assert 0 <= found["overall"]["pc_success"] <= 100


def test_what_lerobot_cannot_do_with_it(tmp_path: Path) -> None:
    made = CounterpointPolicy.of(cloned())
    for refused in (made.get_optim_params, made.config.get_optimizer_preset, partial(made.forward, {})):
        with pytest.raises(BadInputError, match="counterpoint train"):
            refused()
    with pytest.raises(BadInputError, match=r"CounterpointPolicy\.of"):
        CounterpointPolicy(CounterpointConfig(device="cpu"))
    made.save_pretrained(tmp_path)
    other = CounterpointPolicy.of(diffusion())
    with pytest.raises(BadInputError, match="lacks"):
        CounterpointPolicy.from_pretrained(tmp_path, config=other.config)


def test_meta_world_has_the_scenes_that_we_collect() -> None:
    """The expert's actions solve LeRobot's scene of the same seed at the same step; both show the same image."""
    ours = MetaWorldEnv("handle-press", size=64, render=240)
    config, theirs = lerobot_env(LerobotPoliciesConfig(task="handle-press"))
    assert config.fps == ours.control_hz
    episode = demonstrate(ours, 1004)
    images, solved, apart = replay(theirs, episode)
    theirs.close()
    assert solved
    assert episode["solved"]
    assert apart < 1e-6
    assert np.corrcoef(images.ravel(), episode["images"].ravel())[0, 1] > 0.95


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_policy_is_trained_and_evaluated_in_meta_world(name: str, tmp_path: Path) -> None:
    config = LerobotPoliciesConfig(demonstrations=1, steps=2, episodes=1, horizon=8)
    (tmp_path / "data").mkdir()
    for where in (OURS, THEIRS):
        assert record(config, tmp_path, where)["solved"] == [False]  # in eight steps
    assert learn(config, tmp_path, name)["frames"] == 16
    assert in_ours(config, tmp_path, name) == in_lerobot(config, tmp_path, name) == {"solved": [False]}


def test_lerobot_finds_the_package_that_registers_us() -> None:
    code = """
from lerobot.configs import PreTrainedConfig
from lerobot.configs.rewards import RewardModelConfig
from lerobot.utils.import_utils import register_third_party_plugins

register_third_party_plugins()
for kind in (PreTrainedConfig, RewardModelConfig):
    print(kind.get_choice_class("counterpoint").__module__)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["counterpoint.policies.lerobot_plugin", "counterpoint.rewards.lerobot_plugin"]
