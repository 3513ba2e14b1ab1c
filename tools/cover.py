"""Draw the picture of the method that the intro and the README show: `python -m tools.cover`.

Everything in it is computed by the package: prototypes, the probabilities behind the shading, and
those of the query.
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch
from matplotlib import colors

import spe
from spe import plots
from tools.notebooks import ROOT

TINTS = (plots.BLUE, plots.ORANGE, plots.GREEN)
# Three support examples of each class; the third blue one is a poor picture, far off and unsure.
MEANS = torch.tensor(
    [
        *([-3.2, 1.0], [-2.2, 1.9], [-0.2, 3.2]),
        *([2.3, 1.5], [3.4, 1.0], [2.7, 2.4]),
        *([-0.9, -2.2], [0.5, -1.5], [1.0, -2.6]),
    ]
)
VARS = torch.tensor(
    [
        *([0.09, 0.16], [0.20, 0.12], [1.60, 0.60]),
        *([0.16, 0.09], [0.12, 0.25], [0.30, 0.20]),
        *([0.20, 0.12], [0.30, 0.16], [0.12, 0.12]),
    ]
)
LABELS = torch.arange(3).repeat_interleave(3)
NOISE = torch.tensor(0.35)
QUERY = spe.Gaussian(torch.tensor([[0.35, 0.9]]), torch.tensor([[1.3, 0.25]]))


def main() -> None:
    plots.use()
    prototypes = spe.prototypes(spe.Gaussian(MEANS, VARS), LABELS, NOISE)
    x, y = torch.meshgrid(torch.linspace(-5, 5, 400), torch.linspace(-4, 4.4, 336), indexing="xy")
    places = torch.stack([x, y], dim=-1).reshape(-1, 2)
    known = spe.Gaussian(places, torch.zeros_like(places))
    chances = spe.log_posterior(known, prototypes, NOISE).exp().reshape(*x.shape, 3)
    tints = torch.tensor([colors.to_rgb(tint) for tint in TINTS])
    card = torch.tensor(colors.to_rgb(plots.CARD))
    shade = 0.84 * card + 0.16 * chances @ tints

    fig, (ax, bars) = plt.subplots(1, 2, figsize=(8, 3.9), width_ratios=[3.4, 1])
    ax.imshow(shade.numpy(), extent=(-5, 5, -4, 4.4), origin="lower", interpolation="bilinear")
    plots.ellipses(ax, MEANS, VARS, color=[TINTS[i] for i in LABELS], fill=0.18, linewidth=1.1)
    hats = prototypes.widen(NOISE)
    plots.ellipses(
        ax, hats.mean, hats.var, color=list(TINTS), fill=0, linestyle=(0, (2, 2)), linewidth=1.4
    )
    for centre, tint in zip(prototypes.mean, TINTS, strict=True):
        ax.plot(*centre, marker="P", markersize=10, color=tint, markeredgecolor="white")
    plots.ellipses(ax, QUERY.mean, QUERY.var, color=plots.INK, fill=0.10, linewidth=1.6)
    ax.text(*QUERY.mean[0], "?", ha="center", va="center", fontsize=13, fontweight="bold")
    ax.annotate(
        "unsure example,\nlittle weight",
        (-0.9, 3.55),
        (-4.7, 3.25),
        fontsize=9,
        arrowprops={"arrowstyle": "-", "color": plots.INK, "linewidth": 0.8},
    )
    ax.set(xlim=(-5, 5), ylim=(-4, 4.4), xticks=[], yticks=[], title="a query among three classes")

    query = spe.log_posterior(QUERY, prototypes, NOISE, n_samples=1024).exp()[0]
    bars.barh(range(3), query, color=TINTS, height=0.55)
    for row, chance in enumerate(query):
        bars.text(chance + 0.03, row, f"{chance:.0%}", va="center")
    bars.set(xlim=(0, 1), xticks=[], yticks=[], title="p(class | query)")
    bars.spines[["bottom"]].set_visible(False)
    fig.savefig(ROOT / "_static" / "method.png", dpi=180, metadata={"Software": None})


if __name__ == "__main__":
    main()
