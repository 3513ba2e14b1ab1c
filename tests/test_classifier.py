"""What chapter 18 claims about classifying your own images."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from torch import Tensor, nn

from spe import (
    ContrastiveEmbedding,
    DigitEncoder,
    FewShotClassifier,
    Gaussian,
    HedgedInstanceEmbedding,
    LShapeEncoder,
    OmniglotEncoder,
    PrototypicalNetwork,
    StochasticPrototypes,
    log_posterior,
    prototypes,
)

NAMES = np.array(["cat", "dog", "eel"])


class Pixels(nn.Module):
    """Stands for a trained network: two pixels are the mean, the next two the variance."""

    def __init__(self, noise: float = 0.1) -> None:
        super().__init__()
        self.noise = torch.tensor(noise)

    def embed(self, images: Tensor) -> Gaussian:
        x = images.flatten(1).float()
        return Gaussian(x[:, :2], x[:, 2:4])


def animals(per_class: int = 6, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 1, 2, 2) of three classes, well apart."""
    stream = np.random.default_rng(seed)
    label = np.tile(np.arange(3), per_class)
    mean = 3.0 * np.array([[0, 0], [1, 0], [0, 1]])[label] + 0.3 * stream.normal(
        size=(len(label), 2)
    )
    var = stream.uniform(0.05, 0.3, size=mean.shape)
    return np.concatenate([mean, var], 1).reshape(-1, 1, 2, 2).astype(np.float32), NAMES[label]


def fitted(**settings) -> FewShotClassifier:
    return FewShotClassifier(Pixels(), **settings).fit(*animals())


def test_it_learns_classes_from_a_few_images() -> None:
    classifier = fitted()
    X, y = animals(20, seed=1)
    assert classifier.classes_.tolist() == NAMES.tolist()
    assert (
        classifier.predict(X).tolist()
        == classifier.classes_[classifier.predict_proba(X).argmax(1)].tolist()
    )
    assert classifier.score(X, y) > 0.95


