from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from counterpoint.errors import BadInputError
from counterpoint.objectives.actol import (
    Neighbours,
    directed_vlo_loss,
    frame_similarity,
    neighbours,
    ordering_losses,
    ordering_metrics,
    pair_scores,
    vlo_loss,
    vlo_lower_bound,
)
from tests.golden.load import golden
from tests.reference.actol import lower_bound_video, vlo_video

Loss = Callable[..., Tensor]
LOSSES: list[Loss] = [vlo_loss, directed_vlo_loss]

TIMES = torch.tensor([[1, 2, 3, 5, 8, 13], [3, 1, 2, 2, 9, 9], [0, 4, 5, 6, 7, 8], [4, 4, 4, 4, 4, 4]])
VALID = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 1], [1, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0]]).bool()


def losses(similarity: Tensor, near: Neighbours, *, directed: bool = False) -> Tensor:
    return ordering_losses(pair_scores(similarity, near, temperature=0.1, directed=directed), near)


def videos(B: int = 4, T: int = 6, D: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    frames, text = (torch.randn(s, dtype=torch.float64, generator=generator) for s in ((B, T, D), (B, D)))
    return frames.requires_grad_(), text.requires_grad_()


def cropped(frames: Tensor, text: Tensor, times: Tensor, valid: Tensor) -> Iterator[tuple[Tensor, Tensor, list[int]]]:
    for b in range(len(frames)):
        yield frames[b][valid[b]], text[b], times[b][valid[b]].tolist()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("temperature", [1.0, 0.05, 0.002])
@pytest.mark.parametrize("padded", [False, True])
def test_plain_loop(loss: Loss, temperature: float, padded: bool) -> None:
    frames, text = videos()
    valid = VALID if padded else torch.ones_like(VALID)
    ours = loss(frames, text, TIMES, temperature=temperature, valid=valid if padded else None)
    directed = loss is directed_vlo_loss
    plain = torch.stack([vlo_video(*v, temperature, directed) for v in cropped(frames, text, TIMES, valid)]).mean()
    torch.testing.assert_close(ours, plain, rtol=1e-10, atol=1e-12)
    mine, theirs = (torch.autograd.grad(value, (frames, text)) for value in (ours, plain))
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


def test_authors_numbers() -> None:
    arrays, _ = golden("actol_a")
    frames, text = arrays["visual"].requires_grad_(), arrays["text"].requires_grad_()
    valid = torch.arange(10) < arrays["num_frames"][:, None]
    loss = vlo_loss(frames, text, arrays["frame_index"], valid=valid)
    torch.testing.assert_close(loss, arrays["head_vlo_loss"], rtol=1e-9, atol=0)
    torch.autograd.backward(loss)
    torch.testing.assert_close(frames.grad, arrays["head_vlo_grad_visual"], rtol=1e-7, atol=1e-10)
    torch.testing.assert_close(text.grad, arrays["head_vlo_grad_text"], rtol=1e-7, atol=1e-10)


def test_authors_numbers_in_single_precision() -> None:
    arrays, _ = golden("actol_a")
    valid = torch.arange(10) < arrays["num_frames"][:, None]
    loss = vlo_loss(arrays["visual"].float(), arrays["text"].float(), arrays["frame_index"], valid=valid)
    torch.testing.assert_close(loss.double(), arrays["head_vlo_loss"], rtol=1e-5, atol=0)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("temperature", [0.5, 0.002])
def test_gradcheck(loss: Loss, temperature: float) -> None:
    def scaled(frames: Tensor, text: Tensor) -> Tensor:
        return temperature * loss(frames, text, TIMES, temperature=temperature, valid=VALID)

    assert torch.autograd.gradcheck(scaled, videos(D=3))


@pytest.mark.parametrize("loss", LOSSES)
def test_continuous_in_the_temperature(loss: Loss) -> None:
    frames, text = videos()
    just_above, just_below = 1 / 349, 1 / 351
    values = [t * loss(frames, text, TIMES, temperature=t) for t in (just_above, just_below)]
    torch.testing.assert_close(*values, rtol=1e-4, atol=0)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("temperature", [1e-1, 1e-2, 1e-3, 1e-5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_finite_at_any_temperature(loss: Loss, temperature: float, dtype: torch.dtype) -> None:
    frames, text = (x.detach().to(dtype).requires_grad_() for x in videos())
    with torch.no_grad():
        frames[0, 0], frames[0, 5] = text[0], -text[0]
    value = loss(frames, text, TIMES, temperature=temperature)
    assert value.isfinite()
    assert all(g.isfinite().all() for g in torch.autograd.grad(value, (frames, text)))


@settings(max_examples=40, deadline=None)
@given(
    times=st.lists(st.lists(st.integers(0, 12), min_size=7, max_size=7), min_size=1, max_size=3),
    seed=st.integers(0, 99),
)
@pytest.mark.parametrize("loss", LOSSES)
def test_never_below_its_bound(loss: Loss, times: list[list[int]], seed: int) -> None:
    when = torch.tensor(times)
    frames, text = videos(len(times), 7, seed=seed)
    bound = vlo_lower_bound(when)
    torch.testing.assert_close(bound, torch.tensor([lower_bound_video(t) for t in times]).double().mean())
    for temperature in (10.0, 1.0, 0.01):
        assert loss(frames, text, when, temperature=temperature) >= bound - 1e-12


def steady(times: Tensor, falling: bool = False) -> tuple[Tensor, Tensor]:
    """Unit frames whose cosine with the text rises (or falls) by the same amount every time step."""
    cosine = times.double() / times.max() * 2 - 1
    cosine = -cosine if falling else cosine
    frames = torch.stack([cosine, (1 - cosine.square()).clamp(min=0).sqrt()], -1)
    return frames, torch.tensor([[1.0, 0.0]]).double().expand(len(times), 2)


@pytest.mark.parametrize("loss", LOSSES)
def test_bound_is_reached_as_the_temperature_falls(loss: Loss) -> None:
    times = torch.arange(10)[None]
    frames, text = steady(times)
    excess = [float(loss(frames, text, times, temperature=t) - vlo_lower_bound(times)) for t in (1, 0.1, 0.03, 0.01)]
    assert excess[0] > 0.5
    assert excess == sorted(excess, reverse=True)
    assert abs(excess[-1]) < 1e-9


@pytest.mark.parametrize("loss", LOSSES)
def test_two_frames_are_always_at_the_bound(loss: Loss) -> None:
    frames, text = videos(T=2)
    value = loss(frames, text, TIMES[:, :2])
    torch.testing.assert_close(value, vlo_lower_bound(TIMES[:, :2]).to(value.dtype))
    assert value == 0


def test_bound_of_regular_frames() -> None:
    # Anchors 0 and 4 see four distances once each; 1 and 3 see one pair of equals, 2 sees two.
    assert vlo_lower_bound(torch.arange(5)[None]) == pytest.approx((2 + 2 + 4) * 0.6931471805599453 / 20)
    assert vlo_lower_bound(torch.tensor([[0, 1, 3, 7, 15]])) == 0
    assert vlo_lower_bound(torch.zeros(1, 4)) == pytest.approx(torch.tensor(3.0).log().item())


def test_even_in_the_similarity_and_directed_is_not() -> None:
    frames, text = videos()
    torch.testing.assert_close(vlo_loss(frames, -text, TIMES), vlo_loss(frames, text, TIMES))
    assert not torch.allclose(directed_vlo_loss(frames, -text, TIMES), directed_vlo_loss(frames, text, TIMES))


def test_direction() -> None:
    times = torch.tensor([[0, 2, 3, 7, 9]])
    frames, text = steady(times)
    torch.testing.assert_close(directed_vlo_loss(frames, text, times), vlo_loss(frames, text, times))
    falling, text = steady(times, falling=True)
    torch.testing.assert_close(vlo_loss(falling, text, times), vlo_loss(frames, text, times))
    assert directed_vlo_loss(falling, text, times) > directed_vlo_loss(frames, text, times) + 10
    # To run time backwards is to let similarity fall.
    torch.testing.assert_close(directed_vlo_loss(frames, text, -times), directed_vlo_loss(falling, text, times))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 999))
def test_directed_is_never_less_on_monotone_similarity(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    times = torch.randperm(30, generator=generator)[:6].sort().values[None]
    rising = torch.rand(1, 6, dtype=torch.float64, generator=generator).sort(1).values
    near = neighbours(times)
    up, down = (losses(s, near, directed=True) for s in (rising, -rising))
    torch.testing.assert_close(up, losses(rising, near))
    assert down > up


@pytest.mark.parametrize("directed", [True, False])
def test_only_the_directed_loss_turns_a_similarity_that_runs_backwards(directed: bool) -> None:
    near = neighbours(torch.arange(8)[None])
    similarity = torch.linspace(0.05, -0.05, 8, dtype=torch.float64)[None].requires_grad_()
    optimizer = torch.optim.SGD([similarity], lr=0.02)
    for _ in range(60):
        optimizer.zero_grad()
        torch.autograd.backward(losses(similarity, near, directed=directed).mean())
        optimizer.step()
    assert bool((similarity.diff() > 0).all() if directed else (similarity.diff() < 0).all())


def test_directed_loss_has_a_gradient_where_all_frames_look_alike() -> None:
    near = neighbours(torch.arange(4)[None])
    for directed in (True, False):
        s = torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(losses(s, near, directed=directed).mean(), s)
        assert bool((gradient[0].diff() < 0).all()) == directed  # descent raises later frames over earlier ones


@pytest.mark.parametrize("loss", LOSSES)
def test_padding_is_cropping(loss: Loss) -> None:
    frames, text = videos(B=2)
    valid = torch.tensor([[True] * 4 + [False] * 2] * 2)
    padded = loss(frames, text, TIMES[:2], valid=valid)
    torch.testing.assert_close(padded, loss(frames[:, :4], text, TIMES[:2, :4]))
    (gradient,) = torch.autograd.grad(padded, frames)
    assert (gradient[:, 4:] == 0).all()


@pytest.mark.parametrize("loss", LOSSES)
def test_videos_and_frames_in_any_order(loss: Loss) -> None:
    frames, text = videos()
    value = loss(frames, text, TIMES, valid=VALID)
    rows, columns = torch.tensor([2, 0, 3, 1]), torch.tensor([4, 1, 5, 0, 2, 3])
    shuffled = [x[rows] for x in (frames, text, TIMES, VALID)]
    torch.testing.assert_close(loss(*shuffled[:3], valid=shuffled[3]), value)
    torch.testing.assert_close(loss(frames[:, columns], text, TIMES[:, columns], valid=VALID[:, columns]), value)


@pytest.mark.parametrize("loss", LOSSES)
def test_only_angles_and_differences_of_time_matter(loss: Loss) -> None:
    frames, text = videos()
    value = loss(frames, text, TIMES)
    lengths = torch.rand(4, 6, 1, dtype=torch.float64) + 0.5
    torch.testing.assert_close(loss(frames * lengths, 3 * text, TIMES), value)
    torch.testing.assert_close(loss(frames, text, TIMES * 7 + 1000), value)
    torch.testing.assert_close(loss(frames, text, TIMES / 4), value)  # seconds serve as well as frame numbers


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("valid", [None, torch.zeros(1, 6, dtype=torch.bool)])
def test_identical_frames_and_empty_videos(loss: Loss, valid: Tensor | None) -> None:
    _, text = videos(B=1)
    frames = torch.ones(1, 6, 5, dtype=torch.float64, requires_grad=True)
    value = loss(frames, text, TIMES[:1], valid=valid)
    assert value.isfinite()
    assert valid is None or value == 0
    assert all(g.isfinite().all() for g in torch.autograd.grad(value, (frames, text)))


def test_zero_embedding() -> None:
    frames = torch.zeros(1, 3, 4, requires_grad=True)
    text = torch.zeros(1, 4, requires_grad=True)
    similarity = frame_similarity(frames, text)
    assert (similarity == 0).all()
    assert all((g == 0).all() for g in torch.autograd.grad(similarity.sum(), (frames, text)))


def test_frames_without_gradient() -> None:
    frames, text = videos()
    expected = torch.autograd.grad(vlo_loss(frames, text, TIMES), text)
    torch.testing.assert_close(torch.autograd.grad(vlo_loss(frames.detach(), text, TIMES), text), expected)
    assert not vlo_loss(frames.detach(), text.detach(), TIMES).requires_grad


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations, and keeps the size of the largest tensor any of them makes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations, self.largest = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        self.operations += 1
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, Tensor) and value.untyped_storage().nbytes() > value.element_size():
                self.largest = max(self.largest, value.untyped_storage().nbytes() // value.element_size())
        return result


@pytest.mark.parametrize("loss", LOSSES)
def test_no_loop_and_no_cube(loss: Loss) -> None:
    counts = []
    for B, T in ((2, 4), (3, 40)):
        frames, text = videos(B, T, D=4)
        with Recorder() as record:
            torch.autograd.backward(loss(frames, text, torch.arange(T).expand(B, T)))
        counts.append(record.operations)
        assert record.largest <= B * T * T
    assert counts[0] == counts[1]


def test_metrics_by_hand() -> None:
    near = neighbours(torch.tensor([[0, 1, 3]]))
    s = torch.tensor([[0.0, 0.1, 0.9]], dtype=torch.float64)
    # Anchor 0: 1 beats 2. Anchor 1: 0 beats 2. Anchor 2: 1 beats 0.

    def metrics(s: Tensor, near: Neighbours, *, directed: bool = False) -> dict[str, Tensor]:
        return ordering_metrics(pair_scores(s, near, temperature=0.1, directed=directed), near)

    good = metrics(s, near)
    assert good["categorical_accuracy"] == 1
    assert good["logits_pos"] == pytest.approx(-(1 + 1 + 8) / 3)
    assert good["logits_neg"] == pytest.approx(-(9 + 8 + 9) / 3)
    assert metrics(-s, near) == good
    assert metrics(-s, near, directed=True)["categorical_accuracy"] < 1
    alone = metrics(s, neighbours(torch.zeros(1, 3)))
    assert all(value == 0 for value in alone.values())


@pytest.mark.parametrize("loss", LOSSES)
def test_half_precision_and_autocast(loss: Loss) -> None:
    frames, text = (x.detach().float() for x in videos())
    expected = loss(frames, text, TIMES)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(loss(frames, text, TIMES), expected)
    assert loss(frames.half(), text.half(), TIMES).dtype == torch.float32


def test_wrong_shapes_are_refused() -> None:
    frames, text = videos()
    with pytest.raises(BadInputError, match="times, valid"):
        vlo_loss(frames, text, TIMES[..., None])
    with pytest.raises(BadInputError, match="times, valid"):
        vlo_lower_bound(TIMES, valid=VALID[:, :3])
    with pytest.raises(BadInputError, match="frames, text"):
        vlo_loss(frames, text[:2], TIMES)
