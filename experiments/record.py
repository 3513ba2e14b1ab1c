"""Score a trained run on its test sets, and keep what chapters need.

Test images are embedded once, clean and occluded, and rounded to half precision; every metric is
computed from the rounded embeddings. So a record's numbers follow from what is stored beside them.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import spe
from experiments.runs import BUDGETS, Run
from experiments.train import (
    CONDITIONS,
    LSHAPES,
    build_model,
    folder_of,
    load_data,
    parameters_of,
    rule_of,
    similarity_of,
    some_of,
)
from spe.data import ImageSet
from spe.data.lshapes import bayes_posterior, sample_coordinates
from spe.evaluation import (
    Gaussian,
    Model,
    Similarity,
    distance_of_means,
    embed_set,
    episode_indices,
    leave_one_out_neighbours,
    mean_and_sem,
    score_episodes,
    stochastic_rule,
)
from spe.training import History, write_atomically

TEST_SEED = 2
# Tasks of each test set: way (None: all its classes) and shot; then the queries of a class.
TESTS: dict[str, dict[str, list[tuple[int | None, int]]]] = {
    "omniglot": {"test": [(5, 1), (5, 5), (20, 1), (20, 5)]},
    "ndigit2": {"seen": [(None, 50)], "unseen": [(None, 50)]},
    "ndigit3": {"seen": [(None, 50)], "unseen": [(None, 50)]},
    "lshapes": {"test": [(None, 2), (None, 100)]},
}
TEST_IMAGES = {  # in each test set, however often episodes draw them
    "omniglot": {"test": 1692 * 20},
    "ndigit2": {"seen": 70 * 142, "unseen": 30 * 333},
    "ndigit3": {"seen": 100 * 100, "unseen": 100 * 100},
    "lshapes": {"test": 4 * 1000},
}
QUERIES = {"omniglot": 15, "ndigit2": 10, "ndigit3": 10, "lshapes": 20}
EPISODES = {"quick": 3, "cpu": 1000, "paper": 1000}
NAIVE_SAMPLES, NAIVE_EPISODES = 200, 100  # the paper's evaluation, on the first episodes
MAX_CURVE = 200
FILE_OF_PROBES = "probes.safetensors"

Embeddings = dict[str, Tensor]


def held_out_sets(run: Run, device: str, budget: str = "cpu") -> dict[str, ImageSet]:
    """The test sets of a run; a smoke test looks at a few images only."""
    data = load_data(run.data, run.split, device)
    sets = {name: data[name] for name in TESTS[run.data]}
    if budget == "quick":
        sets = {name: some_of(data) for name, data in sets.items()}
    return sets


def embed_tests(run: Run, model: Model, sets: dict[str, ImageSet]) -> Embeddings:
    """Half-precision embeddings of the test sets, clean and occluded, by name.

    Variances are kept as logarithms, which half precision holds to 1 % over their whole range; a
    deterministic model has none. The occlusions depend on the test set alone: they
    are drawn on the CPU, because a GPU would draw others from the same seed. L shapes are not
    occluded; what they were made from is kept instead.
    """
    stored: Embeddings = {}
    if run.data == "lshapes":
        n, seed, corrupted = LSHAPES["test"]
        made = sample_coordinates(n, torch.Generator().manual_seed(seed), corrupted)
        stored |= {"test.orientation": made.orientation, "test.hue": made.hue}
    for name, data in sets.items():
        for images in _images(run):
            p = 1.0 if images == "occluded" else 0.0
            generator = torch.Generator().manual_seed(TEST_SEED)
            embedded, hidden = embed_set(model, data.to("cpu"), p, generator)
            stored |= in_half(f"{name}.{images}", embedded)
            if hidden is not None:
                stored[f"{name}.hidden"] = hidden.half().cpu()
    return stored


def _images(run: Run) -> tuple[str, ...]:
    """What a run is scored on: clean images alone where nobody asks for more.

    L shapes are never occluded, and a run that trains on clean images and keeps no embeddings is
    there for its clean cells: samplers (Fig. 4), the other split, 64 dimensions.
    """
    clean_alone = run.data == "lshapes" or not (run.occlude or run.keep)
    return ("clean",) if clean_alone else ("clean", "occluded")


def in_half(name: str, embedded: Gaussian) -> Embeddings:
    """The stored form of an embedding: half precision, variances as logarithms if there are any."""
    if not (embedded.mean.abs() <= torch.finfo(torch.half).max).all():
        raise ValueError(f"half precision cannot hold the means of {name!r}")
    stored = {f"{name}.mean": embedded.mean.half().cpu()}
    if embedded.var.any():
        stored[f"{name}.log_var"] = embedded.var.log().half().cpu()
    return stored


def gaussian_of(stored: Embeddings, name: str) -> Gaussian:
    """An embedding from its stored form, such as "seen.clean", (n_classes, per_class, d)."""
    mean = stored[f"{name}.mean"].float()
    log_var = stored.get(f"{name}.log_var")
    return Gaussian(mean, torch.zeros_like(mean) if log_var is None else log_var.float().exp())


@torch.inference_mode()
def score(
    run: Run,
    stored: Embeddings,
    parameters: dict[str, float],
    budget: str = "cpu",
    **only: Any,
) -> list[dict[str, Any]]:
    """The metrics of a run, one row per test set, condition, classifier and task.

    `only`, such as test="seen" or classifier="prototypes", limits it to rows with these values.
    """
    rows = []
    for row in _plan(run, stored):
        if all(row.get(key) == value for key, value in only.items()):
            images = CONDITIONS[row["condition"]]
            support, query = (gaussian_of(stored, f"{row['test']}.{each}") for each in images)
            if row["classifier"] == "prototypes":
                row |= _score_episodes(run, support, query, row, parameters, budget)
            elif row["classifier"] == "Bayes rule":
                row |= _score_bayes(stored)
            else:
                by_match = row["classifier"] == "5-NN match"
                row |= _score_neighbours(
                    support, query, similarity_of("HIB", parameters) if by_match else None
                )
            rows.append(row)
    return rows


def _plan(run: Run, stored: Embeddings) -> list[dict[str, Any]]:
    """What is to be scored: rows of metrics without their numbers."""
    rows: list[dict[str, Any]] = []
    for test, tasks in TESTS[run.data].items():
        n_classes = len(stored[f"{test}.clean.mean"])
        for condition, images in CONDITIONS.items():
            if not set(images) <= set(_images(run)):
                continue
            common = {"test": test, "condition": condition}
            for way, shot in tasks:
                task = {"way": min(way or n_classes, n_classes), "shot": shot}
                rows.append(common | {"classifier": "prototypes"} | task)
            if run.data.startswith("ndigit"):
                rows.append(common | {"classifier": "5-NN distance", "way": n_classes})
            if run.method == "HIB":
                rows.append(common | {"classifier": "5-NN match", "way": n_classes})
            if run.data == "lshapes":
                rows.append(common | {"classifier": "Bayes rule"})
    return rows


def _score_episodes(
    run: Run,
    support: Gaussian,
    query: Gaussian,
    row: dict[str, Any],
    parameters: dict[str, float],
    budget: str,
) -> dict[str, Any]:
    """Prototypes on 1000 episodes; for SPE also the paper's sampler, on the first 100 of them."""
    n_classes, per_class = support.shape[:2]
    shot, n_episodes = row["shot"], EPISODES[budget]
    drawn = shot + QUERIES[run.data]
    classes, items = episode_indices(n_classes, per_class, row["way"], drawn, n_episodes, TEST_SEED)
    rule = rule_of(run.method, parameters)
    scores = score_episodes(support, query, classes, items, shot, rule)
    likelihood, _ = mean_and_sem(scores["log_likelihood"])
    measured: dict[str, Any] = {"episodes": n_episodes} | _mean_and_sem(scores["accuracy"])
    measured["log_likelihood"] = round(likelihood, 6)
    if run.method == "SPE":
        first = slice(NAIVE_EPISODES)
        generator = torch.Generator(support.device).manual_seed(TEST_SEED)
        naive_rule = stochastic_rule(parameters["noise"], NAIVE_SAMPLES, "random", generator)
        naive = score_episodes(support, query, classes[first], items[first], shot, naive_rule)
        difference = _mean_and_sem(naive["accuracy"] - scores["accuracy"][first])
        measured["naive200"] = {
            "episodes": len(naive["accuracy"]),
            "accuracy": _mean_and_sem(naive["accuracy"])["accuracy"],
            "difference": difference["accuracy"],
            "difference_sem": difference["sem"],
        }
    return measured


