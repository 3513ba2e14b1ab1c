"""What chapters 2 and 3 claim about prototypes."""

import math

import numpy as np
import pytest
import torch
from exact import density, grid, random_gaussians
from torch.autograd import gradcheck

from spe import Gaussian, add_support, prototypes

LABELS = torch.tensor([0, 2, 1, 0, 2, 2, 0, 0])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def close(a: Gaussian, b: Gaussian, **tolerance: float) -> None:
    torch.testing.assert_close(a.mean, b.mean, **tolerance)
    torch.testing.assert_close(a.var, b.var, **tolerance)


def test_the_prototype_is_the_normalised_product_over_the_support_set() -> None:
    """Eqs. 3 to 5: each factor is an embedding plus noise; their product, on a grid."""
    support, noise = random_gaussians(8, 2, seeded(), spread=1.0), 0.3
    classes = prototypes(support, LABELS, noise)
    z, cell = grid(torch.tensor([-7.0, -7.0]), torch.tensor([7.0, 7.0]), 400)
    for c in range(3):
        members = support[c == LABELS]
        raw = torch.ones(len(z), dtype=torch.float64)
        for i in range(len(members)):
            raw *= density(z, members.mean[i], members.var[i] + noise)
        expected = raw / (raw.sum() * cell)
        torch.testing.assert_close(classes[c].log_prob(z).exp(), expected, atol=1e-8, rtol=1e-5)


def test_the_prototype_is_the_confidence_weighted_mean() -> None:
    """Eq. 5, written out class by class."""
    support, noise = random_gaussians(8, 3, seeded()), 0.3
    out = prototypes(support, LABELS, noise)
    for c in range(3):
        precision = 1 / (support.var[c == LABELS] + noise)
        var = 1 / precision.sum(0)
        torch.testing.assert_close(out.var[c], var)
        mean = var * (precision * support.mean[c == LABELS]).sum(0)
        torch.testing.assert_close(out.mean[c], mean)


def test_one_example_is_its_own_prototype_widened_once() -> None:
    """Eq. 5 with one shot: the result is not yet widened for the comparison with a query."""
    support = random_gaussians(2, 2, seeded())
    out = prototypes(support, torch.tensor([1, 0]), 0.25)
    close(out, support.widen(0.25)[[1, 0]])


def test_a_noisy_example_cannot_drag_the_prototype() -> None:
    """Eq. 5: the deterministic mean moves by a third of the outlier's distance."""
    mean = torch.tensor([[0.0], [0.1], [9.0]])
    out = prototypes(
        Gaussian(mean, torch.tensor([[0.1], [0.1], [1e6]])), torch.zeros(3).long(), 0.1
    )
    assert abs(out.mean.item() - 0.05) < 1e-4


def test_equal_variances_give_the_plain_mean() -> None:
    """Eq. 5 reduces to a prototypical network's class mean."""
    support = Gaussian(torch.randn(8, 2, generator=seeded()), torch.full((8, 2), 0.4))
    out = prototypes(support, LABELS, 0.1)
    for c in range(3):
        torch.testing.assert_close(out.mean[c], support.mean[c == LABELS].mean(0))


def test_a_prototype_narrows_with_every_shot() -> None:
    """Eq. 5: n equal examples have 1 / n of the variance of one."""
    support = Gaussian(torch.zeros(5, 1), torch.full((5, 1), 0.4))
    out = prototypes(support, torch.zeros(5).long(), 0.1)
    assert math.isclose(out.var.item(), 0.5 / 5, rel_tol=1e-6)


def test_the_order_of_the_support_set_does_not_matter() -> None:
    """Eq. 4 is a product."""
    support = random_gaussians(8, 3, seeded())
    order = torch.randperm(8, generator=seeded(1))
    close(prototypes(support[order], LABELS[order], 0.3), prototypes(support, LABELS, 0.3))


def test_shifting_the_space_shifts_the_prototypes() -> None:
    support = random_gaussians(8, 3, seeded())
    shift = torch.tensor([10.0, -3.0, 1e3], dtype=torch.float64)
    out = prototypes(support, LABELS, 0.3)
    moved = prototypes(Gaussian(support.mean + shift, support.var), LABELS, 0.3)
    close(moved, Gaussian(out.mean + shift, out.var))


def test_renaming_the_classes_reorders_the_prototypes() -> None:
    support = random_gaussians(8, 3, seeded())
    new_name = torch.tensor([2, 0, 1])
    renamed = prototypes(support, new_name[LABELS], 0.3)
    close(renamed[new_name], prototypes(support, LABELS, 0.3))


def test_a_class_without_support_knows_nothing() -> None:
    out = prototypes(random_gaussians(8, 2, seeded()), LABELS, 0.3, n_classes=5)
    assert out.shape == (5, 2)
    assert (out.var[3:] > 1e307).all()
    assert out.var.isfinite().all()
    assert (out.mean[3:] == 0).all()
    close(out[:3], prototypes(random_gaussians(8, 2, seeded()), LABELS, 0.3))


def test_examples_as_vague_as_numbers_allow_give_finite_prototypes() -> None:
    """A class that knows nothing has such a variance, and may be an example in its turn."""
    largest = torch.finfo(torch.float64).max
    one = torch.ones(8, 2, dtype=torch.float64)
    vague = Gaussian(one, one * largest)
    out = prototypes(vague, LABELS, 0.3)
    torch.testing.assert_close(out.mean, torch.ones_like(out.mean))
    assert out.var.isfinite().all()


