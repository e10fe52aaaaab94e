from __future__ import annotations

import math
import re
from importlib import resources
from typing import Any

import numpy as np
import pytest
from accelerate import Accelerator

from counterpoint.config import read_recipe, recipe_names, recipe_title
from counterpoint.encoders.weights import MINILM
from counterpoint.envs.goal.env import make_goal_env
from counterpoint.envs.goal.mazes import MazeGrid
from counterpoint.errors import BadInputError
from counterpoint.objectives import ClipObjective, StepObjective, objective_names
from counterpoint.training.clips import build_objective
from counterpoint.training.learner import ObjectiveLearner
from counterpoint.training.recipe import KINDS, load_recipe
from tests.conftest import moving_square_store
from tests.data.sampling import sampler

TINY = {
    "encoder.image": "convnet",
    "encoder.text": "minilm",
    "encoder.text_model": MINILM,
    "encoder.image_model": "",
    "encoder.pretrained": None,
    "encoder.image_size": 32,
    "encoder.embed_dim": 16,
    "encoder.freeze_image": False,
    "encoder.freeze_text": False,
    "encoder.dropout": 0.0,
}


KIND_LINES = {f'kind = "{kind}"' for kind in KINDS}
RECIPES: dict[str, list[str]] = {kind: [] for kind in KINDS}
for _name in recipe_names():
    RECIPES[read_recipe(_name)["kind"]].append(_name)


def load_config(name: str, overrides: dict[str, Any] | None = None) -> Any:
    return load_recipe(name, overrides)


def unsaid(name: str, section: str) -> set[str]:
    """Keys of a section that the recipe's file leaves to the defaults."""
    return set(type(getattr(load_config(name), section)).model_fields) - set(read_recipe(name)[section])


@pytest.mark.parametrize("name", recipe_names())
def test_the_first_key_is_the_kind(name: str) -> None:
    assert next(iter(read_recipe(name))) == "kind"
    assert load_recipe(name).kind == read_recipe(name)["kind"]


def test_titles_are_whole_sentences() -> None:
    assert [name for name in recipe_names() if not recipe_title(name).endswith(".")] == []


@pytest.mark.parametrize("name", RECIPES["clips"])
def test_every_recipe_loads_with_every_key_known(name: str) -> None:
    assert load_config(name).objective.name in objective_names(ClipObjective)


@pytest.mark.parametrize("name", RECIPES["transitions"])
def test_every_recipe_of_transitions_is_complete_and_every_key_known(name: str) -> None:
    assert load_config(name).objective.name in objective_names(StepObjective)
    assert not unsaid(name, "objective")


def test_values_of_premier_taco_s_appendix_c() -> None:
    config = load_config("premier_taco-metaworld")
    said = config.objective
    assert (said.steps, said.window, said.hidden, said.action_hidden) == (3, 5, 1024, 64)
    assert (config.encoder.embed_dim, config.encoder.size, config.encoder.stack) == (100, 84, 3)
    assert config.optimizer.lr == 1e-4
    batches = {name: load_config(name).train.batch_size for name in RECIPES["transitions"]}
    assert {batches[f"{name}-metaworld"] for name in ("premier_taco", "taco", "curl", "atc", "spr")} == {4096}
    assert {batches[f"{name}-metaworld"] for name in ("td3_bc", "inverse_dynamics")} == {1024}


@pytest.mark.parametrize("name", RECIPES["agent"])
def test_every_agent_s_recipe_is_complete_and_every_key_known(name: str) -> None:
    assert not unsaid(name, "agent") - {"bf16", "compile", "cuda_graph"}


def test_values_of_td_infonce_tables_2_and_3() -> None:
    fetch, maze, large = (load_config(f"td_infonce-{name}") for name in ("fetch", "antmaze", "antmaze-large"))
    for config in (fetch, maze, large):
        assert (config.agent.actor_lr, config.agent.critic_lr) == (5e-5, 3e-4)
        assert (config.agent.representation, config.agent.normalise) == (16, True)
    assert fetch.agent.hidden == maze.agent.hidden == (512,) * 4
    assert large.agent.hidden == (1024,) * 4
    assert (fetch.online.batch_size, maze.train.batch_size, large.train.batch_size) == (256, 256, 1024)
    assert fetch.agent.actor_goals == "random"
    assert maze.agent.actor_goals == large.agent.actor_goals == "future"
    assert maze.agent.behaviour_cloning == large.agent.behaviour_cloning == 0.1


@pytest.mark.parametrize("name", [name for name in RECIPES["agent"] if "antmaze" in name])
def test_antmaze_is_evaluated_as_d4rl_does_in_the_version_of_the_data(name: str) -> None:
    env = load_config(name).env
    assert env is not None
    goal = {"AntMaze_UMaze-v4": (3, 1), "AntMaze_Large-v4": (7, 9)}[env.name]
    assert (env.start_cells, env.goal_cells) == (((1, 1),), (goal,))