def _score_neighbours(
    support: Gaussian, query: Gaussian, similarity: Similarity | None
) -> dict[str, Any]:
    """Five nearest neighbours over the whole test set, each image left out once."""
    n_classes, per_class = support.shape[:2]
    labels = torch.arange(n_classes, device=support.device).repeat_interleave(per_class)
    support, query = (Gaussian(g.mean.flatten(0, 1), g.var.flatten(0, 1)) for g in (support, query))
    similarity = similarity or distance_of_means
    right = leave_one_out_neighbours(support, query, labels, similarity=similarity)
    return _mean_and_sem(right)


def _score_bayes(stored: Embeddings) -> dict[str, Any]:
    """The best possible rule on the same L shapes, which knows what they were made from."""
    best = bayes_posterior(stored["test.orientation"], stored["test.hue"]).argmax(-1)
    return _mean_and_sem(best == torch.arange(len(best))[:, None])


def _mean_and_sem(values: Tensor) -> dict[str, Any]:
    mean, sem = mean_and_sem(values)
    return {"accuracy": round(mean, 6), "sem": None if sem != sem else round(sem, 6)}


def write(run: Run, model: Model, history: History, device: str, budget: str = "cpu") -> Path:
    """Score a trained run and write its record, all at once or not at all."""
    from safetensors.torch import save

    folder = folder_of("runs", budget) / run.name
    started = time.monotonic()
    sets = held_out_sets(run, device, budget)
    parameters = parameters_of(model)
    stored = embed_tests(run, model, sets)
    metrics = score(run, stored, parameters, budget)
    info = {
        "name": run.name,
        "budget": budget,
        "definition": asdict(run),
        "updates": history.updates,
        "best_update": history.best_update,
        "stopped": history.stopped,
        "training_seconds": round(history.seconds, 1),
        "evaluation_seconds": round(time.monotonic() - started, 1),
        "device": _name_of(device),
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "parameters": parameters,
        "variance": _variance_summary(stored),
        "metrics": metrics,
        "curve": thin(history.rows),
    }
    files = {"run.json": _json(info).encode()}
    if run.keep:
        names = {k: json.dumps(v.names) for k, v in sets.items()}
        files["embeddings.safetensors"] = save(stored, metadata=names)
    if run.keeps_weights:
        weights = {k: v.cpu().contiguous() for k, v in model.state_dict().items()}
        files["model.safetensors"] = save(weights)
    put(folder, files)
    return folder


