from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from counterpoint.data.augment import Noise
from counterpoint.data.spec import Spec
from counterpoint.errors import BadInputError
from counterpoint.objectives.crossway import CrosswayConfig
from counterpoint.objectives.icon import IConConfig, patch_mask
from counterpoint.objectives.imitation import Imitation
from counterpoint.policies.networks import DiffusionConfig
from counterpoint.training.imitation import AuxiliaryConfig, build_imitation
from tests.data.sampling import sampler
from tests.policies.masked_demos import CAMERAS, masked_demos, small_imitation

ICON = IConConfig(agent_keys=2, environment_keys=6)
TRANSFORMER = DiffusionConfig(network="transformer", layers=2, width=32, train_steps=20)


def made(masks: tuple[str, ...] = ("top",), **changes: object) -> tuple[Imitation, dict[str, Any]]:
    torch.manual_seed(0)
    store = masked_demos(masks=masks)
    objective = build_imitation(small_imitation(**changes), store, CAMERAS)
    return objective, sampler(store, objective.sampling(), batch_size=8, seed=0, camera=CAMERAS)[0]


def test_it_asks_for_the_original_s_windows() -> None:
    objective, _ = made()
    expected = Spec.steps((-1, 0), 16, stack=1, crop=32, first_action=-1, past_end=7, state=True)
    expected = expected.with_transform("noise", Noise((16, 2))).with_transform("noise_step", Noise((), "uniform"))
    assert objective.sampling() == expected
    objective, _ = made(icon=ICON, frame=36)
    assert "masks" in objective.sampling().reads


@pytest.mark.parametrize(("network", "horizon", "fewer"), [("unet", 16, 7), ("transformer", 10, 1)])
def test_an_epoch_has_as_many_windows_as_the_authors(network: str, horizon: int, fewer: int) -> None:
    """Of T steps those of `horizon` that begin one before the episode at most and end seven behind it."""
    settings = {"network": network, "horizon": horizon, "down_dims": (8, 16), "layers": 1, "width": 8, "heads": 2}
    objective, _ = made(diffusion=DiffusionConfig.model_validate(settings))
    windows = sampler(masked_demos((20, 14)), objective.sampling(), batch_size=8, seed=0, camera=CAMERAS)
    assert windows.epoch_size == 20 + 14 - 2 * fewer


def test_the_loss_is_the_squared_error_of_the_noise() -> None:
    objective, batch = made()
    features = objective.encode(batch)
    predicted, target = (features.rows[name].detach() for name in ("predicted", "target"))
    expected = sum(
        float((predicted[b, k, a] - target[b, k, a]) ** 2) for b in range(8) for k in range(16) for a in range(2)
    ) / (8 * 16 * 2)
    output = objective.loss(features, batch)
    assert float(output.loss.detach()) == pytest.approx(expected, rel=1e-5)
    assert output.metrics.keys() == {"imitation"}


def test_errors_of_sampled_actions_are_those_of_a_plain_loop() -> None:
    objective, batch = made()
    found = objective.eval()(batch).metrics
    policy = objective.policy
    planned = policy.head.sample(
        policy.condition(objective._windows(batch)[0], batch["state"]), generator=torch.Generator().manual_seed(0)
    )
    low, high = policy.head.normalizer.low, policy.head.normalizer.high
    squares: list[list[float]] = [[], []]
    wrong = []
    for b in range(8):
        for k in range(1, 9):  # the eight that are executed, from the newer of two observations on
            pair = [(2 * (one[b, k] - low) / (high - low) - 1).tolist() for one in (planned, batch["actions"])]
            for dim in range(2):
                squares[dim].append((pair[0][dim] - pair[1][dim]) ** 2)
            wrong.append((pair[0][1] > 0) != (pair[1][1] > 0))
    for dim in range(2):
        expected = (sum(squares[dim]) / 64) ** 0.5
        assert float(found[f"action_error/{dim}"]) == pytest.approx(expected, rel=1e-3)
    assert float(found["action_error"]) == pytest.approx((sum(squares[0] + squares[1]) / 128) ** 0.5, rel=1e-3)
    assert float(found["gripper_wrong"]) == pytest.approx(sum(wrong) / 64)
    assert objective(batch).metrics["action_error"] == found["action_error"]  # the same noise every time
    assert "action_error" not in objective.train()(batch).metrics