def test_its_probabilities_are_those_of_the_core() -> None:
    """Eqs. 5 and 7."""
    X, y = animals()
    queries, _ = animals(4, seed=1)
    g = Pixels().embed(torch.from_numpy(X))
    labels = torch.from_numpy(np.searchsorted(NAMES, y))
    expected = log_posterior(
        Pixels().embed(torch.from_numpy(queries)), prototypes(g, labels, 0.1), 0.1
    )
    ours = fitted().predict_log_proba(queries)
    np.testing.assert_allclose(ours, expected.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(fitted().predict_proba(queries).sum(1), 1, atol=1e-5)


@pytest.mark.parametrize("cuts", [(3, 9), (1, 2, 17), ()])
def test_images_may_come_in_any_pieces(cuts: tuple[int, ...]) -> None:
    """Eq. 4: new classes at any time, the same result as all at once."""
    X, y = animals()
    order = np.argsort(y)[::-1]  # eels first, then dogs, then cats
    classifier = FewShotClassifier(Pixels())
    for rows in np.split(order, cuts):
        classifier.partial_fit(X[rows], y[rows])
    whole = fitted()
    assert classifier.classes_.tolist() == whole.classes_.tolist()
    assert classifier.counts_.tolist() == [6, 6, 6]
    torch.testing.assert_close(classifier.prototypes_.mean, whole.prototypes_.mean)
    torch.testing.assert_close(classifier.prototypes_.var, whole.prototypes_.var)


def test_fitting_again_forgets_and_fitting_partly_does_not() -> None:
    X, y = animals()
    classifier = fitted()
    assert classifier.fit(X[y == "cat"], y[y == "cat"]).classes_.tolist() == ["cat"]
    assert classifier.partial_fit(X[y == "eel"], y[y == "eel"]).classes_.tolist() == ["cat", "eel"]


def test_a_longer_name_that_comes_later_is_not_cut_off() -> None:
    X, _ = animals()
    classifier = fitted().partial_fit(X[:1] + 20, ["hippopotamus"])
    assert classifier.classes_.tolist() == ["cat", "dog", "eel", "hippopotamus"]
    assert classifier.predict(X[:1] + 20).tolist() == ["hippopotamus"]


def test_an_announced_class_without_images_is_named() -> None:
    X, y = animals()
    classifier = FewShotClassifier(Pixels()).partial_fit(X, y, classes=[*NAMES, "fox"])
    with pytest.raises(ValueError, match=r"announced classes \['fox'\]"):
        classifier.predict(X)
    classifier.partial_fit(X[:1] + 9, ["fox"])
    assert classifier.score(X, y) == 1


def test_evidence_is_the_density_of_the_query_under_the_classes() -> None:
    """Eq. 8's normaliser, averaged over the classes, written out."""
    classifier = fitted()
    X, _ = animals(2, seed=1)
    about = classifier.describe(X)
    for i, x in enumerate(torch.from_numpy(X)):
        g = Pixels().embed(x[None])
        total = 0.0
        for c in range(3):
            var = g.var[0] + classifier.prototypes_.var[c] + 0.1
            normal = torch.distributions.Normal(classifier.prototypes_.mean[c], var.sqrt())
            total += normal.log_prob(g.mean[0]).sum().exp().item() / 3
        assert math.isclose(about.evidence[i], math.log(total), rel_tol=1e-4)
    np.testing.assert_allclose(about.variance, X.reshape(-1, 4)[:, 2:], rtol=1e-6)
    np.testing.assert_array_equal(about.probabilities, classifier.predict_proba(X))


@pytest.mark.parametrize(
    ("labels", "given", "answer"),
    [
        (NAMES, None, "none of these"),
        (np.array([3, 5, 9]), None, -1),
        (np.array([3, 5, 9], np.uint8), None, -1),
        (np.array([3, 5, 9], np.int8), 300, 300),
        (NAMES, "?", "?"),
    ],
)
def test_a_stranger_is_rejected(labels: np.ndarray, given, answer) -> None:
    X, y = animals()
    y = labels[np.searchsorted(NAMES, y)]
    stranger = np.full((1, 1, 2, 2), 0.1, np.float32)
    stranger[0, 0, 0] = 40
    queries = np.concatenate([X[:3], stranger])
    open_minded = FewShotClassifier(Pixels(), reject_label=given).fit(X, y)
    assert open_minded.predict(queries)[3] in labels
    threshold = float(open_minded.describe(X).evidence.min()) - 0.1
    strict = clone(open_minded).set_params(reject=threshold).fit(X, y)
    assert strict.predict(queries).tolist() == [*y[:3].tolist(), answer]
    np.testing.assert_allclose(strict.predict_proba(queries).sum(1), 1, atol=1e-5)


def test_a_reject_label_that_is_a_class_is_refused() -> None:
    with pytest.raises(ValueError, match="reject_label='cat' is one of the classes"):
        fitted(reject=0.0, reject_label="cat").predict(animals()[0])


def test_a_vague_query_gets_vague_probabilities() -> None:
    sharp = np.array([[1.2, 0.0], [0.01, 0.01]], np.float32)[None, None]
    vague = np.array([[1.2, 0.0], [50.0, 50.0]], np.float32)[None, None]
    classifier = fitted()
    assert classifier.predict_proba(vague).max() < 0.7 < classifier.predict_proba(sharp).max()


def test_one_query_one_class_and_one_image() -> None:
    X, y = animals()
    classifier = FewShotClassifier(Pixels()).fit(X[:1], y[:1])
    assert classifier.predict(X[:1]).tolist() == ["cat"]
    assert classifier.predict_proba(X[:1]).tolist() == [[1.0]]


def test_the_batch_size_does_not_matter() -> None:
    X, _ = animals(10, seed=1)
    np.testing.assert_allclose(
        fitted(batch_size=7).predict_proba(X), fitted().predict_proba(X), rtol=1e-5, atol=1e-7
    )
    np.testing.assert_allclose(
        fitted(batch_size=1).describe(X).evidence, fitted().describe(X).evidence, rtol=1e-5
    )


# scikit-learn and easyfsl


def test_it_works_in_a_pipeline_and_in_cross_validation() -> None:
    X, y = animals(9)
    centre = FunctionTransformer(lambda x: x + np.float32(0.0))
    pipeline = make_pipeline(centre, FewShotClassifier(Pixels()))
    assert pipeline.fit(X, y).score(X, y) > 0.95
    assert cross_val_score(pipeline, X, y, cv=3).min() > 0.85
    assert (
        cross_val_score(FewShotClassifier(Pixels()), X, y, cv=3, scoring="neg_log_loss").max() < 0
    )


def test_a_clone_has_the_settings_and_no_memory() -> None:
    copy = clone(fitted(reject=-9.0, n_samples=16))
    assert copy.get_params(deep=False)["reject"] == -9.0
    assert copy.n_samples == 16
    with pytest.raises(NotFittedError, match="call fit first"):
        copy.predict(animals()[0])


def test_it_can_be_used_as_in_easyfsl() -> None:
    X, y = animals()
    labels = torch.from_numpy(np.searchsorted(NAMES, y))
    classifier = FewShotClassifier(Pixels())
    classifier.process_support_set(torch.from_numpy(X), labels)
    scores = classifier(torch.from_numpy(X))
    assert isinstance(scores, Tensor)
    assert scores.shape == (18, 3)
    assert (scores.argmax(1) == labels).float().mean() > 0.9


# Real networks


def bytes_like(encoder_shape: tuple[int, ...], n: int = 6) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (n, *encoder_shape), dtype=np.uint8)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "spe": (lambda: StochasticPrototypes(OmniglotEncoder(3), 5), (1, 28, 28)),
    "spe digits": (lambda: StochasticPrototypes(DigitEncoder(2, 2), 5), (1, 28, 56)),
    "spe colour": (lambda: StochasticPrototypes(LShapeEncoder(2), 5), (3, 64, 64)),
    "pn": (lambda: PrototypicalNetwork(OmniglotEncoder(2, False)), (1, 28, 28)),
    "hib": (lambda: HedgedInstanceEmbedding(OmniglotEncoder(2)), (1, 28, 28)),
    "margin": (lambda: ContrastiveEmbedding(OmniglotEncoder(4, False)), (1, 28, 28)),
    "soft": (lambda: ContrastiveEmbedding(OmniglotEncoder(2, False), "soft"), (1, 28, 28)),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_is_saved_comes_back_the_same(name: str, tmp_path: Path) -> None:
    make, shape = MODELS[name]
    X, y = bytes_like(shape), np.array([5, 5, 7, 7, 9, 9])
    classifier = FewShotClassifier(make(), reject=-50.0, n_samples=32).fit(X, y)
    path = tmp_path / "classifier.safetensors"
    classifier.save(path)
    back = FewShotClassifier.load(path)
    np.testing.assert_array_equal(back.predict_proba(X), classifier.predict_proba(X))
    assert back.predict(X).tolist() == classifier.predict(X).tolist()
    assert back.classes_.dtype == classifier.classes_.dtype
    assert (back.reject, back.n_samples, back.noise_) == (-50.0, 32, classifier.noise_)
    back.partial_fit(X[:2], [11, 11])
    assert back.classes_.tolist() == [5, 7, 9, 11]
    assert [p.name for p in tmp_path.iterdir()] == ["classifier.safetensors"]


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (
            StochasticPrototypes(OmniglotEncoder(2), 5, "naive", 8, "sobol"),
            {"estimator": "naive", "n_samples": 8, "points": "sobol"},
        ),
        (HedgedInstanceEmbedding(OmniglotEncoder(2), 1e-2, 4), {"beta": 1e-2, "n_samples": 4}),
        (ContrastiveEmbedding(OmniglotEncoder(2, False), margin=3.0), {"margin": 3.0}),
    ],
)
def test_a_model_comes_back_with_the_options_that_it_was_trained_with(
    model: nn.Module, options: dict, tmp_path: Path
) -> None:
    path = tmp_path / "c.safetensors"
    FewShotClassifier(model).fit(bytes_like((1, 28, 28)), np.arange(6)).save(path)
    back = FewShotClassifier.load(path).model
    assert {name: getattr(back, name) for name in options} == options


