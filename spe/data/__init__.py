"""The paper's data sets, as tensors to index (chapters 7, 8 and 10)."""

from spe.data.digits import ndigit
from spe.data.imageset import ImageSet
from spe.data.lshapes import lshape_set
from spe.data.occlusion import occlude
from spe.data.omniglot import omniglot

__all__ = ["ImageSet", "lshape_set", "ndigit", "occlude", "omniglot"]
