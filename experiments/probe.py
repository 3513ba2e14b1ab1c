"""Inputs that a run never trained on, embedded by its network (chapter 15).

A chapter must run without images on disk, so what a recorded network makes of other inputs is
recorded too: `python -m experiments probe NAME` adds probes.safetensors to the run's record and
touches nothing else. The inputs are drawn from one seed, the same for every network of a data set.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, interpolate, max_pool2d, pad

from experiments.record import FILE_OF_PROBES, Embeddings, held_out_sets, in_half, load, versions
from experiments.runs import Run
from experiments.train import load_data
from spe.data import ImageSet, occlude
from spe.evaluation import embed_images
from spe.training import write_atomically

PROBE_SEED = 3
N_PROBES = 1000  # inputs of each kind
N_PICTURES = 8  # of them are kept as pictures, to show
TEST = {"ndigit2": "seen", "ndigit3": "seen", "omniglot": "test"}  # the set that is changed
SUPPORT = {"ndigit2": 50, "ndigit3": 50, "omniglot": 5}  # first items of a class, left alone
TILE, BOX = 28, 20  # pixels: a tile, and the box that MNIST fits its digits into


class Kind(NamedTuple):
    """One kind of probe: what it is, images uint8 (n, 1, H, W), and facts about each image."""

    text: str
    images: Tensor
    facts: dict[str, Tensor]


def make_probes(run: Run, test: ImageSet, letters: ImageSet, digits: ImageSet) -> dict[str, Kind]:
    """All kinds of probes for a run: what its network may meet, and never trained on.

    `test` is the run's own test set; `letters` are Omniglot characters, for a network of
    characters those that it trained on; `digits` are MNIST's, of which the tiles count. Images
    of `test` that are changed come in one order in all kinds; none is among the first of its
    class, which serve as support.
    """
    generator = torch.Generator().manual_seed(PROBE_SEED)
    classes, items = _draw_items(test, SUPPORT[run.data], generator)
    clean = test.take(classes, items)[0]
    where = {"classes": classes.short(), "items": items.short()}
    kinds = {"clean": Kind("test images as they are", clean, where)}
    noise = torch.randint(256, clean.shape, generator=generator, dtype=torch.uint8)
    kinds["noise"] = Kind("every pixel uniform from 0 to 255", noise, {})
    if run.data == "omniglot":
        drawn = torch.randperm(len(digits.tiles), generator=generator)[: len(clean)]
        text = "MNIST's test digits as they are: white on black, 28 pixels, thicker strokes"
        kinds["digits"] = Kind(text, digits.tiles[drawn], {})
        kinds["rotated"] = Kind("the same test images, turned by 45 degrees", turn(clean, 45), {})
        pairs = _draw_items(letters, 0, generator)
        kinds["train"] = Kind("drawings of training characters", letters.take(*pairs)[0], {})
        return kinds
    tiles = torch.stack(clean.split(TILE, -1), 1)  # (n, n_tiles, 1, 28, 28)
    drawn = torch.randint(len(letters.tiles), tiles.shape[:2], generator=generator)
    characters = as_digits(letters.tiles[drawn.flatten()]).view_as(tiles)
    text = "Omniglot's characters in MNIST's format: white on black, thickened, in a 20-pixel box"
    kinds["letters"] = Kind(text, _side_by_side(characters), {})
    text = "the same test images, each digit turned by 90 degrees"
    kinds["rotated"] = Kind(text, _side_by_side(tiles.rot90(1, (-2, -1))), {})
    seed = int(torch.randint(2**31, (), generator=generator))
    for place in range(tiles.shape[1]):
        # The same rectangles, whichever digit they hide.
        covered, mask = occlude(tiles[:, place], 1.0, generator.manual_seed(seed))
        ink = tiles[:, place, 0].double()
        changed = tiles.clone()
        changed[:, place] = covered
        facts = {
            "area": mask.double().mean((-2, -1)),
            "ink": (ink * mask).sum((-2, -1)) / ink.sum((-2, -1)).clamp_min(1),
        }
        text = f"the same test images, a rectangle in digit {place + 1} and in no other"
        kinds[f"hidden{place + 1}"] = Kind(text, _side_by_side(changed), facts)
    return kinds


def _draw_items(data: ImageSet, first: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Classes and items of random images of a set, none twice, none of an item before `first`."""
    classes, items = data.every_item()
    later = (items >= first).nonzero().squeeze(1)
    chosen = later[torch.randperm(len(later), generator=generator)[:N_PROBES]]
    return classes[chosen], items[chosen]