def test_terms_are_added_by_their_weights() -> None:
    objective, batch = made(icon=ICON, crossway=CrosswayConfig(widths=(16,)))
    output = objective(batch)
    found = output.metrics
    expected = found["imitation"] + 1.0 * found["icon/loss"] + 0.1 * found["crossway/loss"]
    torch.testing.assert_close(output.loss.detach(), expected)
    assert found["icon/qualifying"] == 1


def test_icon_looks_at_the_policy_s_own_pass_in_the_same_windows() -> None:
    """The masks that ICon gets are cut with their images: bright where the robot is."""
    objective, batch = made(masks=CAMERAS, icon=ICON.model_copy(update={"cameras": CAMERAS}))
    given: list[torch.Tensor] = []
    seen: list[torch.Tensor] = []
    objective.terms["icon"].each[0].register_forward_pre_hook(lambda _, args: given.append(args[0]))  # type: ignore[union-attr, index]
    objective.policy.encoder.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    objective(batch)
    assert len(seen) == 1  # one pass of the encoder serves both
    images = seen[0][:, 0]
    torch.testing.assert_close(given[0], images[..., 0] > 200)
    assert patch_mask(given[0], 8).shape == (16, 16)


def tapped(objective: Imitation) -> list[int]:
    """The cameras whose transformers have ICon's loss."""
    modules = [set(vit.modules()) for vit in objective.policy.encoder.vits]
    each = objective.terms["icon"].each
    return [number for number, own in enumerate(modules) for icon in each if icon.tap.parts.patches in own]  # type: ignore[union-attr]


def test_the_first_camera_with_masks_has_the_loss_as_in_the_authors_code_or_those_that_are_named() -> None:
    for masks, cameras, expected in (
        (CAMERAS, (), [0]),
        (("wrist",), (), [1]),
        (CAMERAS, ("wrist",), [1]),
        (CAMERAS, CAMERAS, [0, 1]),
    ):
        objective, _ = made(masks=masks, icon=ICON.model_copy(update={"cameras": cameras}))
        assert tapped(objective) == expected
    for cameras, message in (
        (("wrist",), "masks: found cameras"),
        (("side",), "icon.cameras: found side; expected some of top, wrist"),
    ):
        with pytest.raises(BadInputError, match=message):
            made(masks=("top",), icon=ICON.model_copy(update={"cameras": cameras}))


def test_a_camera_without_masks_is_left_alone() -> None:
    objective, batch = made(masks=("wrist",), icon=ICON)
    torch.autograd.backward([objective(batch).loss])
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in objective.policy.encoder.parameters())


def test_any_objective_on_transitions_can_stand_there() -> None:
    for name, settings in (("premier_taco", {"hidden": 16}), ("taco", {"hidden": 16}), ("curl", {})):
        objective, batch = made(auxiliary=AuxiliaryConfig(weight=0.5, objective={"name": name, **settings}))
        assert batch[f"{name}.frames"].shape[0] == 8
        assert objective.sampling().beside[name].crop == 32
        output = objective(batch)
        found = output.metrics
        torch.testing.assert_close(output.loss.detach(), found["imitation"] + 0.5 * found[f"{name}/loss"])
        assert objective.terms[name].objective.encoder is objective.policy.encoder  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"icon": ICON}, marks=pytest.mark.release),
        pytest.param({"crossway": CrosswayConfig(widths=(16,))}, marks=pytest.mark.release),
        {"icon": ICON, "diffusion": TRANSFORMER},
    ],
)
def test_it_learns(changes: dict[str, Any]) -> None:
    objective, batch = made(**changes)
    optimizer = torch.optim.AdamW(objective.parameters(), lr=2e-3)
    before = copy.deepcopy(objective.state_dict())

    def score() -> float:
        return float(objective(batch).loss.detach())

    first = score()
    for _ in range(30):
        loss = objective(batch).loss
        optimizer.zero_grad()
        torch.autograd.backward([loss])
        optimizer.step()
    assert score() < 0.8 * first
    moved = [key for key, value in objective.state_dict().items() if not torch.equal(value, before[key])]
    assert {name for name, p in objective.named_parameters() if p.grad is not None} <= set(moved)


