"""Many machines: every run is a Dask task (chapter 19).

Workers import this package and write checkpoints and records to their own data/ folder, or to
SPE_RUNS. If workers share that folder, a run whose worker is lost goes on from its checkpoint on
another; if they do not, it starts again. Dask gives a run up when it has lost more workers than
the scheduler's `allowed-failures`. Records come back to the caller either way.
"""

from __future__ import annotations

import os
import time

from experiments import record
from experiments.queue import do_run, say
from experiments.runs import Run
from experiments.train import Busy, folder_of


def run_on_cluster(address: str, runs: list[Run], budget: str) -> int:
    """Do all runs that are not recorded here; `address` is a scheduler's, or "local".

    Workers started with --resources "GPU=1" do one run at a time, each on its GPU. Returns the
    number of runs that failed.
    """
    try:
        from distributed import Client, LocalCluster, as_completed
    except ImportError as error:
        raise ValueError("--cluster needs Dask: pip install distributed") from error

    missing = [run for run in runs if not record.is_recorded(run, budget)]
    local = address == "local"
    failed = 0
    with Client(LocalCluster(os.cpu_count(), threads_per_worker=1) if local else address) as client:
        client.wait_for_workers(1)  # it decides between GPU and CPU
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        on_gpu = any("GPU" in worker["resources"] for worker in workers)
        say(f"{len(missing)} runs to do, {len(workers)} workers{', on GPUs' if on_gpu else ''}")
        futures = {
            client.submit(
                _do_on_worker, run, budget, "cuda" if on_gpu else "cpu",
                key=f"{run.name}-{budget}", pure=False, priority=-rank,
                resources={"GPU": 1} if on_gpu else None,
            ): run
            for rank, run in enumerate(missing)
        }  # fmt: skip
        for future in as_completed(futures):
            run = futures[future]
            if future.status == "finished":
                _keep(run, budget, future.result())
                say(f"{run.name}  done")
            else:
                failed += 1
                say(f"{run.name}  failed: {future.exception()}")
            future.release()
    return failed


def _do_on_worker(run: Run, budget: str, device: str) -> dict[str, bytes]:
    """Do a run on a worker and hand over the files of its record."""
    while True:
        try:
            do_run(run, budget, device)
            break
        except Busy:  # a worker that the scheduler has given up may still be at it
            time.sleep(5)
    folder = folder_of("runs", budget) / run.name
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _keep(run: Run, budget: str, files: dict[str, bytes]) -> None:
    """Write a record that was made on another disk."""
    if not record.is_done(run.name, budget):
        record.put(folder_of("runs", budget) / run.name, files)
