"""Our rewards behind LeRobot's interface of reward models, and our labels in its RA-BC weighting."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

factory = pytest.importorskip("lerobot.rewards", reason="run by `make interchange`, in an environment of its own")

from lerobot.configs.rewards import RewardModelConfig  # noqa: E402  (after importorskip)
from lerobot.datasets.lerobot_dataset import LeRobotDataset  # noqa: E402
from lerobot.policies import ACTConfig  # noqa: E402
from lerobot.rewards.robometer import compute_rabc_weights  # noqa: E402
from lerobot.rewards.sarm.configuration_sarm import SARMConfig  # noqa: E402
from lerobot.rewards.sarm.modeling_sarm import SARMRewardModel  # noqa: E402
from lerobot.utils.sample_weighting import SampleWeightingConfig, make_sample_weighter  # noqa: E402

from counterpoint.data.episode import task_of  # noqa: E402
from counterpoint.data.statistics import Statistics  # noqa: E402
from counterpoint.encoders.calibration import Calibration, RewardForm  # noqa: E402
from counterpoint.encoders.config import EncoderConfig  # noqa: E402
from counterpoint.encoders.dual import DualEncoder  # noqa: E402
from counterpoint.errors import BadInputError  # noqa: E402
from counterpoint.formats.lerobot.reader import LeRobotStore  # noqa: E402
from counterpoint.objectives.r3m import LanguageReward  # noqa: E402
from counterpoint.rewards.foreign import LeRobotScorer  # noqa: E402
from counterpoint.rewards.label import label  # noqa: E402
from counterpoint.rewards.lerobot_plugin import CounterpointConfig, CounterpointRewardModel  # noqa: E402
from counterpoint.rewards.model import RewardModel  # noqa: E402
from counterpoint.rewards.sources import open_reward  # noqa: E402
from counterpoint.rewards.weighting import step_weights  # noqa: E402
from tests.formats.lerobot.made import episode, write_v30  # noqa: E402
from tests.interchange.test_lerobot_eval import cloned  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
TASKS = ["open the drawer", "close the drawer", "push the button"]


def calibration(form: RewardForm) -> Calibration:
    known: dict[str, Any] = {
        "form": form,
        "rewards": (-0.5, 0.5),
        "progress": (0.0, 1.0),
        "success": 0.5,
        "success_from": "F1 on unseen episodes",
        "success_quantile": 0.1,
        "centre": (0.0,) * 8,
        "scale": (1.0,) * 8,
        "distance": 1.0,
        "distance_quantile": 0.99,
        "measured_on": "validation",
        "episodes": 1,
        "measured_episodes": 1,
        "error": 0.1,
        "memory": 1.0,
        "averaged_rewards": (-0.5, 0.5),
        "averaged_progress": (0.0, 1.0),
        "averaged_error": 0.1,
        "monotone_rewards": (-0.5, 0.5),
        "monotone_progress": (0.0, 1.0),
        "monotone_error": 0.1,
        "error_of_a_ramp": 0.1,
        "error_of_a_constant": 0.2,
    }
    return Calibration(**{name: value for name, value in known.items() if name in Calibration.model_fields})


BACKBONE = {
    "image": "timm",
    "image_model": "tf_efficientnet_lite0",
    "pretrained": "package",
    "image_size": 64,
    "freeze_image": True,
}


def encoder(form: RewardForm = "transition", **settings: Any) -> DualEncoder:
    torch.manual_seed(0)
    settings = {"image_size": 32, "embed_dim": 8, "reward_form": form, "calibration": calibration(form), **settings}
    return DualEncoder(EncoderConfig(**settings)).eval()


def reward(form: RewardForm = "transition", **settings: Any) -> RewardModel:
    return RewardModel(
        encoder(form, **settings), language_reward=LanguageReward(8, 8, 16).eval() if form == "language" else None
    )


def videos(B: int = 3, T: int = 5) -> torch.Tensor:
    return torch.randint(0, 256, (B, T, 3, 40, 48), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("form", "settings"), [("potential", {}), ("transition", {}), ("language", {}), ("transition", BACKBONE)]
)
def test_lerobot_computes_our_progress(form: RewardForm, settings: dict[str, Any], tmp_path: Path) -> None:
    """Saved, and made by LeRobot's factories: the last value of our own curve, one for each video."""
    model, seen = reward(form, **settings), videos()
    CounterpointRewardModel.of(model).save_pretrained(tmp_path)
    config = RewardModelConfig.from_pretrained(tmp_path)
    config.pretrained_path = str(tmp_path)
    loaded = factory.make_reward_model(config)
    assert isinstance(loaded, CounterpointRewardModel)
    before, _ = factory.make_reward_pre_post_processors(config)
    batch = before({"observation.images.top": seen.float() / 255, "task": TASKS})
    found = loaded.compute_reward(batch)
    wanted = [model.progress(video.movedim(1, 3), task)[-1] for video, task in zip(seen, TASKS, strict=True)]
    assert found.shape == (3,)
    torch.testing.assert_close(found, torch.stack(wanted), atol=1e-5, rtol=0)
    assert found.std() > 1e-6
    curves = [model.progress(video.movedim(1, 3), task) for video, task in zip(seen, TASKS, strict=True)]
    predicted = loaded.predict_progress(batch).progress
    torch.testing.assert_close(predicted, torch.stack(curves), atol=1e-5, rtol=0)
    assert not loaded.is_trainable