def test_a_validation_is_of_the_policy_alone() -> None:
    objective, batch = made(icon=ICON)
    objective.eval()
    with torch.no_grad():
        assert not [key for key in objective(batch).metrics if key.startswith("icon")]


@pytest.mark.parametrize("training", [True, False])
def test_noise_is_the_batch_s(training: bool) -> None:
    """The objective draws nothing itself, so that ranks share one stream; other noise is another loss."""
    objective, batch = made(icon=ICON)
    objective.train(training)
    state = torch.get_rng_state()
    loss = float(objective(batch).loss)
    assert loss == float(objective(batch).loss)
    assert torch.equal(state, torch.get_rng_state())
    for key in ("noise", "noise_step") + (("token_order",) if training else ()):
        assert float(objective(batch | {key: batch[key].flip(0)}).loss) != loss


def test_a_validation_looks_at_the_middle_of_its_images() -> None:
    """As the policy does when it acts, wherever the batch's random windows lie."""
    objective, batch = made()
    seen: list[torch.Tensor] = []
    objective.policy.encoder.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    objective.eval()
    with torch.no_grad():
        objective(batch)
    middle = batch["frames"][..., 2:34, 2:34, :].flatten(0, 1)
    assert bool((batch["crop"] != 2).any())
    assert torch.equal(seen[0], middle)


def test_other_passes_through_a_tapped_encoder_leave_icon_alone() -> None:
    """Terms with batches of their own come after it in whatever order they are given; their tokens are let go."""
    curl = AuxiliaryConfig(weight=0.5, objective={"name": "curl"})
    objective, batch = made(icon=ICON, auxiliary=curl)
    turned = Imitation(objective.policy, {name: objective.terms[name] for name in ("curl", "icon")})  # type: ignore[misc]
    found = []
    for one in (objective, turned):
        output = one(batch)
        torch.autograd.backward([output.loss])
        found.append(float(output.metrics["icon/loss"]))
        tap = objective.terms["icon"].each[0].tap  # type: ignore[union-attr, index]
        one.after_step()
        with pytest.raises(BadInputError, match="0 of its 2 blocks"):
            tap.take()
    assert found[0] == found[1]


def test_a_transformer_s_matrices_decay_by_themselves() -> None:
    objective, _ = made(diffusion=TRANSFORMER)
    groups = objective.param_groups()
    counts = {name: sum(p.numel() for p in group) for name, group in groups.items()}
    assert sum(counts.values()) == sum(p.numel() for p in objective.parameters() if p.requires_grad)
    assert objective.weight_decays() == {"decayed": 1e-3, "plain": 0.0}
    before = (objective.policy.encoder, objective.policy.state_encoder)
    assert {id(p) for p in groups["model"]} == {id(p) for part in before for p in part.parameters()}
    assert all(p.ndim > 1 for p in groups["decayed"])


def test_a_deep_copy_taps_its_own_transformers() -> None:
    """A moving average is a copy: its tokens are not the original's."""
    objective, batch = made(icon=ICON)
    copied = copy.deepcopy(objective)
    with torch.no_grad():
        for p in copied.parameters():
            p.mul_(0.5)
    mine = objective(batch).metrics["icon/loss"]
    theirs = copied(batch).metrics["icon/loss"]
    assert float(mine) != float(theirs)


def test_a_batch_without_actions_is_one_message() -> None:
    objective, batch = made()
    with pytest.raises(BadInputError, match="batch: found no actions"):
        objective({key: value for key, value in batch.items() if key != "actions"})


def test_the_loss_ignores_images_whose_masks_are_empty_or_full() -> None:
    objective, batch = made(icon=ICON)
    batch["masks"][:4] = False
    batch["masks"][4:6] = True
    output = objective(batch)
    torch.autograd.backward([output.loss])
    assert float(output.metrics["icon/qualifying"]) == 0.25
    assert all(torch.isfinite(p.grad).all() for p in objective.parameters() if p.grad is not None)


def test_more_keys_than_tokens_are_refused() -> None:
    with pytest.raises(BadInputError, match="12 \\+ 6 keys of 4 x 4 = 16 tokens"):
        made(icon=IConConfig(agent_keys=12, environment_keys=6))
