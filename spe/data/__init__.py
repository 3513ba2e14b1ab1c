"""The paper's data sets, and your own, as tensors to index (chapters 7, 8, 10 and 18).

`python -m spe.data` shows what is there, fetches and verifies.
"""

from spe.data.characters import omniglot
from spe.data.digits import ndigit
from spe.data.fetch import DataNotFoundError
from spe.data.folder import image_folder, read_pictures
from spe.data.imageset import ImageSet
from spe.data.lshapes import lshape_set
from spe.data.occlusion import occlude

__all__ = [
    "DataNotFoundError",
    "ImageSet",
    "image_folder",
    "lshape_set",
    "ndigit",
    "occlude",
    "omniglot",
    "read_pictures",
]
