"""Do runs one after another, in as many processes as asked for; killed at any time, it resumes."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import torch

from experiments import record
from experiments.runs import Run
from experiments.train import Busy, checkpoint_of, claim, folder_of, train
from spe.checks import check_count
from spe.data import DataNotFoundError
from spe.data.fetch import sweep


def say(line: str) -> None:
    """Print at once, with the time: the output is mostly a log file."""
    print(f"{time.strftime('%H:%M:%S')}  {line}", flush=True)


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def settle(device: str) -> None:
    """On the CPU, one thread per process, and memory that is kept for reuse."""
    if device == "cpu":
        torch.set_num_threads(1)
        keep_memory()


def keep_memory() -> None:
    """Tell glibc to keep freed memory.

    Training allocates the same large blocks in every step. By default glibc hands them back to
    the system each time, which costs a quarter of a step on the CPU.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return  # not glibc
    m_trim_threshold, m_top_pad, m_mmap_max = -1, -2, -4
    mallopt(m_mmap_max, 0)
    mallopt(m_trim_threshold, 2**31 - 1)
    mallopt(m_top_pad, 2**28)


def do_run(
    run: Run, budget: str = "cpu", device: str = "cpu", report: Callable[[str], None] = say
) -> bool:
    """Train, score and record one run, from where it stands; False if it was done already.

    The run is taken as it is; the budget says how it is scored and where its record goes.
    """
    checkpoint = checkpoint_of(run, budget)
    with claim(checkpoint.parent):
        for kept in (folder_of("runs", budget) / run.name, checkpoint):
            sweep(kept.parent, f".{kept.name}-*")
        if record.is_recorded(run, budget):
            checkpoint.unlink(missing_ok=True)  # a kill may have come right after recording
            report(f"{run.name}  is recorded already")
            return False
        settle(device)
        model, history = train(run, checkpoint, device, report, budget)
        report(f"{run.name}  trained, {history.seconds:.0f} s; scoring")
        folder = record.write(run, model, history, device, budget)
        checkpoint.unlink()
        report(f"{run.name}  recorded in {folder.name}/: {summary(run.name, budget)}")
    return True


def summary(name: str, budget: str) -> str:
    """The accuracies of a record in one line, in percent."""
    groups: dict[str, list[str]] = {}
    for row in record.load(name, budget).info["metrics"]:
        task = f"{row['test']} {row['classifier']} {row.get('shot', '')}".strip()
        groups.setdefault(task, []).append(f"{100 * row['accuracy']:.1f}")
    return "; ".join(f"{task}: {' '.join(numbers)}" for task, numbers in groups.items())


def work_through(runs: list[Run], budget: str, device: str) -> list[str]:
    """Do all runs that nobody else is doing; a failure is reported and the next one begins.

    Returns the names of those that failed. Several processes may work through the same list.
    """
    failed: dict[str, str] = {}
    progress = True
    while progress:
        progress = False
        for run in runs:
            if run.name in failed:
                continue
            try:
                progress |= not record.is_recorded(run, budget) and do_run(run, budget, device)
            except Busy:
                continue
            except (FloatingPointError, ValueError, RuntimeError, DataNotFoundError) as error:
                failed[run.name] = str(error)
                say(f"{run.name}  failed: {error}")
    return list(failed)


def work_in_parallel(names: list[str], budget: str, device: str, jobs: int) -> int:
    """Start `jobs` processes that work through the same list, and wait for them."""
    check_count("jobs", jobs)
    command = [sys.executable, "-m", "experiments", "work", "--budget", budget]
    command += ["--device", device, *names]
    workers: list[subprocess.Popen] = []

    def stop(*_: object) -> None:
        for worker in workers:
            worker.terminate()

    signal.signal(signal.SIGTERM, stop)
    try:
        for _ in range(jobs):
            workers.append(subprocess.Popen(command))
        codes = [worker.wait() for worker in workers]
        return 1 if any(codes) else 0
    except BaseException as error:  # Control-C, or a process that cannot be started
        stop()
        for worker in workers:  # each removes what it was writing
            worker.wait()
        if isinstance(error, KeyboardInterrupt):
            return 130
        raise