def test_the_state_is_read_beside_the_frames(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    model, seen = reward(state=Statistics.of(rng.normal(2, 3, (50, 4)))), videos()
    states = torch.from_numpy(rng.normal(2, 3, (3, 5, 4)).astype(np.float32))
    CounterpointRewardModel.of(model).save_pretrained(tmp_path)
    loaded = CounterpointRewardModel.from_pretrained(tmp_path)
    assert loaded.config.input_features["observation.state"].shape == (4,)
    batch: dict[str, Any] = {"observation.images.top": seen, "observation.state": states, "task": TASKS}
    wanted = []
    for video, state, task in zip(seen.movedim(2, 4), states, TASKS, strict=True):
        given: dict[str, torch.Tensor] = {"top": video, "state": state}
        wanted.append(model.progress(given, task)[-1])
    torch.testing.assert_close(loaded.compute_reward(batch), torch.stack(wanted), atol=1e-5, rtol=0)
    with pytest.raises(BadInputError, match=r"states \[3, 5, S\], which the reward reads"):
        loaded.compute_reward({name: part for name, part in batch.items() if name != "observation.state"})


def test_success_and_its_threshold() -> None:
    model, batch = reward(), {"cam": videos(), "words": TASKS}
    settings: dict[str, Any] = {"image_key": "cam", "task_key": "words"}
    progress = CounterpointRewardModel.of(model, **settings).compute_reward(batch)
    own = CounterpointRewardModel.of(model, **settings, reward_output="success").compute_reward(batch)
    torch.testing.assert_close(own, (progress >= 0.5).float())
    threshold = float(progress.median())
    chosen = CounterpointRewardModel.of(model, **settings, reward_output="success", success_threshold=threshold)
    torch.testing.assert_close(chosen.compute_reward(batch), (progress >= threshold).float())


def test_what_cannot_be_rewarded_is_one_message(tmp_path: Path) -> None:
    made = CounterpointRewardModel.of(reward())
    with pytest.raises(BadInputError, match="first frame and its newest"):
        made.compute_reward({"observation.images.top": videos()[:, 0], "task": TASKS})
    with pytest.raises(BadInputError, match="2 instructions"):
        made.compute_reward({"observation.images.top": videos(), "task": TASKS[:2]})
    with pytest.raises(BadInputError, match="progress or success"):
        CounterpointConfig(reward_output="money", device="cpu")
    with pytest.raises(BadInputError, match="no calibration"):
        CounterpointRewardModel.of(RewardModel(DualEncoder(EncoderConfig(image_size=32, embed_dim=8))))
    made.save_pretrained(tmp_path)
    other = CounterpointRewardModel.of(reward("language"))
    with pytest.raises(BadInputError, match="lacks"):
        CounterpointRewardModel.from_pretrained(tmp_path, config=other.config)


def test_a_lerobot_data_set_gets_rewards(tmp_path: Path) -> None:
    """The frames of an episode as `LeRobotDataset` returns them."""
    made = [episode(number, 6, sizes={"top": (40, 48)}) for number in range(2)]
    root = write_v30(tmp_path / "set", made, image_cameras=["top"])
    data = LeRobotDataset("made/set", root=root, delta_timestamps={"observation.images.top": [-0.3, -0.2, -0.1, 0.0]})
    model = reward()
    items = [data[3], data[9]]  # the fourth frame of either episode
    batch = {"observation.images.top": torch.stack([item["observation.images.top"] for item in items])}
    found = CounterpointRewardModel.of(model).compute_reward(batch | {"task": [item["task"] for item in items]})
    wanted = [model.progress(one.frames["top"][:4], one.instruction)[-1] for one in made]
    np.testing.assert_allclose(found.numpy(), wanted, atol=1e-5)


@pytest.mark.parametrize("head", ["sparse", "dense"])
def test_lerobot_weighs_by_our_labels(head: str, tmp_path: Path) -> None:
    """RA-BC reads the parquet that `counterpoint label` writes, and weighs as ours does."""
    made = [episode(number, 5 + number, sizes={"top": (40, 48)}, instruction=TASKS[number]) for number in range(3)]
    if head == "dense":
        parts = [((0, TASKS[0]), (2, TASKS[1 + number % 2])) for number in range(3)]
        made = [replace(one, instruction=task_of(own), segments=own) for one, own in zip(made, parts, strict=True)]
    root = write_v30(tmp_path / "set", made, image_cameras=["top"])
    encoder().save_pretrained(tmp_path / "drawer" / "model")
    kept = {"data": {"segments": "task" if head == "dense" else "episode"}}
    (tmp_path / "drawer" / "config.json").write_text(json.dumps(kept))
    file = label(root, model=tmp_path / "drawer")
    assert file.parent == root
    assert file.name.endswith("_progress.parquet")
    assert compute_rabc_weights.get_reward_model_path_from_parquet(file) == "drawer"
    config = SampleWeightingConfig(progress_path=str(file), head_mode=head)
    policy = SimpleNamespace(config=ACTConfig(chunk_size=4, n_action_steps=4, device="cpu"))
    weighter = make_sample_weighter(config, policy, torch.device("cpu"))
    assert weighter.get_stats()["num_frames"] == 18
    data = LeRobotDataset("made/set", root=root)
    batch = {"index": torch.tensor([int(data[i]["index"]) for i in range(18)]), "action": torch.zeros(18, 4)}
    weights, _ = weighter.compute_batch_weights(batch)
    store = LeRobotStore(root)
    wanted = step_weights(file, store, store, column=f"progress_{head}", chunk=4, kappa=config.kappa)
    np.testing.assert_allclose(weights.numpy(), wanted * 18 / (wanted.sum() + 1e-6), atol=1e-5)
    assert wanted.std() > 0.01


def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    encoder().save_pretrained("runs/drawer")
    cloned().save_pretrained("runs/push")
    page = (Path(__file__).parents[2] / "docs/lerobot.md").read_text()
    blocks, scope = re.findall(r"^```py\n(.*?)^```", page, flags=re.M | re.S), dict[str, Any]()
    assert len(blocks) == 2
    for block in blocks:
        exec(block, scope)
    assert (tmp_path / "push-lerobot/policy_preprocessor.json").exists()


def test_a_folder_of_a_lerobot_reward_is_compared_by_its_curve(tmp_path: Path) -> None:
    """`counterpoint compare` gives a LeRobot model growing beginnings of a video; ours says the same through it."""
    model, frames = reward(), videos(1, 9)[0].movedim(1, 3).numpy()
    CounterpointRewardModel.of(model).save_pretrained(tmp_path)
    opened = open_reward(str(tmp_path), name="through LeRobot")
    assert (opened.name, opened.progress) == ("through LeRobot", True)
    found = opened.watch({"top": frames}, {})(np.arange(9), TASKS)
    np.testing.assert_allclose(found, model.progress(frames, TASKS), atol=1e-5)


def test_sarm_says_the_stage_beside_its_progress() -> None:
    """LeRobot's own class, with random weights: stage and progress are those of its `calculate_rewards`."""
    config = SARMConfig(device="cpu", annotation_mode="single_stage")
    config.sparse_subtask_names, config.num_sparse_stages = ["reach", "lift"], 2
    config.sparse_temporal_proportions = [0.5, 0.5]
    torch.manual_seed(0)
    model, prepared = SARMRewardModel(config).eval(), []

    def prepare(sample: dict[str, Any]) -> dict[str, Any]:
        n = len(sample["observation.state"])
        features = {"text_features": torch.randn(1, 512), "video_features": torch.randn(1, n, 512)}
        prepared.append(features | {"state_features": torch.zeros(1, n, 4), "lengths": torch.tensor([n])})
        return prepared[-1]

    scorer = LeRobotScorer(model, prepare)
    found = scorer(np.zeros((16, 8, 8, 3), np.uint8), "lift the cup", np.zeros((16, 4)))
    assert scorer.stages == ("reach", "lift")
    centre = config.n_obs_steps // 2
    for at, features in enumerate(prepared):
        (text, video, state, lengths), more = features.values(), {"return_all_frames": True, "return_stages": True}
        rewards, chances = model.calculate_rewards(text, video, state, lengths, **more)
        assert found["progress"][at] == pytest.approx(rewards[0, centre], abs=1e-6)
        assert found["stage"][at] == chances[0, centre].argmax()
    assert set(found["stage"].tolist()) == {0, 1}
