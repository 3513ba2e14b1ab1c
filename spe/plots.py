"""One style for all figures of the book, and what two chapters or more draw.

Figures sit on a light card of their own, so they read the same on a white and on a dark page.
Colours are those of Okabe and Ito, which people with any kind of colour vision can tell apart.
"""

from __future__ import annotations

import sys
from typing import Any

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.offsetbox import AnnotationBbox, OffsetImage
from matplotlib.patches import Ellipse

CARD = "#faf9f6"
INK = "#2b2d33"
FAINT = "#b9b8b3"
BLUE, VERMILION, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
ORANGE, SKY, GREY = "#e69f00", "#56b4e9", "#7a7a7a"
COLORS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, GREY)

#: One colour for each method, the same in every chapter.
METHOD = {"SPE": BLUE, "PN": VERMILION, "HIB": GREEN, "Contrastive": PURPLE}
#: One colour for each estimator of the class posterior.
ESTIMATOR = {"naive": VERMILION, "intersection": BLUE, "bound": GREEN, "exact": INK}

_STYLE: Any = {
    "figure.facecolor": CARD,
    "savefig.facecolor": CARD,
    "axes.facecolor": CARD,
    "figure.figsize": (6.4, 3.6),
    "figure.dpi": 100,
    "savefig.dpi": 100,
    "savefig.bbox": "tight",
    "savefig.pad_inches": 0.12,
    "figure.constrained_layout.use": True,
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "mathtext.fontset": "dejavusans",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.linewidth": 0.8,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.5,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "patch.linewidth": 1.0,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "image.cmap": "cividis",
    "axes.prop_cycle": cycler(color=COLORS),
}


def use() -> None:
    """Turn the book's style on, for this kernel. Every chapter calls it once, at the top."""
    mpl.rcParams.update(_STYLE)
    # In a notebook: twice the pixels at the same size, so that pictures stay sharp when enlarged.
    ipython = sys.modules.get("IPython")
    if ipython is not None and ipython.get_ipython() is not None:
        from matplotlib_inline.backend_inline import set_matplotlib_formats

        set_matplotlib_formats("retina")


def ellipses(
    ax: Axes,
    mean: Any,
    var: Any,
    *,
    n_std: float = 1.0,
    color: Any = BLUE,
    fill: float = 0.12,
    **kwargs: Any,
) -> list[Ellipse]:
    """Draw 2D diagonal Gaussians as ovals at `n_std` standard deviations.

    `mean` and `var` are arrays or tensors of shape (..., 2); `color` is one colour or one for each
    Gaussian; `fill` is the opacity inside the outline. Further keywords go to the outline.
    """
    means = np.asarray(mean, dtype=float)
    variances = np.asarray(var, dtype=float)
    if means.shape != variances.shape or means.shape[-1:] != (2,):
        raise ValueError(
            f"mean and var must share one shape (..., 2); got {means.shape} and {variances.shape}"
        )
    means, widths = means.reshape(-1, 2), 2 * n_std * np.sqrt(variances.reshape(-1, 2))
    colors = [color] * len(means) if mpl.colors.is_color_like(color) else list(color)
    ovals = []
    for centre, (width, height), tint in zip(means, widths, colors, strict=True):
        oval = Ellipse(
            (centre[0], centre[1]),
            width,
            height,
            facecolor=mpl.colors.to_rgba(tint, fill),
            edgecolor=tint,
            **kwargs,
        )
        ax.add_patch(oval)
        ovals.append(oval)
    # A patch alone does not move the limits of the axes.
    corners = np.concatenate([means - widths / 2, means + widths / 2])
    ax.update_datalim(corners)
    ax.autoscale_view()
    return ovals


def thumbnails(ax: Axes, images: Any, at: Any, *, zoom: float = 0.7) -> None:
    """Put small pictures, (n, H, W) or (n, H, W, 3), with their centres at the points (n, 2)."""
    pictures, points = np.asarray(images), np.asarray(at, dtype=float)
    if len(pictures) != len(points) or points.shape[1:] != (2,):
        raise ValueError(
            f"images and at must hold one picture and one (x, y) each; "
            f"got shapes {pictures.shape} and {points.shape}"
        )
    for picture, point in zip(pictures, points, strict=True):
        image = OffsetImage(picture, zoom=zoom, cmap="gray")
        box = AnnotationBbox(
            image,
            (point[0], point[1]),
            pad=0.1,
            bboxprops={"edgecolor": FAINT, "linewidth": 0.6},
        )
        ax.add_artist(box)
    ax.update_datalim(points)
    ax.autoscale_view()
