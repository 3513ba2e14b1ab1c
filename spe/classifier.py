"""Few-shot classification of your own images, in scikit-learn's habits (chapter 18).

>>> classifier = FewShotClassifier(model).fit(support_images, names)  # doctest: +SKIP
>>> classifier.predict(images)  # doctest: +SKIP

Values are checked here, since this is where they enter: the core looks at shapes alone.
"""

from __future__ import annotations

import json
import math
import numbers
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from torch import Tensor, nn

from spe import encoders, models
from spe.checks import check_count
from spe.evaluation import embed_images
from spe.gaussian import Gaussian, log_normal
from spe.posterior import log_posterior
from spe.prototypes import add_support, class_product
from spe.training import write_atomically

FORMAT = "spe few-shot classifier 1"
OPTIONS = ("estimator", "n_samples", "points", "beta", "margin")  # of a model, for training on
POINT_NOISE = 0.5  # a squared distance is a Gaussian of this variance (chapter 3)
NAMES = {"U": "none of these"}  # the reject label, by kind of class label; -1 for numbers


class Description(NamedTuple):
    """What is known about each of n queries.

    probabilities: (n, n_class), columns as in ``classes_``; they sum to 1 even for a query
        that belongs to none of the classes.
    variance: (n, d), how unsure the network is of the embedding, in each dimension.
    evidence: (n,), log of the mean over classes of N(mean_x; mean_c, var_x + var_c + noise):
        how likely this embedding is at all. Low means "none of these".
    """

    probabilities: NDArray[np.floating]
    variance: NDArray[np.floating]
    evidence: NDArray[np.floating]