def test_a_network_of_your_own_is_given_when_loading(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    classifier = fitted()
    classifier.model.points = torch.zeros(2)  # a name of our models means nothing in yours
    classifier.save(path)
    with pytest.raises(ValueError, match=r"model Pixels .* cannot be rebuilt from a file"):
        FewShotClassifier.load(path)
    with pytest.raises(ValueError, match="model does not fit the weights of"):
        FewShotClassifier.load(path, torch.nn.Linear(3, 3))
    back = FewShotClassifier.load(path, Pixels())
    assert back.score(*animals()) == 1
    with safe_open(path, "pt") as file:
        assert json.loads(file.metadata()["spe"])["classes"] == NAMES.tolist()


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match="has format None; expected 'spe few-shot"):
        FewShotClassifier.load(path)
    path.write_bytes(b"not a safetensors file")
    with pytest.raises(ValueError, match="is no safetensors file"):
        FewShotClassifier.load(path)


def test_a_prototypical_network_keeps_its_own_probabilities() -> None:
    """Softmax of minus squared distances to plain means, also with unequal shots."""
    model = PrototypicalNetwork(OmniglotEncoder(2, False)).eval()
    X, y = bytes_like((1, 28, 28), 9), np.array([0, 0, 0, 0, 1, 1, 2, 2, 2])
    z = model.embed(torch.from_numpy(X)).mean.detach()
    means = torch.stack([z[torch.from_numpy(y == c)].mean(0) for c in range(3)])
    expected = (-torch.cdist(z, means).square()).softmax(-1)
    ours = FewShotClassifier(model).fit(X, y).predict_proba(X)
    np.testing.assert_allclose(ours, expected.numpy(), rtol=1e-3, atol=1e-5)