def test_a_class_without_support_leaves_the_gradient_finite() -> None:
    mean = torch.randn(8, 2, generator=seeded(), requires_grad=True)
    out = prototypes(Gaussian(mean, torch.full((8, 2), 0.4)), LABELS, 0.3, n_classes=5)
    (out.mean.sum() + out.var.log().sum()).backward()
    assert mean.grad is not None
    assert mean.grad.isfinite().all()


def test_many_unbalanced_classes_need_no_loop() -> None:
    labels = torch.cat([torch.arange(500), torch.zeros(300, dtype=torch.long)])
    support = random_gaussians(800, 2, seeded())
    out = prototypes(support, labels, 0.2)
    precision = 1 / (support.var + 0.2)
    rows = labels == 0
    expected = (precision * support.mean)[rows].sum(0) / precision[rows].sum(0)
    torch.testing.assert_close(out.mean[0], expected)
    close(out[1:], support.widen(0.2)[1:500])


def test_the_gradient_of_the_prototypes_is_right() -> None:
    """Eq. 5, the noise included."""
    support = random_gaussians(8, 2, seeded())
    noise = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)

    def both(mean: torch.Tensor, var: torch.Tensor, noise: torch.Tensor):
        out = prototypes(Gaussian(mean, var), LABELS, noise)
        return out.mean, out.var

    assert gradcheck(both, (support.mean.requires_grad_(), support.var.requires_grad_(), noise))


@pytest.mark.parametrize("seed", range(3))
def test_examples_may_come_one_by_one_in_any_order(seed: int) -> None:
    """Eq. 4: precisions add, so a stream ends where the whole set would."""
    support = random_gaussians(8, 3, seeded())
    whole = prototypes(support, LABELS, 0.3)
    order = torch.randperm(8, generator=seeded(seed))
    stream = prototypes(support[order[:1]], LABELS[order[:1]], 0.3, n_classes=3)
    for i in order[1:].split(1):
        stream = add_support(stream, support[i], LABELS[i], 0.3)
    close(stream, whole)


def test_examples_may_come_in_batches_with_repeated_classes() -> None:
    """Eq. 4."""
    support = random_gaussians(8, 3, seeded())
    stream = prototypes(support[:3], LABELS[:3], 0.3)
    close(add_support(stream, support[3:], LABELS[3:], 0.3), prototypes(support, LABELS, 0.3))


def test_adding_support_leaves_other_classes_alone_to_the_bit() -> None:
    start = prototypes(random_gaussians(8, 3, seeded()), LABELS, 0.3)
    out = add_support(start, random_gaussians(1, 3, seeded(4)), torch.tensor([1]), 0.3)
    assert torch.equal(out.mean[[0, 2]], start.mean[[0, 2]])
    assert torch.equal(out.var[[0, 2]], start.var[[0, 2]])
    assert (out.var[1] < start.var[1]).all()


def test_streaming_passes_gradients_to_old_and_new_examples() -> None:
    support = random_gaussians(4, 2, seeded())
    labels = torch.tensor([0, 1, 0, 1])
    inputs = (support.mean.requires_grad_(), support.var.requires_grad_())

    def streamed(mean: torch.Tensor, var: torch.Tensor):
        g = Gaussian(mean, var)
        out = add_support(prototypes(g[:2], labels[:2], 0.2), g[2:], labels[2:], 0.2)
        return out.mean, out.var

    assert gradcheck(streamed, inputs)


SUPPORT = Gaussian(torch.zeros(3, 2), torch.ones(3, 2))


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((SUPPORT, [0, 1, 1], 0.1), TypeError, "labels has type list"),
        ((SUPPORT, torch.zeros(3), 0.1), TypeError, "labels has type torch.float32"),
        ((SUPPORT, torch.zeros(2).long(), 0.1), ValueError, r"labels has shape \(2,\)"),
        ((SUPPORT, torch.zeros(3).long().to("meta"), 0.1), ValueError, "labels .* on meta"),
        ((SUPPORT, torch.zeros(3).long(), "0.1"), TypeError, "noise has type str"),
        ((SUPPORT, torch.zeros(3).long(), torch.ones(2)), ValueError, r"noise has shape \(2,\)"),
        ((SUPPORT, torch.zeros(3).long(), torch.ones(1, 1)), ValueError, "noise has shape"),
        ((SUPPORT[:0], torch.zeros(0).long(), 0.1), ValueError, "support has shape"),
        ((SUPPORT[0], torch.zeros(2).long(), 0.1), ValueError, "support has shape"),
        ((SUPPORT, torch.zeros(3).long(), 0.1, 0), ValueError, "n_classes=0"),
        ((SUPPORT, torch.zeros(3).long(), 0.1, 2.0), ValueError, "n_classes=2.0"),
    ],
)
def test_bad_input_is_named(arguments: tuple, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        prototypes(*arguments)


def test_support_of_another_dimension_is_refused() -> None:
    start = prototypes(SUPPORT, torch.zeros(3).long(), 0.1)
    with pytest.raises(ValueError, match=r"prototypes has shape \(1, 2\); expected \(n_class, 5\)"):
        add_support(
            start, Gaussian(torch.zeros(1, 5), torch.ones(1, 5)), torch.zeros(1).long(), 0.1
        )


def test_the_number_of_classes_may_be_numpy_s() -> None:
    labels = torch.tensor([0, 1, 1])
    n_classes = np.unique(labels.numpy()).max() + 1
    close(prototypes(SUPPORT, labels, 0.1, n_classes), prototypes(SUPPORT, labels, 0.1, 2))