def put(folder: Path, files: dict[str, bytes]) -> None:
    """Write the files of a record, all at once or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        draft.chmod(0o755)
        for name, content in files.items():
            write_atomically(draft / name, content)
        if not (folder / "run.json").exists():
            shutil.rmtree(folder, ignore_errors=True)  # what is there is no record
        os.rename(draft, folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise


def _name_of(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device


def versions() -> dict[str, str]:
    """What a record was made with."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "spe": spe.__version__,
    }


def _json(info: dict[str, Any]) -> str:
    """JSON with one line per metric and per row of the curve, so that a change reads well."""
    lists = {"metrics": info["metrics"], "curve": info["curve"]}
    text = json.dumps(info | {key: [] for key in lists}, indent=1)
    for key, rows in lists.items():
        lines = ",\n  ".join(json.dumps(row) for row in rows)
        text = text.replace(f'"{key}": []', f'"{key}": [\n  {lines}\n ]')
    return text + "\n"


def thin(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    """At most MAX_CURVE rows, evenly spread, the last one included, to five digits."""
    step = -(-len(rows) // MAX_CURVE)
    kept = rows[::-1][:: max(step, 1)][::-1]
    return [{k: v if k == "update" else _digits(v) for k, v in row.items()} for row in kept]


def _variance_summary(stored: Embeddings) -> dict[str, Any]:
    """Mean and quantiles of the embedding variance on each test set, clean and occluded."""
    summary = {}
    for key, log_var in stored.items():
        if key.endswith(".log_var"):
            var = log_var.double().exp().flatten()
            cuts = [var.kthvalue(1 + int(q * (len(var) - 1))).values for q in (0.05, 0.5, 0.95)]
            summary[key.removesuffix(".log_var")] = {
                "mean": _digits(var.mean().item()),
                "quantiles_5_50_95": [_digits(cut.item()) for cut in cuts],
            }
    return summary


def _digits(value: float) -> float:
    return float(f"{value:.5g}")


@dataclass(frozen=True)
class Record:
    """A finished run as chapters load it."""

    folder: Path
    info: dict[str, Any]

    @property
    def run(self) -> Run:
        try:
            return Run(**self.info["definition"])
        except TypeError as error:
            raise ValueError(f"{self.folder} has settings of another version: {error}") from error

    def metric(self, **wanted: Any) -> dict[str, Any]:
        """The one row of metrics with these values, such as test="seen", way=70."""
        rows = [r for r in self.info["metrics"] if all(r.get(k) == v for k, v in wanted.items())]
        if len(rows) != 1:
            raise KeyError(f"{self.info['name']}: {len(rows)} rows of metrics match {wanted}")
        return rows[0]

    def tensors(self) -> Embeddings:
        """Everything in embeddings.safetensors."""
        from safetensors.torch import load_file

        path = self.folder / "embeddings.safetensors"
        if not path.exists():
            raise FileNotFoundError(f"{self.info['name']} keeps run.json alone, no embeddings")
        return load_file(path)

    def embeddings(self, test: str, images: str = "clean") -> Gaussian:
        """A test set's embedding (n_classes, per_class, d), of "clean" or "occluded" images."""
        return gaussian_of(self.tensors(), f"{test}.{images}")

    def class_names(self, test: str) -> list[str]:
        """The names of a test set's classes, in the order of the embeddings."""
        from safetensors import safe_open

        with safe_open(self.folder / "embeddings.safetensors", "pt") as file:
            return json.loads(file.metadata()[test])

    def probes(self) -> Embeddings:
        """Everything in probes.safetensors: inputs that the run never trained on (chapter 15)."""
        from safetensors.torch import load_file

        path = self.folder / FILE_OF_PROBES
        if not path.exists():
            name = self.info["name"]
            raise FileNotFoundError(
                f"{name} has no probes; python -m experiments probe {name} makes them"
            )
        return load_file(path)

    def probe(self, kind: str) -> Gaussian:
        """The embedding (n, d) of one kind of probe, such as "noise"."""
        return gaussian_of(self.probes(), kind)

    def model(self) -> Model:
        """The trained model, in evaluation mode."""
        from safetensors.torch import load_file

        path = self.folder / "model.safetensors"
        if not path.exists():
            raise FileNotFoundError(f"{self.info['name']} keeps no weights")
        model = build_model(self.run)
        model.load_state_dict(load_file(path))
        return model.eval()


def load(name: str, budget: str = "cpu") -> Record:
    """The record of a finished run."""
    if budget not in BUDGETS:
        raise ValueError(f"budget: got {budget!r}, expected one of {', '.join(BUDGETS)}")
    folder = folder_of("runs", budget) / name
    if not (folder / "run.json").exists():
        other = "" if budget == "cpu" else f" --budget {budget}"
        raise FileNotFoundError(
            f"{name} is not recorded; python -m experiments train {name}{other} makes it"
        )
    return Record(folder, json.loads((folder / "run.json").read_text()))


def is_recorded(run: Run, budget: str = "cpu") -> bool:
    """Whether this very run is done; a record of its name with other settings is an error."""
    if not is_done(run.name, budget):
        return False
    if not has_settings(load(run.name, budget).run, run):
        raise ValueError(
            f"{run.name} is recorded with other settings; give the new ones another name, "
            "or remove the record's folder"
        )
    return True


def has_settings(recorded: Run, run: Run) -> bool:
    """Whether a record stands for a run, whatever its importance and what is kept of it."""
    return replace(recorded, group=run.group, keep=run.keep) == run


def is_done(name: str, budget: str = "cpu") -> bool:
    """Whether a record exists; it is complete if it does."""
    return (folder_of("runs", budget) / name / "run.json").exists()