@pytest.mark.sim
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("recipe", "changes"),
    [
        ("td_infonce-antmaze", {}),
        (
            "td_infonce-antmaze",
            {"env.name": "AntMaze_Medium-v4", "env.start_cells": [[1, 1]], "env.goal_cells": [[6, 6]]},
        ),
        ("td_infonce-antmaze-large", {}),
    ],
)
def test_antmaze_begins_and_ends_where_its_recipe_says(recipe: str, changes: dict[str, Any]) -> None:
    config = load_config(recipe, changes).env
    assert config is not None
    env = make_goal_env(config)
    grid = MazeGrid.of(env)
    seen, _ = env.reset(seed=0)
    assert grid.cell_of(seen["achieved_goal"]) == config.start_cells[0]
    assert grid.cell_of(seen["desired_goal"]) == config.goal_cells[0]
    env.close()


@pytest.mark.parametrize("name", recipe_names())
def test_every_value_ends_in_its_source(name: str) -> None:
    text = (resources.files("counterpoint") / "recipes" / f"{name}.toml").read_text()
    for line in text.splitlines():
        if re.match(r"\w+ = ", line) and not line.startswith(("name = ", "seed = ")) and line not in KIND_LINES:
            assert "#" in line, f"{name}: {line}"


@pytest.mark.parametrize("name", RECIPES["clips"])
def test_every_recipe_takes_a_step_with_a_tiny_encoder(name: str) -> None:
    config = load_config(name, TINY)
    objective = build_objective(config)
    loader = sampler(moving_square_store(size=32), objective.sampling(), batch_size=4, seed=0)
    output = objective(loader[0])
    output.loss.backward()
    gradients = [p.grad for p in objective.parameters() if p.requires_grad]
    assert all(g is not None and bool(g.isfinite().all()) for g in gradients)


def test_values_of_decisionnce_table_4() -> None:
    for variant in ("p", "t"):
        config = load_config(f"decisionnce_{variant}-epic100")
        assert (config.train.steps, config.train.batch_size) == (20_000, 1024)
        assert (config.optimizer.name, config.optimizer.lr, config.optimizer.weight_decay) == ("adam", 1e-5, 1e-3)
        assert config.optimizer.betas == (0.9, 0.999)
        assert (config.encoder.image, config.encoder.image_model, config.encoder.pretrained) == (
            "open_clip", "RN50-quickgelu", "openai",
        )  # fmt: skip
        assert objective_settings(config)["augment"] is True


def test_values_of_actol_table_3() -> None:
    config = load_config("actol-epic100", {})
    assert (config.train.epochs, config.train.batch_size) == (1000, 128)
    assert (config.optimizer.name, config.optimizer.lr, config.optimizer.weight_decay) == ("adam", 1e-5, 1e-3)
    settings = objective_settings(config)
    assert settings["frames"] == 10
    assert settings["bridge_weight"] == 100


def test_an_epoch_of_actol_is_one_clip_of_each_distinct_sentence() -> None:
    """EPIC-KITCHENS-100 has 67,217 training clips of about 15,000 sentences: some 117,000 steps, where all clips would
    take 525,133."""
    config = load_config("actol-epic100", TINY)
    assert config.data.min_length == config.objective.frames == 10
    index = build_objective(config).sampling().index
    sentences = 15_000
    lengths, tasks = np.full(67_217, 30), np.arange(67_217) % sentences
    table = index.table(lengths, tasks)
    assert config.train.total_steps(len(table)) == math.ceil(1000 * sentences / 128) == 117_188
    drawn = table.draw(sentences, 0, 0, ("clip",))[1]
    assert sorted(drawn["instruction_id"].tolist()) == list(range(sentences))


@pytest.mark.parametrize("name", [name for name in RECIPES["clips"] if name.endswith("-epic100")])
def test_recipes_of_epic_keep_the_frames_shape(name: str) -> None:
    data = load_config(name).data
    assert (data.size, data.fit) == (256, "shorter")  # frames are 456 x 256


@pytest.mark.parametrize("name", ["decisionnce_p-epic100", "decisionnce_t-epic100", "actol-epic100"])
def test_biases_and_gains_do_not_decay_where_the_authors_use_timm(name: str) -> None:
    optim: Any = pytest.importorskip("timm.optim")
    config = load_config(name, TINY)
    objective = build_objective(config)
    model = objective.encoder
    theirs = optim.create_optimizer_v2(model, "adam", lr=1e-5, weight_decay=1e-3, eps=1e-6)
    trained = ObjectiveLearner(objective, config.optimizer, total_steps=1, accelerator=Accelerator(cpu=True)).optimizer
    decays = [
        {id(p): group["weight_decay"] for group in one.param_groups for p in group["params"] if p.requires_grad}
        for one in (theirs, trained)
    ]
    assert decays[0] == decays[1]
    assert set(decays[0].values()) == {0.0, 1e-3}