def test_the_model_is_used_in_evaluation_mode_and_left_as_it_was() -> None:
    model = StochasticPrototypes(OmniglotEncoder(2), 5).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    X = bytes_like((1, 28, 28))
    classifier = FewShotClassifier(model).fit(X, [0, 0, 0, 1, 1, 1])
    classifier.predict(X)
    assert model.training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    alone = np.concatenate([classifier.predict_proba(x[None]) for x in X])
    np.testing.assert_allclose(alone, classifier.predict_proba(X), rtol=1e-3, atol=1e-5)


def test_grey_images_need_no_channel_dimension() -> None:
    X, y = animals()
    squeezed = FewShotClassifier(Pixels()).fit(X[:, 0], y)
    np.testing.assert_array_equal(squeezed.predict_proba(X[:, 0]), fitted().predict_proba(X))


# Errors

GOOD_X, GOOD_Y = animals()


def with_value(value: float, place: int = 0) -> np.ndarray:
    X = GOOD_X.copy()
    X.reshape(len(X), 4)[4, place] = value
    return X


@pytest.mark.parametrize(
    ("X", "y", "error", "says"),
    [
        (GOOD_X[:, 0, 0], GOOD_Y, ValueError, r"X has shape \(18, 2\); expected images"),
        (GOOD_X[:0], GOOD_Y[:0], ValueError, r"X has shape \(0, 1, 2, 2\)"),
        (GOOD_X.astype(np.int64), GOOD_Y, TypeError, "X has type torch.int64"),
        ([[[1.0]], [[1.0, 2.0]]], GOOD_Y, ValueError, "X is no array"),
        (GOOD_X.astype(str), GOOD_Y, TypeError, "X has type <U32; expected uint8 or floating"),
        (with_value(np.nan), GOOD_Y, ValueError, "X holds values that are not finite"),
        (with_value(np.inf), GOOD_Y, ValueError, "X holds values that are not finite"),
        (with_value(-1.0, 3), GOOD_Y, ValueError, "image 4 .* negative variance"),
        (GOOD_X, GOOD_Y[:4], ValueError, "y has 4 labels; expected 18"),
        (GOOD_X, GOOD_Y[:, None], ValueError, r"y has shape \(18, 1\)"),
        (GOOD_X, [None] * 18, TypeError, "y has type object"),
        (GOOD_X, [1.0, np.nan] * 9, ValueError, "y holds labels that are not finite"),
    ],
)
def test_bad_images_and_labels_are_named(X, y, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        FewShotClassifier(Pixels()).fit(X, y)


@pytest.mark.parametrize("noise", [-1.0, 0.0, math.nan, math.inf])
def test_a_noise_that_is_no_variance_is_refused(noise: float) -> None:
    with pytest.raises(ValueError, match=r"noise=.*expected a positive number"):
        FewShotClassifier(Pixels(), noise=noise).fit(GOOD_X, GOOD_Y)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"n_samples": 0}, "n_samples=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"reject": "low"}, "reject='low'"),
        ({"reject": math.nan}, "reject=nan"),
    ],
)
def test_bad_settings_are_named(settings: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        fitted(**settings).predict(GOOD_X)


def test_numbers_and_names_do_not_mix() -> None:
    with pytest.raises(TypeError, match="y has int64 labels; expected some like"):
        fitted().partial_fit(GOOD_X, np.arange(18))
    with pytest.raises(TypeError, match=r"classes has int64 labels; .* like \['cat' 'dog' 'eel'\]"):
        FewShotClassifier(Pixels()).partial_fit(GOOD_X, GOOD_Y, classes=[0, 1])


def test_labels_that_a_common_type_would_mix_up_are_refused() -> None:
    """As float64, 2**53 and 2**53 + 1 are one number; truth values would become 0 and 1."""
    large = 2**53 + np.arange(18) % 3
    classifier = FewShotClassifier(Pixels()).fit(GOOD_X, large)
    with pytest.raises(TypeError, match="labels of int64 are not told apart as float64"):
        classifier.partial_fit(GOOD_X, np.linspace(0, 1, 18))
    assert classifier.classes_.tolist() == [2**53, 2**53 + 1, 2**53 + 2]


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_a_failed_call_changes_nothing(method: str) -> None:
    classifier = fitted()
    before = classifier.predict_proba(GOOD_X)
    with pytest.raises(ValueError, match="negative variance"):
        getattr(classifier, method)(with_value(-1.0, 3), GOOD_Y)
    with pytest.raises(TypeError, match="y has type object"):
        getattr(classifier, method)(GOOD_X, [None] * 18)
    np.testing.assert_array_equal(classifier.predict_proba(GOOD_X), before)


def test_images_are_embedded_in_batches_of_the_size_asked_for():
    sizes = []

    class Counts(Pixels):
        def embed(self, images: Tensor) -> Gaussian:
            sizes.append(len(images))
            return super().embed(images)

    images, names = animals(200)
    FewShotClassifier(Counts(), batch_size=500).fit(images, names)
    assert sizes == [500, 100]


def test_a_threshold_may_be_numpy_s_and_is_saved(tmp_path):
    _, names = animals()
    model = StochasticPrototypes(OmniglotEncoder(2), 5).eval()
    pictures = np.random.default_rng(0).integers(0, 256, (18, 1, 28, 28), dtype=np.uint8)
    classifier = FewShotClassifier(model).fit(pictures, names)
    classifier.reject = np.median(classifier.describe(pictures).evidence)
    assert (classifier.predict(pictures) == "none of these").sum() == 9
    classifier.save(tmp_path / "c.safetensors")
    again = FewShotClassifier.load(tmp_path / "c.safetensors")
    assert (again.predict(pictures) == classifier.predict(pictures)).all()


def test_a_reject_label_is_of_the_kind_of_the_classes():
    images, _ = animals()
    classifier = FewShotClassifier(Pixels(), reject=0.0, reject_label="?")
    classifier.fit(images, np.tile(np.arange(3), 6))
    with pytest.raises(TypeError, match=r"reject_label='\?'; expected a label like \[0 1 2\]"):
        classifier.predict(images)


def test_a_network_in_double_precision_comes_back_as_one(tmp_path):
    model = StochasticPrototypes(OmniglotEncoder(2), 5).double().eval()
    pictures = np.random.default_rng(0).integers(0, 256, (6, 1, 28, 28), dtype=np.uint8)
    classifier = FewShotClassifier(model).fit(pictures, [0, 0, 0, 1, 1, 1])
    classifier.save(tmp_path / "c.safetensors")
    again = FewShotClassifier.load(tmp_path / "c.safetensors")
    np.testing.assert_array_equal(again.predict_proba(pictures), classifier.predict_proba(pictures))


def test_half_precision_gives_probabilities_too():
    model = StochasticPrototypes(OmniglotEncoder(2), 5).eval().half()
    pictures = np.random.default_rng(0).integers(0, 256, (6, 1, 28, 28), dtype=np.uint8)
    found = FewShotClassifier(model).fit(pictures, [0, 0, 0, 1, 1, 1]).predict_proba(pictures)
    np.testing.assert_allclose(found.sum(1), 1, atol=5e-3)


def test_bfloat16_gives_probabilities_too():
    model = StochasticPrototypes(OmniglotEncoder(2), 5).eval().bfloat16()
    pictures = np.random.default_rng(0).integers(0, 256, (6, 1, 28, 28), dtype=np.uint8)
    classifier = FewShotClassifier(model).fit(pictures, [0, 0, 0, 1, 1, 1])
    np.testing.assert_allclose(classifier.predict_proba(pictures).sum(1), 1, atol=5e-2)
    assert classifier.predict_log_proba(pictures).dtype == np.float32


def test_images_may_be_read_only_and_of_any_byte_order():
    X, y = animals()
    frozen, foreign = X.copy(), X.astype(">f4")
    frozen.flags.writeable = False
    for images in (frozen, foreign, X[::-1][::-1]):
        classifier = FewShotClassifier(Pixels()).fit(images, y)
        np.testing.assert_array_equal(classifier.predict_proba(images), fitted().predict_proba(X))


def test_settings_may_be_numbers_of_numpy_or_torch_and_are_saved(tmp_path):
    settings = {
        "noise": torch.tensor(0.25),
        "n_samples": np.int64(16),
        "batch_size": np.int32(5),
    }
    classifier = FewShotClassifier(Pixels(), **settings).fit(GOOD_X, GOOD_Y)
    classifier.save(tmp_path / "c.safetensors")
    again = FewShotClassifier.load(tmp_path / "c.safetensors", Pixels())
    assert (again.noise, again.n_samples, again.batch_size) == (0.25, 16, 5)
    np.testing.assert_array_equal(again.predict_proba(GOOD_X), classifier.predict_proba(GOOD_X))