def _side_by_side(tiles: Tensor) -> Tensor:
    """Tiles (n, n_tiles, 1, H, W) as images (n, 1, H, n_tiles·W)."""
    return torch.cat(tiles.unbind(1), -1)


def turn(images: Tensor, degrees: float) -> Tensor:
    """Images (n, 1, H, W) turned counter-clockwise about their middle; black comes in."""
    angle = torch.deg2rad(torch.tensor(float(degrees)))
    matrix = torch.tensor([[angle.cos(), -angle.sin(), 0.0], [angle.sin(), angle.cos(), 0.0]])
    grid = affine_grid(matrix.expand(len(images), 2, 3), list(images.shape), align_corners=False)
    return grid_sample(images.float(), grid, align_corners=False).round().to(torch.uint8)


def as_digits(characters: Tensor) -> Tensor:
    """Drawings uint8 (n, 1, 28, 28), white on black, in the format of MNIST's digits.

    Pen strokes are thickened by one pixel; then, as for MNIST, the ink's box is scaled to a
    longest side of 20 pixels and its centre of mass put in the middle of the tile.
    """
    thick = max_pool2d(pad(characters.float(), (0, 1, 0, 1)), 2, stride=1)
    return torch.stack([_in_box(one[0]) for one in thick])[:, None]


def _in_box(picture: Tensor) -> Tensor:
    rows, columns = (picture.amax(dim).nonzero().squeeze(1) for dim in (1, 0))
    ink = picture[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    size = [max(1, round(BOX * side / max(ink.shape))) for side in ink.shape]
    ink = interpolate(ink[None, None], size, mode="bilinear", antialias=True)[0, 0]
    ink *= 255 / ink.max()
    corner = []
    for dim, side in ((1, size[0]), (0, size[1])):
        middle = (ink.sum(dim) * torch.arange(side)).sum() / ink.sum()
        corner.append(min(max(round((TILE - 1) / 2 - middle.item()), 0), TILE - side))
    top, left = corner
    tile = torch.zeros(TILE, TILE, dtype=torch.uint8)
    tile[top : top + size[0], left : left + size[1]] = ink.round().to(torch.uint8)
    return tile


def write_probes(name: str) -> Path:
    """Embed all kinds of probes with a recorded network; adds probes.safetensors to its record.

    Means are kept in half precision, variances as logarithms, as the test embeddings are.
    """
    from safetensors.torch import save

    found = load(name)
    run = found.run
    if run.data not in TEST:
        raise ValueError(f"{name}: there are no probes for {run.data}, only for {', '.join(TEST)}")
    if not run.keeps_weights:
        raise ValueError(f"{name} keeps no weights; probes need them")
    characters = load_data("omniglot", run.split if run.data == "omniglot" else 0, "cpu")
    digits = load_data("ndigit2" if run.data == "omniglot" else run.data, 0, "cpu")
    kinds = make_probes(
        run,
        held_out_sets(run, "cpu")[TEST[run.data]],
        characters["train" if run.data == "omniglot" else "test"],
        digits["seen"],
    )
    model = found.model()
    stored: Embeddings = {}
    for kind, probe in kinds.items():
        embedded = embed_images(model, probe.images)
        stored |= in_half(kind, embedded)
        facts = {k: v.half() if v.is_floating_point() else v for k, v in probe.facts.items()}
        stored |= {f"{kind}.{fact}": value for fact, value in facts.items()}
        stored[f"{kind}.pictures"] = probe.images[:N_PICTURES, 0].clone()
    about = {
        "kinds": {kind: probe.text for kind, probe in kinds.items()},
        "seed": PROBE_SEED,
        "test": TEST[run.data],
        "support": SUPPORT[run.data],
        "versions": versions(),
    }
    path = found.folder / FILE_OF_PROBES
    write_atomically(path, save(stored, metadata={"probes": json.dumps(about)}))
    return path
