"""A class as the product of its examples, and adding one more (chapters 2 and 3)."""

import torch
from torch import Tensor

from spe.checks import check_count, check_support
from spe.gaussian import Gaussian


def class_product(factors: Gaussian, labels: Tensor, n_classes: int) -> Gaussian:
    """The product of the factors of each class, all classes at once.

    The same arithmetic as :func:`spe.product`, with sums over the rows of a class.
    A class without a row knows nothing: mean 0 and a variance as large as numbers go.
    """

    def class_sum(rows: Tensor) -> Tensor:
        return rows.new_zeros(n_classes, factors.d).index_add(0, labels, rows)

    limits = torch.finfo(factors.dtype)
    var = factors.var.clamp(limits.tiny, limits.max / 4)
    largest = torch.full_like(var[:1], limits.max / 4).expand(n_classes, -1)
    rows = labels[:, None].expand_as(var)
    smallest = largest.scatter_reduce(0, rows, var.detach(), "amin")
    weight = smallest[labels] / var
    total = class_sum(weight).clamp_min(0.5)  # at least 1 in a class with a row
    rough = (class_sum(weight * factors.mean) / total).detach()
    mean = rough + class_sum(weight * (factors.mean - rough[labels])) / total
    return Gaussian(mean, smallest / total)


def prototypes(
    support: Gaussian, labels: Tensor, noise: Tensor | float, n_classes: int | None = None
) -> Gaussian:
    """Class prototypes from a support set: a confidence-weighted mean (Eq. 5).

    ``support`` is (n, d) and ``labels`` (n,) with values in 0 … n_classes - 1; classes may
    have any number of examples. Returns (n_classes, d) with variance sigma^2_y, which
    still has to be widened by ``noise`` before a query is compared with it. Without
    ``n_classes`` the largest label is read from the device, which stalls a GPU once.
    """
    check_support(support, labels, noise)
    if n_classes is None:
        n_classes = int(labels.max()) + 1
    check_count("n_classes", n_classes)
    return class_product(support.widen(noise), labels, n_classes)


def add_support(
    prototypes: Gaussian, support: Gaussian, labels: Tensor, noise: Tensor | float
) -> Gaussian:
    """Prototypes after some more examples: the same as with all at once, in any order.

    Precisions add, so the old prototype is one more factor of the product (Eq. 4).
    Only the classes in ``labels`` are touched: O(d) arithmetic for each example.
    """
    check_support(support, labels, noise)
    if prototypes.mean.dim() != 2 or prototypes.d != support.d:
        raise ValueError(
            f"prototypes has shape {tuple(prototypes.shape)}; expected (n_class, {support.d})"
        )
    touched, position = labels.unique(return_inverse=True)
    old, new = prototypes[touched], support.widen(noise)
    factors = Gaussian(torch.cat([old.mean, new.mean]), torch.cat([old.var, new.var]))
    rows = torch.cat([torch.arange(len(touched), device=labels.device), position])
    updated = class_product(factors, rows, len(touched))
    return Gaussian(
        prototypes.mean.index_copy(0, touched, updated.mean),
        prototypes.var.index_copy(0, touched, updated.var),
    )
