"""Put single-line faults into a copy of the core and check that the tests catch every one.

`python tools/mutants.py` copies `spe/` and the tests to a temporary folder for each fault; the
work tree is never touched. With words as arguments it runs only the faults whose name or file
contains one of them.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
PROCESSES = 2
TIME_LIMIT = 900  # seconds for one fault; silence is no proof that it was caught
HELPERS = ("exact.py",)
TESTS = {
    "gaussian.py": ("test_gaussian.py",),
    "prototypes.py": ("test_prototypes.py",),
    "posterior.py": ("test_posterior.py",),
    "models.py": ("test_models.py",),
    "encoders.py": ("test_encoders.py",),
}


class Fault(NamedTuple):
    """Replace `old`, at its `nth` place in a file of `spe/`, by `new`."""

    name: str
    file: str
    old: str
    new: str
    nth: int = 1
    tests: tuple[str, ...] = ()


Job = tuple[Fault | None, tuple[str, ...]]

FAULTS = [
    # Gaussians
    Fault("log-determinant left out", "gaussian.py", "+ var.log() + LOG_2PI", "+ LOG_2PI"),
    Fault("sign of the exponent", "gaussian.py", "return -0.5 * (diff", "return 0.5 * (diff"),
    Fault("distance not squared", "gaussian.py", "difference.square() / var", "difference / var"),
    Fault("half left out", "gaussian.py", "return -0.5 * (diff", "return -1.0 * (diff"),
    Fault("noise not added", "gaussian.py", "self.var + noise)", "self.var)"),
    Fault("noise added as a deviation", "gaussian.py", "self.var + noise)", "self.var + noise**2)"),
    Fault("variance for deviation", "gaussian.py", ".sqrt() * points", " * points"),
    Fault(
        "root of zero",
        "gaussian.py",
        "self.var.clamp_min(torch.finfo(self.dtype).tiny).sqrt()",
        "self.var.sqrt()",
        tests=("test_posterior.py",),
    ),
    Fault(
        "product's mean unweighted", "gaussian.py", "weight = smallest / var", "weight = var / var"
    ),
    Fault("product's variance not shrunk", "gaussian.py", "(smallest / total)", "smallest"),
    Fault("product without gradient", "gaussian.py", "mean = rough + (", "mean = rough + 0 * ("),
    Fault("overlap on the wrong side", "gaussian.py", "a.var, -b.var)", "a.var, b.var)"),
    Fault("overlap from the wider mean", "gaussian.py", "narrower, a.mean", "~narrower, a.mean"),
    Fault("overlap's wrong denominator", "gaussian.py", "a.var / both * b.var", "a.var * b.var"),
    Fault(
        "normaliser forgets the query",
        "gaussian.py",
        "log_normal(gap, both)",
        "log_normal(gap, b.var)",
    ),
    Fault("product of two not shifted", "gaussian.py", "origin + rest.mean", "origin"),
    # Prototypes
    Fault(
        "prototype without noise",
        "prototypes.py",
        "class_product(support.widen(noise)",
        "class_product(support",
    ),
    Fault("plain mean", "prototypes.py", "smallest[labels] / var", "torch.ones_like(var)"),
    Fault("prototype does not narrow", "prototypes.py", "smallest / total)", "smallest)"),
    Fault(
        "prototype without gradient",
        "prototypes.py",
        "mean = rough + class",
        "mean = rough + 0 * class",
    ),
    Fault(
        "one-shot variance without gradient", "prototypes.py", "clamp_min(0.5)", "clamp_min(1.0)"
    ),
    Fault("infinite variance", "prototypes.py", "limits.max / 4", "torch.inf"),
    Fault("new support without noise", "prototypes.py", "], support.widen(noise)", "], support"),
    Fault(
        "old support widened twice",
        "prototypes.py",
        "prototypes[touched],",
        "prototypes[touched].widen(noise),",
    ),
    Fault("last class lost", "prototypes.py", "int(labels.max()) + 1", "max(1, int(labels.max()))"),
    # Posterior
    Fault(
        "log-determinant left out", "posterior.py", "(var.log() + LOG_2PI)", "(0 * var + LOG_2PI)"
    ),
    Fault("variance not doubled", "posterior.py", "(2 * var).rsqrt()", "var.rsqrt()"),
    Fault(
        "samples ignored",
        "posterior.py",
        " + offset[:, :, k, None]",
        " + 0 * offset[:, :, k, None]",
    ),
    Fault(
        "samples ignored by the gradient",
        "posterior.py",
        " + offset[:, :, k, None]",
        " + 0 * offset[:, :, k, None]",
        2,
    ),
    Fault("gradient of the variance", "posterior.py", "grad_var = 0.5 *", "grad_var = 1.0 *"),
    Fault("gradient's sign", "posterior.py", "= -pull.sum(2)", "= pull.sum(2)"),
    Fault(
        "gradient of the log-determinant",
        "posterior.py",
        "(square - grad.sum",
        "(square - 0 * grad.sum",
    ),
    Fault("no softmax", "posterior.py", "offset).log_softmax(-1)", "offset)"),
    Fault(
        "softmax over samples", "posterior.py", "offset).log_softmax(-1)", "offset).log_softmax(0)"
    ),
    Fault(
        "averaged logs",
        "posterior.py",
        "log_mean_exp(log_p))",
        "log_p.mean(0))",
    ),
    Fault("terms lifted that count", "posterior.py", "NEGLIGIBLE = 60.0", "NEGLIGIBLE = 6.0"),
    Fault(
        "samples summed",
        "posterior.py",
        "exp().mean(0).log()",
        "exp().sum(0).log()",
    ),
    Fault(
        "prediction without noise",
        "posterior.py",
        "classes = prototypes.widen(noise)",
        "classes = prototypes",
    ),
    Fault(
        "training without noise",
        "posterior.py",
        "classes = prototypes.widen(noise)",
        "classes = prototypes",
        2,
    ),
    Fault(
        "target without noise",
        "posterior.py",
        "overlap(query, classes[targets])",
        "overlap(query, prototypes[targets])",
    ),
    Fault(
        "averaged logs, naive",
        "posterior.py",
        "return log_mean_exp(estimate)",
        "return estimate.mean(0)",
    ),
    Fault(
        "averaged logs, intersection",
        "posterior.py",
        "return log_mean_exp(estimate)",
        "return estimate.mean(0)",
        2,
    ),
    Fault(
        "normaliser forgotten",
        "posterior.py",
        "estimate = log_mass - log",
        "estimate = 0 * log_mass - log",
    ),
    Fault("wrong denominator", "posterior.py", "offset).logsumexp(-1)", "offset).amax(-1)"),
    Fault(
        "bound forgets the overlap's width",
        "posterior.py",
        "rest.var[:, None] + classes.var",
        "0 * rest.var[:, None] + classes.var",
    ),
    Fault(
        "bound's sign",
        "posterior.py",
        "return log_mass - log_normal",
        "return log_mass + log_normal",
    ),
    Fault("points too narrow", "posterior.py", "math.sqrt(2) * torch.erfinv", "torch.erfinv"),
    Fault(
        "scramble not fresh", "posterior.py", "whole = whole ^ shift", "whole = whole ^ (0 * shift)"
    ),
    Fault(
        "one scramble for all queries",
        "posterior.py",
        "2**SOBOL_BITS, (len(query), query.d)",
        "2**SOBOL_BITS, (1, query.d)",
    ),
    Fault("prediction not repeatable", "posterior.py", "scramble=True, seed=118", "scramble=True"),
    Fault("mean added twice", "posterior.py", "(mean, var).spread(some)", "(mean, var).at(some)"),
    Fault("query's mean alone", "posterior.py", "offset = Gaussian(", "offset = 0 * Gaussian("),
    Fault("naive: mean added twice", "posterior.py", "query.spread(", "query.at("),
    Fault(
        "naive: mean alone", "posterior.py", "offset = query.spread(", "offset = 0 * query.spread("
    ),
    # Models
    Fault(
        "no floor under the variance", "models.py", "F.softplus(raw) + VAR_FLOOR", "F.softplus(raw)"
    ),
    Fault(
        "start of the noise",
        "models.py",
        "GAMMA_0 ** (2 / encoder.d)",
        "GAMMA_0 ** (1 / encoder.d)",
    ),
    Fault(
        "loss upside down",
        "models.py",
        "return -target_log_posterior(",
        "return target_log_posterior(",
    ),
    Fault(
        "distances halved",
        "models.py",
        "torch.full_like(means, 0.5)",
        "torch.full_like(means, 1.0)",
    ),
    Fault(
        "match grows with distance",
        "models.py",
        "self.offset - F.softplus",
        "self.offset + F.softplus",
    ),
    Fault(
        "match and mismatch swapped",
        "models.py",
        "where(match, logits, -logits)",
        "where(match, -logits, logits)",
    ),
    Fault(
        "averaged logs, HIB",
        "models.py",
        "F.logsigmoid(samples).logsumexp(0) - math.log(len(samples))",
        "F.logsigmoid(samples).mean(0)",
    ),
    Fault(
        "K pairs, not K x K",
        "models.py",
        "self.head(z[:, None, batch.left] - z[:, batch.right])",
        "self.head((z[:, batch.left] - z[:, batch.right])[None])",
    ),
    Fault("divergence's sign", "models.py", "- 1 - g.var.log()", "- 1 + g.var.log()"),
    Fault(
        "bottleneck of one side",
        "models.py",
        "divergence[batch.left] + divergence[batch.right]",
        "divergence[batch.left]",
    ),
    Fault("HIB upside down", "models.py", "bottleneck - log_match(", "bottleneck + log_match("),
    Fault(
        "push and pull swapped",
        "models.py",
        "distance.square(), shortfall.square()",
        "shortfall.square(), distance.square()",
    ),
    # Encoders
    Fault("bytes not scaled", "encoders.py", "x / 255 if", "x if"),
    Fault(
        "pooling by average",
        "encoders.py",
        "nn.BatchNorm2d(64), nn.MaxPool2d(2)",
        "nn.BatchNorm2d(64), nn.AvgPool2d(2)",
    ),
]


def apply(fault: Fault, text: str) -> str:
    """The file's text with the fault in it."""
    parts = text.split(fault.old)
    if len(parts) <= fault.nth:
        raise SystemExit(
            f"{fault.file}: {fault.old!r} is there {len(parts) - 1} times; mend FAULTS"
        )
    head, tail = fault.old.join(parts[: fault.nth]), fault.old.join(parts[fault.nth :])
    return head + fault.new + tail