def objective_settings(config: Any) -> dict[str, object]:
    found: dict[str, object] = config.objective.model_dump()
    return found


UNET = {"down_dims", "kernel_size", "groups", "step_dim"}
TRANSFORMER = {"layers", "heads", "width", "condition_layers", "embedding_dropout", "attention_dropout"}


@pytest.mark.parametrize("name", RECIPES["imitation"])
def test_every_recipe_of_imitation_is_complete_and_every_key_known(name: str) -> None:
    tree = read_recipe(name)
    config = load_config(name)
    other = TRANSFORMER if config.diffusion.network == "unet" else UNET
    assert set(type(config.diffusion).model_fields) - set(tree["diffusion"]) == other
    if config.icon.weight:
        assert set(tree["icon"]) == set(type(config.icon).model_fields)
    assert set(type(config.optimizer).model_fields) - set(tree["optimizer"]) == {
        "clip_norm",
        "accumulate",
        "decay_vectors",
        "encoder_lr",
    }


@pytest.mark.parametrize("name", ["cloning", "decisionnce_p-videos"])
def test_a_rate_of_the_encoder_needs_one_that_trains_beneath_heads(name: str) -> None:
    changes = {"optimizer.encoder_lr": 1e-5} | ({"cloning.freeze": True} if name == "cloning" else {})
    with pytest.raises(BadInputError, match=r"optimizer\.encoder_lr is for an encoder"):
        load_config(name, changes)


OURS = {"diff_c-robosuite-state", "diff_c-robosuite-small"}


def test_values_of_icon_s_experiments() -> None:
    papers = {f"{name}-robosuite" for name in ("diff_c", "diff_t", "crossway_diff_c", "icon_diff_c", "icon_diff_t")}
    assert set(RECIPES["imitation"]) == {*papers, *OURS}
    for name in sorted(papers):
        config = load_config(name)
        assert (config.train.epochs, config.train.batch_size) == (600, 64)  # Appendix A.4
        assert (config.encoder.vit.model, config.encoder.size) == ("vit_small_patch16_224", 224)  # A.2
        assert (config.frame, config.encoder.cameras) == (256, 2)  # Table 4
        assert bool(config.icon.weight) == name.startswith("icon")
        assert bool(config.crossway.weight) == name.startswith("crossway")


def test_values_of_icon_s_authors_code() -> None:
    for name in sorted(set(RECIPES["imitation"]) - OURS):
        config = load_config(name)
        found, unet = config.diffusion, config.diffusion.network == "unet"
        assert (found.obs_steps, found.executed, found.train_steps, found.prediction) == (2, 8, 100, "epsilon")
        assert (found.sampler, found.inference_steps, found.horizon) == (("ddim", 8, 16) if unet else ("ddim", 100, 10))
        assert not unet or found.down_dims == (256, 512, 1024)
        assert (config.state_embed_dim, config.train.keep_best) == (128, 10)
        optimizer = config.optimizer
        assert (optimizer.lr, optimizer.weight_decay, optimizer.clip_norm) == (1e-4, 1e-6, None)
        assert (optimizer.betas, optimizer.warmup_steps) == (((0.95, 0.999), 500) if unet else ((0.9, 0.95), 1000))
        assert (optimizer.ema, optimizer.ema_power) == (0.9999, 0.75)
        assert not config.icon.weight or config.icon.cameras == ()


BASELINES = {"clip": "clip_goal", "liv": "liv", "vip": "vip", "r3m": "r3m", "tcn": "tcn"}


@pytest.mark.parametrize("size", ["demo", "epic100"])
@pytest.mark.parametrize(("recipe", "objective"), BASELINES.items())
def test_every_baseline_has_a_recipe_of_both_sizes_that_states_its_settings(
    recipe: str, objective: str, size: str
) -> None:
    assert load_config(f"{recipe}-{size}").objective.name == objective
    assert unsaid(f"{recipe}-{size}", "objective") <= {"augment", "augment_scale", "augment_jitter", "multi_positive"}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("liv", (200_000, 512, 1e-5, 1e-3, (0.9, 0.98), 1e-6)),
        ("vip", (2_000_000, 32, 1e-4, 0, (0.9, 0.999), 1e-8)),
        ("r3m", (2_000_000, 16, 1e-4, 0, (0.9, 0.999), 1e-8)),
    ],
)
def test_values_of_the_baselines_authors(name: str, values: tuple[object, ...]) -> None:
    config = load_config(f"{name}-epic100", {})
    train, optimizer = config.train, config.optimizer
    found = (train.steps, train.batch_size, optimizer.lr, optimizer.weight_decay, optimizer.betas, optimizer.eps)
    assert found == values
