from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from counterpoint.errors import BadInputError
from counterpoint.objectives.actol import brownian_bridge_loss, random_intervals
from tests.golden.load import golden
from tests.objectives.test_actol_ordering import TIMES, VALID, Recorder, videos
from tests.reference.actol import bridge_as_trained_video, bridge_video

Loss = Callable[..., Tensor]
brownian_bridge_log_loss: Loss = partial(brownian_bridge_loss, form="log_variance")
brownian_bridge_loss_as_trained: Loss = partial(brownian_bridge_loss, form="variance_as_trained")
brownian_bridge_log_loss_as_trained: Loss = partial(brownian_bridge_loss, form="log_variance_as_trained")
DOCUMENTED: list[Loss] = [brownian_bridge_loss, brownian_bridge_log_loss]
AS_TRAINED: list[Loss] = [brownian_bridge_loss_as_trained, brownian_bridge_log_loss_as_trained]

SORTED = torch.tensor([[1, 2, 3, 5, 8, 13], [0, 4, 5, 6, 7, 30], [3, 3, 4, 9, 9, 9]])


@pytest.mark.parametrize("loss", DOCUMENTED)
@pytest.mark.parametrize("interval", [None, [(1, 4), (0, 2), (2, 3)]])
def test_plain_loop(loss: Loss, interval: list[tuple[int, int]] | None) -> None:
    frames, _ = videos(B=3)
    ends = None if interval is None else torch.tensor(interval)
    ours = loss(frames, SORTED, interval=ends)
    log = loss is brownian_bridge_log_loss
    plain = torch.stack(
        [bridge_video(frames[b], SORTED[b].tolist(), log, None if interval is None else interval[b]) for b in range(3)]
    ).mean()
    torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)
    mine, theirs = (torch.autograd.grad(value, frames)[0] for value in (ours, plain))
    torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("loss", AS_TRAINED)
