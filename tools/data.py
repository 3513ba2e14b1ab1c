"""Can the data sets that a notebook needs be had on this machine?"""

from __future__ import annotations

from functools import cache

#: The names that a notebook may use in its metadata.
NAMES = ("mnist", "omniglot")


@cache
def problem(name: str) -> str | None:
    """Why a data set cannot be had here, or None when it can. Fetches it if need be."""
    import spe.data

    loaders = {"mnist": lambda: spe.data.ndigit(2), "omniglot": spe.data.omniglot}
    try:
        loaders[name]()
    except OSError as error:
        return f"data set {name!r} cannot be had here: {' '.join(str(error).split())}"
    return None


def missing(names: list[str]) -> str | None:
    """The first reason why one of these data sets cannot be had, or None."""
    return next((reason for name in names if (reason := problem(name))), None)
