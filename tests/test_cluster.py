"""Many machines: a real scheduler, real worker processes, and one of them killed."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import queue
from experiments.record import load
from experiments.runs import RUNS, at_budget
from experiments.train import checkpoint_of

distributed = pytest.importorskip("distributed")

ROOT = Path(__file__).parents[1]


def small_runs() -> list:
    """Three short runs that need no data on disk, long enough to be caught in the middle."""
    run = at_budget(RUNS["lshapes-spe-seed0"], "quick")
    change = {"updates": 30, "validate_every": 30, "shot": 1, "query": 1}
    return [replace(run, name=f"small-{seed}", seed=seed, **change) for seed in range(3)]


def start_worker(address: str, folder: Path) -> subprocess.Popen:
    """A worker process without a nanny, which would start it again."""
    command = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-nanny"]
    command += ["--nthreads", "1", "--no-dashboard", "--local-directory", str(folder / "dask")]
    environment = os.environ | {
        "SPE_RUNS": str(folder),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, cwd=folder, env=environment, **quiet)


@pytest.mark.filterwarnings("default")  # distributed's own
def test_a_killed_workers_run_resumes_elsewhere_and_all_records_equal_the_serial_ones(
    tmp_path, monkeypatch, capsys
):
    from experiments.cluster import run_on_cluster

    runs = small_runs()
    shared, serial = tmp_path / "shared", tmp_path / "serial"
    shared.mkdir()
    monkeypatch.setenv("SPE_RUNS", str(shared))
    cluster = distributed.LocalCluster(
        n_workers=0, host="127.0.0.1", dashboard_address=None, silence_logs=50
    )
    with cluster:
        address = cluster.scheduler_address
        workers = [start_worker(address, shared) for _ in range(2)]
        try:
            result = []
            client = threading.Thread(
                target=lambda: result.append(run_on_cluster(address, runs, "quick"))
            )
            with distributed.Client(address) as watcher:
                watcher.wait_for_workers(2, timeout=120)
                client.start()
                victim = wait_for_a_checkpoint(watcher, runs)
            begun = {run.name for run in runs if checkpoint_of(run, "quick").exists()}
            os.kill(victim, signal.SIGKILL)
            client.join(timeout=400)
            assert result == [0]
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    assert -signal.SIGKILL in [worker.returncode for worker in workers]
    assert begun  # something was there to be resumed
    said = capsys.readouterr().out
    assert all(f"{run.name}  done" in said for run in runs)

    found = {run.name: load(run.name, "quick") for run in runs}
    monkeypatch.setenv("SPE_RUNS", str(serial))
    for run in runs:
        queue.do_run(run, "quick", report=str)
        alone, away = load(run.name, "quick"), found[run.name]
        assert away.info["metrics"] == alone.info["metrics"]
        assert without_time(away.info["curve"]) == without_time(alone.info["curve"])
        weights = "model.safetensors"
        assert (away.folder / weights).read_bytes() == (alone.folder / weights).read_bytes()


def wait_for_a_checkpoint(watcher, runs) -> int:
    """The process id of a worker whose run has a checkpoint and is still under way."""
    pids = watcher.run(os.getpid)
    for _ in range(1200):
        for worker, tasks in watcher.processing().items():
            for run in runs:
                busy = any(run.name in str(task) for task in tasks)
                if busy and checkpoint_of(run, "quick").exists():
                    return pids[worker]
        time.sleep(0.1)
    raise AssertionError("no run got as far as a checkpoint")


def without_time(curve: list[dict]) -> list[dict]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in curve]


def test_records_that_are_made_on_another_disk_are_brought_home(tmp_path, monkeypatch):
    from experiments import cluster

    run, home, away = small_runs()[0], tmp_path / "home", tmp_path / "away"
    monkeypatch.setenv("SPE_RUNS", str(away))

    def do_run(run, budget, device):
        folder = away / "runs-quick" / run.name
        folder.mkdir(parents=True)
        (folder / "run.json").write_text('{"metrics": []}')
        (folder / "model.safetensors").write_bytes(b"weights")

    monkeypatch.setattr(cluster, "do_run", do_run)
    files = cluster._do_on_worker(run, "quick", "cpu")
    monkeypatch.setenv("SPE_RUNS", str(home))
    cluster._keep(run, "quick", files)
    assert load(run.name, "quick").info == {"metrics": []}
    folder = home / "runs-quick" / run.name
    assert (folder / "model.safetensors").read_bytes() == b"weights"


@pytest.mark.filterwarnings("default")  # distributed's own
def test_a_run_that_fails_by_itself_is_reported_and_not_tried_again(tmp_path, monkeypatch, capsys):
    from experiments import cluster

    tries = tmp_path / "tries"
    monkeypatch.setenv("SPE_RUNS", str(tmp_path))

    def diverge(run, budget, device):
        with tries.open("a") as file:
            file.write(f"{run.name} ")
        raise FloatingPointError("the loss stopped being finite")

    monkeypatch.setattr(cluster, "_do_on_worker", diverge)
    quiet = {"processes": False, "dashboard_address": None, "silence_logs": 50}
    with distributed.LocalCluster(1, host="127.0.0.1", protocol="tcp://", **quiet) as threads:
        assert cluster.run_on_cluster(threads.scheduler_address, small_runs()[:1], "quick") == 1
    assert tries.read_text() == "small-0 "
    assert "small-0  failed: the loss stopped being finite" in capsys.readouterr().out


def test_without_dask_the_message_names_what_to_install(monkeypatch):
    from experiments.cluster import run_on_cluster

    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ValueError, match="pip install distributed"):
        run_on_cluster("local", small_runs(), "quick")


def test_what_a_killed_copy_left_does_not_stand_in_the_way(tmp_path):
    from experiments.record import put

    folder = tmp_path / "small-0"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"half")
    put(folder, {"run.json": b"{}"})
    assert [path.name for path in folder.iterdir()] == ["run.json"]
    with pytest.raises(OSError, match="not empty"):
        put(folder, {"run.json": b"{}"})  # a record is never replaced
    assert [path.name for path in tmp_path.iterdir()] == ["small-0"]