def start(fault: Fault | None, tests: tuple[str, ...], folder: Path) -> BaseProcess:
    """Begin to test a copy with the fault in it (None: without any), in a process of its own."""
    shutil.copytree(ROOT / "spe", folder / "spe", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests").mkdir()
    for test in (*HELPERS, *tests):
        shutil.copy(ROOT / "tests" / test, folder / "tests")
    (folder / "pytest.ini").write_text("[pytest]\n")
    if fault is not None:
        target = folder / "spe" / fault.file
        target.write_text(apply(fault, target.read_text()))
    process = multiprocessing.get_context("fork").Process(target=run_tests, args=(tests, folder))
    process.start()
    return process


def run_tests(tests: tuple[str, ...], folder: Path) -> None:
    """Run pytest here. torch was imported before the fork, `spe` was not: the copy's is found."""
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True
    with open("log", "w") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:nbval"]
    code = pytest.main([*options, *(f"tests/{test}" for test in tests)])
    import spe

    assert Path(spe.__file__).is_relative_to(folder), spe.__file__
    sys.stdout.flush()
    os._exit(code)


def verdict(process: BaseProcess, folder: Path) -> str:
    """What pytest said: 0 is no failed test, 1 is at least one."""
    if process.exitcode == 0:
        return "SURVIVED"
    if process.exitcode != 1:
        return f"BROKEN ({process.exitcode})"
    log = (folder / "log").read_text().splitlines()
    failed = [entry for entry in log if entry.startswith("FAILED")]
    return "caught by " + failed[0].split("::")[1].split(" ")[0] if failed else "BROKEN"


def results(jobs: list[Job]) -> Iterator[tuple[Job, str, float]]:
    """Run all jobs, a few at a time; yields each with its verdict and its seconds."""
    waiting = list(reversed(jobs))
    running: list[tuple[Job, Path, BaseProcess, float]] = []
    while waiting or running:
        while waiting and len(running) < PROCESSES:
            job = waiting.pop()
            folder = Path(tempfile.mkdtemp(prefix="spe-mutant-"))
            running.append((job, folder, start(*job, folder), time.monotonic()))
        time.sleep(0.05)
        for entry in list(running):
            job, folder, process, begun = entry
            seconds = time.monotonic() - begun
            if process.is_alive() and seconds < TIME_LIMIT:
                continue
            process.kill()
            process.join()
            said = verdict(process, folder) if seconds < TIME_LIMIT else "BROKEN (time limit)"
            shutil.rmtree(folder)
            running.remove(entry)
            yield job, said, seconds


def main(words: list[str]) -> int:
    unknown = [w for w in words if not any(w in f"{f.file} {f.name}" for f in FAULTS)]
    if unknown:
        print(f"no fault has {' or '.join(map(repr, unknown))} in its name", file=sys.stderr)
        return 1
    chosen = [f for f in FAULTS if not words or any(w in f"{f.file} {f.name}" for w in words)]
    for known in chosen:
        apply(known, (ROOT / "spe" / known.file).read_text())  # all places exist
    jobs: list[Job] = [(None, tests) for tests in dict.fromkeys(TESTS[f.file] for f in chosen)]
    jobs += [(f, f.tests or TESTS[f.file]) for f in chosen]
    torch.set_num_threads(1)
    wrong = 0
    for (fault, tests), said, seconds in results(jobs):
        if fault is None:
            good = said == "SURVIVED"
            label, said = f"no fault: {' '.join(tests)}", "passes" if good else f"FAILS {said}"
        else:
            good = said.startswith("caught")
            label = f"{fault.file}: {fault.name}"
        wrong += not good
        print(f"{label:<50} {seconds:4.0f} s  {said}", flush=True)
    print(f"{len(chosen)} faults; {wrong} surprises")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
