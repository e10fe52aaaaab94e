from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from counterpoint.errors import BadInputError
from counterpoint.objectives.base import check_clips, contrast_metrics, in_full_precision, symmetric_infonce, unit


def logits(B: int = 6, seed: int = 0) -> torch.Tensor:
    return torch.randn(B, B, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 5


def test_symmetric_is_mean_of_both_cross_entropies() -> None:
    F, diagonal = logits(), torch.arange(6)
    expected = (functional.cross_entropy(F, diagonal) + functional.cross_entropy(F.T, diagonal)) / 2
    torch.testing.assert_close(symmetric_infonce(F), expected)


def test_distinct_labels_change_nothing() -> None:
    F = logits().requires_grad_()
    (plain,) = torch.autograd.grad(symmetric_infonce(F), F)
    labelled = symmetric_infonce(F, labels=torch.tensor([7, 3, 9, 1, 0, 2]))
    torch.testing.assert_close(labelled, symmetric_infonce(F))
    torch.testing.assert_close(torch.autograd.grad(labelled, F)[0], plain)


def test_equal_labels_are_not_negatives() -> None:
    F = logits().requires_grad_()
    labels = torch.tensor([0, 0, 1, 2, 2, 2])
    (gradient,) = torch.autograd.grad(symmetric_infonce(F, labels=labels), F)
    same = labels[:, None] == labels
    assert (gradient[same] < 0).all()
    assert (gradient[~same] > 0).all()


def test_labels_gradient() -> None:
    F = logits(5).requires_grad_()
    labels = torch.tensor([0, 1, 1, 0, 3])
    assert torch.autograd.gradcheck(lambda F: symmetric_infonce(F, labels=labels), (F,))


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_one_label_for_all_leaves_nothing_to_contrast(scale: float) -> None:
    F = (scale * logits()).requires_grad_()
    loss = symmetric_infonce(F, labels=torch.zeros(6, dtype=torch.long))
    assert loss == 0
    assert (torch.autograd.grad(loss, F)[0] == 0).all()


def test_batch_of_one() -> None:
    F = torch.tensor([[3.0]], requires_grad=True)
    for labels in (None, torch.tensor([4])):
        loss = symmetric_infonce(F, labels=labels)
        assert loss == 0
        assert torch.autograd.grad(loss, F)[0] == 0
    assert contrast_metrics(F) == {"categorical_accuracy": 1, "logits_pos": 3, "logits_neg": 0}


def test_metrics_by_hand() -> None:
    F = torch.tensor([[2.0, 5.0, 0.0], [1.0, 4.0, 3.0], [0.0, 9.0, 1.0]])
    plain = contrast_metrics(F)
    assert plain["categorical_accuracy"] == pytest.approx(1 / 3)
    assert plain["logits_pos"] == pytest.approx(7 / 3)
    assert plain["logits_neg"] == pytest.approx(18 / 6)
    labelled = contrast_metrics(F, labels=torch.tensor([5, 5, 8]))
    assert labelled["categorical_accuracy"] == pytest.approx(2 / 3)
    assert labelled["logits_pos"] == pytest.approx(13 / 5)
    assert labelled["logits_neg"] == pytest.approx(12 / 4)


def test_metrics_are_detached() -> None:
    assert not any(value.requires_grad for value in contrast_metrics(logits().requires_grad_()).values())


def test_unit() -> None:
    raw = torch.tensor([[3.0, 4.0], [0.0, 0.0]], requires_grad=True)
    directions = unit(raw)
    torch.testing.assert_close(directions, torch.tensor([[0.6, 0.8], [0.0, 0.0]]))
    torch.autograd.backward(directions.sum())
    assert raw.grad is not None
    assert raw.grad.isfinite().all()


def test_full_precision_inside_autocast() -> None:
    @in_full_precision
    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b.T

    a = torch.randn(4, 8)
    exact = a @ a.T
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (a @ a.T).dtype == torch.bfloat16
        assert torch.equal(product(a, b=a), exact)
    assert product(a.half(), a.half()).dtype == torch.float32
    assert product(a.double(), a.double()).dtype == torch.float64


@pytest.mark.parametrize(
    ("frames", "text"), [((3, 4), (3, 4)), ((3, 1, 4), (3, 4)), ((3, 2, 4), (2, 4)), ((3, 2, 4), (3, 5))]
)
def test_shapes_that_do_not_pair_up(frames: tuple[int, ...], text: tuple[int, ...]) -> None:
    with pytest.raises(BadInputError, match="frames, text: found shapes"):
        check_clips(torch.zeros(frames), torch.zeros(text), least=2)


def test_further_columns_are_negatives_of_every_row() -> None:
    """Against a plain loop: each row's softmax has the further columns too, a column's softmax has not."""
    generator = torch.Generator().manual_seed(0)
    F = torch.randn(5, 5, generator=generator, dtype=torch.float64)
    extra = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 1, 0, 2, 2])
    total = 0.0
    for i in range(5):
        positives = [j for j in range(5) if labels[j] == labels[i]]
        negatives = [j for j in range(5) if labels[j] != labels[i]]
        for j in positives:
            row = F[i, j].exp() + F[i, negatives].exp().sum() + extra[i].exp().sum()
            column = F[j, i].exp() + F[negatives, i].exp().sum()
            total += float((row.log() - F[i, j] + column.log() - F[j, i]) / len(positives))
    found = symmetric_infonce(F, labels=labels, extra=extra)
    torch.testing.assert_close(float(found), total / 10)
    one = torch.zeros(5, dtype=torch.long)
    assert symmetric_infonce(F, labels=one) == 0
    assert symmetric_infonce(F, labels=one, extra=extra) > 0
    everything = symmetric_infonce(F, extra=extra)
    torch.testing.assert_close(everything, symmetric_infonce(F, labels=torch.arange(5), extra=extra))