class FewShotClassifier(ClassifierMixin, BaseEstimator):
    """Learn classes from a few images each, at any time, without training.

    model: a trained network with ``embed(images) -> Gaussian``, such as those of ``spe``.
    noise: sigma^2_epsilon; None takes the model's own, or 1/2 (plain squared distances)
        where the model has none.
    reject: ``predict`` answers ``reject_label`` where the evidence is below this number
        (see :class:`Description`); None never rejects.
    reject_label: None stands for -1, or "none of these" where classes have names.
    n_samples: points of the integral of Eq. 7; batch_size: images embedded at once.

    A change of ``noise`` acts at the next ``fit``, of the others at once. After a change of
    ``model``, fit anew: the prototypes are still those of the old network.

    X is images (n, channels, height, width), or (n, height, width) for one channel: an array
    or a tensor, uint8, or floating point on the scale that the network was trained with
    (those of ``spe`` take 0 to 1).
    """

    classes_: NDArray[Any]
    counts_: NDArray[np.integer]  # images of each class
    prototypes_: Gaussian
    noise_: float

    def __init__(
        self,
        model: nn.Module,
        noise: float | None = None,
        reject: float | None = None,
        reject_label: Any = None,
        n_samples: int = 64,
        batch_size: int = 256,
    ) -> None:
        self.model = model
        self.noise = noise
        self.reject = reject
        self.reject_label = reject_label
        self.n_samples = n_samples
        self.batch_size = batch_size

    def fit(self, X: ArrayLike | Tensor, y: ArrayLike | Tensor) -> FewShotClassifier:
        """Form the prototypes of the classes in ``y`` from their images; forget all others."""
        return self._learn(X, y, None, afresh=True)

    def partial_fit(
        self, X: ArrayLike | Tensor, y: ArrayLike | Tensor, classes: ArrayLike | None = None
    ) -> FewShotClassifier:
        """Add images, of old classes or new ones: the same as all at once, in any order.

        ``classes`` may announce classes whose images come later, as elsewhere in scikit-learn.
        """
        return self._learn(X, y, classes, afresh=not self.__sklearn_is_fitted__())

    def _learn(
        self, X: ArrayLike | Tensor, y: ArrayLike | Tensor, classes: ArrayLike | None, afresh: bool
    ) -> FewShotClassifier:
        """Add images to what is known or, ``afresh``, to nothing; a call that fails adds none."""
        noise = self._noise() if afresh else self.noise_
        images, labels = _images(X), _labels("y", y)
        if len(labels) != len(images):
            raise ValueError(f"y has {len(labels)} labels; expected {len(images)}, one an image")
        support = self._embed(images)
        announced = labels if classes is None else _labels("classes", classes)
        before = labels[:0] if afresh else self.classes_
        like = labels if afresh else before
        for name, some in (("y", labels), ("classes", announced)):
            if (like.dtype.kind == "U") != (some.dtype.kind == "U"):
                raise TypeError(f"{name} has {some.dtype} labels; expected some like {like[:3]}")
        after = np.union1d(np.union1d(before, labels), announced)
        for some in (before, labels, announced):
            if (some.astype(after.dtype).astype(some.dtype) != some).any():
                raise TypeError(
                    f"labels of {some.dtype} are not told apart as {after.dtype}; "
                    "expected labels of one type"
                )
        rows = torch.from_numpy(np.searchsorted(after, labels)).to(support.device)
        counts = np.bincount(rows.cpu().numpy(), minlength=len(after))
        if len(before):
            old = np.searchsorted(after, before)
            counts[old] += self.counts_
            grown = class_product(
                self.prototypes_, torch.from_numpy(old).to(support.device), len(after)
            )
            self.prototypes_ = add_support(grown, support, rows, noise)
        else:
            self.prototypes_ = class_product(support.widen(noise), rows, len(after))
        self.classes_, self.counts_, self.noise_ = after, counts, noise
        return self

    def describe(self, X: ArrayLike | Tensor) -> Description:
        """Probabilities, embedding variance and evidence of each image."""
        query, log_p, evidence = self._query(X)
        return Description(*map(_numpy, (log_p.exp(), query.var, evidence)))

    def predict_log_proba(self, X: ArrayLike | Tensor) -> NDArray[np.floating]:
        """Log-probabilities (n, n_class), columns as in ``classes_``."""
        return _numpy(self._query(X)[1])

    def predict_proba(self, X: ArrayLike | Tensor) -> NDArray[np.floating]:
        """Probabilities (n, n_class), columns as in ``classes_``."""
        return self.describe(X).probabilities

    def predict(self, X: ArrayLike | Tensor) -> NDArray[Any]:
        """The likeliest class of each image, or ``reject_label``."""
        _, log_p, evidence = self._query(X)
        answer = self.classes_[log_p.argmax(1).cpu().numpy()]
        if self.reject is None:
            return answer
        if not isinstance(self.reject, numbers.Real) or math.isnan(self.reject):
            raise ValueError(f"reject={self.reject!r}; expected a number or None")
        label = self.reject_label
        if label is None:
            label = NAMES.get(self.classes_.dtype.kind, -1)
        if label in self.classes_.tolist():
            raise ValueError(f"reject_label={label!r} is one of the classes; expected another")
        if isinstance(label, str) != (self.classes_.dtype.kind == "U"):
            raise TypeError(f"reject_label={label!r}; expected a label like {self.classes_[:3]}")
        # As an array the label keeps its type: a bare -1 would become 255 among bytes.
        return np.where((evidence >= self.reject).cpu().numpy(), answer, np.asarray(label))

    def process_support_set(self, images: Tensor, labels: Tensor) -> None:
        """The same as :meth:`fit`; then call the classifier with query images, as in easyfsl."""
        self.fit(images, labels)

    def __call__(self, images: Tensor) -> Tensor:
        """Log-probabilities (n, n_class) as a tensor."""
        return self._query(images)[1]

    def save(self, path: str | Path) -> None:
        """Write prototypes, classes and the network's weights to one safetensors file."""
        from safetensors.torch import save

        self._check_fitted()
        tensors = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        tensors |= {
            "prototypes.mean": self.prototypes_.mean,
            "prototypes.var": self.prototypes_.var,
        }
        tensors = {k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}
        settings = self.get_params(deep=False)
        del settings["model"]
        ours = isinstance(self.model, _MODELS)
        plain = {k: v.item() for k, v in settings.items() if isinstance(v, np.generic | Tensor)}
        about = {
            "format": FORMAT,
            "model": type(self.model).__name__,
            "encoder": type(getattr(self.model, "encoder", None)).__name__,
            "classes": self.classes_.tolist(),
            "dtype": self.classes_.dtype.str,
            "counts": self.counts_.tolist(),
            "noise": self.noise_,
            "settings": settings | plain,
            "options": {k: v for k, v in vars(self.model).items() if k in OPTIONS and ours},
        }
        write_atomically(Path(path), save(tensors, metadata={"spe": json.dumps(about)}))

    @classmethod
    def load(cls, path: str | Path, model: nn.Module | None = None) -> FewShotClassifier:
        """Read what :meth:`save` wrote.

        A network of your own has to be given as ``model``; its weights become those of the file.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, "pt") as file:
                about = json.loads((file.metadata() or {}).get("spe", "{}"))
                tensors = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
        except (SafetensorError, json.JSONDecodeError) as error:
            raise ValueError(f"{path} is no safetensors file of this class: {error}") from error
        if about.get("format") != FORMAT:
            raise ValueError(f"{path} has format {about.get('format')!r}; expected {FORMAT!r}")
        weights = {k[6:]: v for k, v in tensors.items() if k.startswith("model.")}
        if model is None:
            model = _rebuild(about, weights).to(tensors["prototypes.mean"].dtype)
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            raise ValueError(f"model does not fit the weights of {path}: {error}") from error
        self = cls(model, **about["settings"])
        self.noise_ = float(about["noise"])
        self.classes_ = np.array(about["classes"], dtype=np.dtype(about["dtype"]))
        self.counts_ = np.array(about["counts"])
        device = self._device()
        self.prototypes_ = Gaussian(tensors["prototypes.mean"], tensors["prototypes.var"]).to(
            device
        )
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "prototypes_")

    def _noise(self) -> float:
        given = getattr(self.model, "noise", POINT_NOISE) if self.noise is None else self.noise
        noise = float(given.item() if isinstance(given, Tensor) else given)
        if not 0 < noise < math.inf:
            raise ValueError(f"noise={noise}; expected a positive number")
        return noise

    def _device(self) -> torch.device:
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))

    def _check_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError("this FewShotClassifier knows no class yet; call fit first")
        if not self.counts_.all():
            missing = self.classes_[self.counts_ == 0].tolist()
            raise ValueError(f"no images were given of the announced classes {missing}")

    def _embed(self, images: Tensor) -> Gaussian:
        check_count("batch_size", self.batch_size)
        g = embed_images(self.model, images, int(self.batch_size))
        bad = ~(g.mean.isfinite() & g.var.isfinite() & (g.var >= 0)).all(1)
        if bad.any():
            raise ValueError(
                f"the model embeds image {int(bad.nonzero()[0])} with a mean or variance that is "
                "not finite, or a negative variance; expected finite numbers"
            )
        return g

    @torch.no_grad()
    def _query(self, X: ArrayLike | Tensor) -> tuple[Gaussian, Tensor, Tensor]:
        self._check_fitted()
        query, classes = self._embed(_images(X)), self.prototypes_
        if isinstance(self.model, models.PointEmbedding):
            classes = Gaussian(classes.mean, torch.zeros_like(classes.var))
        check_count("n_samples", self.n_samples)
        n = int(self.n_samples) if query.var.any() else 1  # all points of a point are one
        log_p = log_posterior(query, classes, self.noise_, n)
        wide = classes.widen(self.noise_)
        evidence = [
            log_normal(q.mean[:, None] - wide.mean, q.var[:, None] + wide.var).logsumexp(-1)
            for q in (query[i : i + self.batch_size] for i in range(0, len(query), self.batch_size))
        ]
        return query, log_p, torch.cat(evidence) - math.log(len(wide))


def _images(X: ArrayLike | Tensor) -> Tensor:
    """Images (n, C, H, W) as a tensor, checked."""
    images = X if isinstance(X, Tensor) else _tensor(_array("X", X))
    if images.dim() == 3:
        images = images[:, None]
    if images.dim() != 4 or 0 in images.shape:
        raise ValueError(
            f"X has shape {tuple(images.shape)}; expected images (n, channels, height, width) "
            "or (n, height, width)"
        )
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise TypeError(f"X has type {images.dtype}; expected uint8 or floating point")
    if images.is_floating_point() and not images.isfinite().all():
        raise ValueError("X holds values that are not finite; expected finite numbers")
    return images


def _tensor(array: NDArray[Any]) -> Tensor:
    """An array as a tensor; one that is read-only, strided or in another byte order is copied."""
    native = np.require(array, array.dtype.newbyteorder("="), ["C", "W"])
    try:
        return torch.from_numpy(native)
    except TypeError as error:
        raise TypeError(f"X has type {array.dtype}; expected uint8 or floating point") from error


def _numpy(tensor: Tensor) -> NDArray[np.floating]:
    """A tensor as an array; numpy has no bfloat16."""
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy()


def _labels(name: str, y: ArrayLike | Tensor) -> NDArray[Any]:
    """Labels (n,) as an array of whole numbers, numbers or strings, checked."""
    labels = y.cpu().numpy() if isinstance(y, Tensor) else _array(name, y)
    if labels.dtype.kind == "O" and all(isinstance(label, str) for label in labels.flat):
        labels = labels.astype(str)
    if labels.dtype.kind not in "biufU":
        raise TypeError(f"{name} has type {labels.dtype}; expected numbers or strings")
    if labels.ndim != 1 or len(labels) == 0:
        raise ValueError(f"{name} has shape {labels.shape}; expected one label an image")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise ValueError(f"{name} holds labels that are not finite; expected finite numbers")
    return labels


def _array(name: str, value: ArrayLike) -> NDArray[Any]:
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} is no array: its parts differ in shape") from error


def _rebuild(about: dict[str, Any], weights: dict[str, Tensor]) -> nn.Module:
    """A network of ``spe`` with the shapes of ``weights``; no code is read from the file."""
    model = {c.__name__: c for c in _MODELS}.get(about["model"])
    encoder = {c.__name__: c for c in _ENCODERS}.get(about["encoder"])
    if model is None or encoder is None:
        raise ValueError(
            f"model {about['model']} with encoder {about['encoder']} cannot be rebuilt from a "
            "file; expected it as load(path, model)"
        )
    stochastic = issubclass(model, models.StochasticEmbedding)
    last = max((k for k in weights if k.startswith("encoder.net.")), key=_layer)
    outputs = len(weights[last])  # of weight or bias
    arguments: dict[str, Any] = {"d": outputs // (1 + stochastic), "stochastic": stochastic}
    if encoder is encoders.DigitEncoder:
        arguments["n_digits"] = weights["encoder.net.7.weight"].shape[1] // (16 * 7 * 7)
    network = encoder(**arguments)
    if model is models.StochasticPrototypes:
        arguments = {"n_support": 1}
    elif model is models.ContrastiveEmbedding:
        arguments = {"form": "soft" if "head.offset" in weights else "margin"}
    else:
        arguments = {}
    return model(network, **arguments, **about.get("options", {}))


def _layer(name: str) -> int:
    return int(name.split(".")[2])


_MODELS: tuple[Any, ...] = (
    models.StochasticPrototypes,
    models.PrototypicalNetwork,
    models.HedgedInstanceEmbedding,
    models.ContrastiveEmbedding,
)
_ENCODERS = (encoders.OmniglotEncoder, encoders.LShapeEncoder, encoders.DigitEncoder)