def test_plain_loop_as_trained(loss: Loss) -> None:
    frames, _ = videos(B=2)
    ours = loss(frames, SORTED[:2])
    log = loss is brownian_bridge_log_loss_as_trained
    plain = torch.stack([bridge_as_trained_video(frames[b], SORTED[b].tolist(), log) for b in range(2)]).mean()
    torch.testing.assert_close(ours, plain, rtol=1e-10, atol=1e-12)
    mine, theirs = (torch.autograd.grad(value, frames)[0] for value in (ours, plain))
    torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("loss", "factor", "value", "gradient"),
    [
        (brownian_bridge_loss, 0.1, "head_bb_mean_labels1d", "head_bb_labels1d_grad_visual"),
        (brownian_bridge_log_loss, 100, "v1_bb_mean_labels1d", "v1_bb_labels1d_grad_visual"),
        (brownian_bridge_loss_as_trained, 0.1, "head_bb_loss_as_trained", "head_bb_as_trained_grad_visual"),
        (brownian_bridge_log_loss_as_trained, 100, "v1_bb_loss_as_trained", "v1_bb_as_trained_grad_visual"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_authors_numbers(loss: Loss, factor: float, value: str, gradient: str, dtype: torch.dtype) -> None:
    arrays, _ = golden("actol_a")
    frames = arrays["visual"].to(dtype).requires_grad_()
    valid = torch.arange(10) < arrays["num_frames"][:, None]
    ours = factor * loss(frames, arrays["frame_index"], valid=valid)
    wide = dtype == torch.float64
    torch.testing.assert_close(ours.double(), arrays[value], rtol=1e-9 if wide else 1e-5, atol=0)
    (mine,) = torch.autograd.grad(ours, frames)
    scale = arrays[gradient].abs().max().item()
    torch.testing.assert_close(
        mine.double(), arrays[gradient], rtol=1e-7 if wide else 1e-4, atol=1e-10 if wide else 1e-5 * scale
    )


@pytest.mark.parametrize("name", ["head", "v1"])
def test_authors_numbers_per_video(name: str) -> None:
    arrays, _ = golden("actol_a")
    factor, documented, trained = {
        "head": (0.1, brownian_bridge_loss, brownian_bridge_loss_as_trained),
        "v1": (100, brownian_bridge_log_loss, brownian_bridge_log_loss_as_trained),
    }[name]
    for b, count in enumerate(arrays["num_frames"].tolist()):
        frames, times = arrays["visual"][b : b + 1, :count], arrays["frame_index"][b : b + 1, :count]
        for loss, key in ((documented, "labels1d"), (trained, "as_trained")):
            expected = arrays[f"{name}_bb_per_video_{key}"][b]
            torch.testing.assert_close(factor * loss(frames, times), expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("loss", [*DOCUMENTED, *AS_TRAINED])
def test_gradcheck(loss: Loss) -> None:
    frames, _ = videos(D=3)
    assert torch.autograd.gradcheck(lambda f: loss(f, TIMES, valid=VALID), frames)


@pytest.mark.parametrize("loss", DOCUMENTED)
def test_gradcheck_of_intervals(loss: Loss) -> None:
    frames, _ = videos(B=3, D=3)
    ends = torch.tensor([[1, 4], [4, 0], [2, 2]])  # in order, backwards, and nothing in between
    assert torch.autograd.gradcheck(lambda f: loss(f, SORTED, interval=ends), frames)


@pytest.mark.parametrize("loss", [*DOCUMENTED, *AS_TRAINED])
@pytest.mark.parametrize(
    ("times", "valid"),
    [
        ([[4, 9]], None),
        ([[4]], None),
        ([[4, 4, 4]], None),
        ([[4, 4, 9]], None),
        ([[4, 9, 9]], None),
        ([[1, 2, 3]], [[True, True, False]]),
        ([[1, 2, 3]], [[False, False, False]]),
    ],
)
def test_nothing_inside_adds_zero(loss: Loss, times: list[list[int]], valid: list[list[bool]] | None) -> None:
    frames, _ = videos(B=1, T=len(times[0]))
    flags = None if valid is None else torch.tensor(valid)
    value = loss(frames, torch.tensor(times), valid=flags)
    assert value == 0
    assert (torch.autograd.grad(value, frames)[0] == 0).all()
    full, _ = videos(B=1, T=3, seed=1)
    when = torch.tensor([[1, 2, 3]])
    if len(times[0]) == 3:  # and halves the mean of a batch of two
        stacked = loss(
            torch.cat([full, frames]),
            torch.cat([when, torch.tensor(times)]),
            valid=torch.cat([torch.ones(1, 3).bool(), torch.ones(1, 3).bool() if flags is None else flags]),
        )
        torch.testing.assert_close(stacked, loss(full, when) / 2)


@pytest.mark.parametrize("loss", DOCUMENTED)
def test_zero_on_the_line_and_only_there(loss: Loss) -> None:
    ends, _ = videos(B=3, T=2)
    times = SORTED.double()
    share = (times - times[:, :1]) / (times[:, -1:] - times[:, :1])
    line = ends[:, :1] + share[..., None] * (ends[:, 1:] - ends[:, :1])
    assert loss(line, SORTED).item() == pytest.approx(0, abs=1e-25)
    off = line.detach().clone()
    off[0, 2, 0] += 0.1
    assert loss(off, SORTED) > 0


@pytest.mark.parametrize(("loss", "on_line"), [(brownian_bridge_loss, True), (brownian_bridge_loss_as_trained, False)])
def test_where_free_frames_land(loss: Loss, on_line: bool) -> None:
    times = torch.tensor([[0, 1, 4, 6, 10]])
    ends = torch.tensor([[[0.0, 0.0], [1.0, 2.0]]])
    inside = torch.randn(1, 3, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
    optimizer = torch.optim.LBFGS([inside], max_iter=100, tolerance_grad=1e-9, tolerance_change=1e-12)

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(torch.cat([ends[:, :1], inside, ends[:, 1:]], 1), times)
        torch.autograd.backward(value)
        return value

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    spread = inside.detach()[0].std(0, correction=0).norm()
    line = torch.tensor([[0.1, 0.2], [0.4, 0.8], [0.6, 1.2]])
    if on_line:
        torch.testing.assert_close(inside.detach()[0], line, atol=1e-4, rtol=0)
    else:
        assert spread < 1e-4  # all three in one point
        assert (inside.detach()[0] - line).norm() > 0.1


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 999), scale=st.floats(0.1, 10))
@pytest.mark.parametrize("loss", [*DOCUMENTED, *AS_TRAINED])
def test_symmetries(loss: Loss, seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    frames, _ = videos(B=2, T=7, seed=seed)
    times = torch.stack([torch.randperm(40, generator=generator)[:7].sort().values for _ in range(2)])
    value = loss(frames, times)
    assert value >= 0
    torch.testing.assert_close(loss(frames.flip(0), times.flip(0)), value)
    torch.testing.assert_close(loss(frames.flip(1), 100 - times.flip(1)), value)  # time reversed
    torch.testing.assert_close(loss(frames.flip(1), times.flip(1)), value)  # listed backwards
    torch.testing.assert_close(loss(frames, times + 12345), value)
    torch.testing.assert_close(loss(frames + 3, times), value)  # raw embeddings: anywhere in space,
    torch.testing.assert_close(loss(frames * scale, times), value * scale**2)  # but length counts


def test_variance_grows_with_the_unit_of_time() -> None:
    frames, _ = videos(B=3)
    torch.testing.assert_close(brownian_bridge_loss(frames, 4 * SORTED), brownian_bridge_loss(frames, SORTED) / 4)


@pytest.mark.parametrize("loss", [*DOCUMENTED, *AS_TRAINED])
def test_padding_is_cropping(loss: Loss) -> None:
    frames, _ = videos(B=3)
    valid = (torch.arange(6) < 4).expand(3, 6)
    padded = loss(frames, SORTED, valid=valid)
    torch.testing.assert_close(padded, loss(frames[:, :4], SORTED[:, :4]))
    assert (torch.autograd.grad(padded, frames)[0][:, 4:] == 0).all()


def test_a_second_backward_pass_repeats_the_first() -> None:
    frames, _ = videos(B=3)
    loss = brownian_bridge_loss(frames, SORTED)
    (first,) = torch.autograd.grad(loss, frames, retain_graph=True)
    (second,) = torch.autograd.grad(loss, frames)
    torch.testing.assert_close(second, first)


@pytest.mark.parametrize("loss", DOCUMENTED)
def test_no_loop_and_no_square(loss: Loss) -> None:
    counts = []
    for B, T in ((2, 4), (3, 40)):
        frames, _ = videos(B, T, D=4)
        with Recorder() as record:
            torch.autograd.backward(loss(frames, torch.arange(T).expand(B, T)))
        counts.append(record.operations)
        assert record.largest <= B * T * 4
    assert counts[0] == counts[1]


def test_wrong_shapes_are_refused() -> None:
    frames, _ = videos(B=3)
    wrong: list[dict[str, Any]] = [
        {"times": SORTED[..., None]},
        {"times": SORTED[:, :4]},
        {"times": SORTED, "valid": VALID},
        {"times": SORTED, "interval": torch.zeros(3, 3, dtype=torch.long)},
    ]
    for arguments in wrong:
        with pytest.raises(BadInputError, match=r"for frames \[B, T, D\]"):
            brownian_bridge_loss(frames, **arguments)


def test_random_intervals() -> None:
    uniform = torch.rand(20_000, 2, generator=torch.Generator().manual_seed(0))
    places = random_intervals(uniform, torch.ones(20_000, 6, dtype=torch.bool))
    start, stop = places.unbind(1)
    assert (stop - start >= 2).all()
    assert start.min() == 0
    assert stop.max() == 5
    share = torch.bincount(start) / len(start)
    torch.testing.assert_close(share, torch.full((4,), 0.25), atol=0.015, rtol=0)
    after = torch.bincount(stop[start == 1])[3:] / (start == 1).sum()
    torch.testing.assert_close(after, torch.full((3,), 1 / 3), atol=0.025, rtol=0)


def test_random_intervals_depend_on_each_videos_numbers_alone() -> None:
    valid = torch.ones(50, 8, dtype=torch.bool)
    uniform = torch.rand(50, 2)
    every = random_intervals(uniform, valid)
    order = torch.randperm(50)
    assert torch.equal(random_intervals(uniform[order], valid), every[order])
    assert torch.equal(random_intervals(uniform[7:9], valid[7:9]), every[7:9])
    assert not torch.equal(random_intervals(1 - uniform, valid), every)


def test_random_intervals_end_inside_whatever_the_numbers() -> None:
    greatest = torch.full((1, 2), 1 - 2**-24)  # a product in single precision rounds up to the bound
    assert random_intervals(greatest, torch.ones(1, 11, dtype=torch.bool)).tolist() == [[8, 10]]
    assert random_intervals(torch.zeros(1, 2), torch.ones(1, 11, dtype=torch.bool)).tolist() == [[0, 2]]


def test_random_intervals_stay_among_valid_frames() -> None:
    valid = torch.tensor([[1, 0, 1, 1, 0, 0], [0, 1, 0, 0, 1, 0], [0, 0, 0, 0, 0, 0]]).bool()
    places = random_intervals(torch.rand(3, 2), valid)
    assert places[0].tolist() == [0, 3]
    assert places[1].tolist() == [1, 4]
    frames, _ = videos(B=3)
    assert brownian_bridge_loss(frames, SORTED, valid=valid, interval=places).isfinite()
