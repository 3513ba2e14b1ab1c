"""Runs are claimed, killed and resumed, and nothing half-written stays behind."""

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from experiments import ledger, queue, record
from experiments.__main__ import main
from experiments.runs import RUNS, at_budget
from experiments.train import build_model, checkpoint_of, claim

ROOT = Path(__file__).parents[1]
RUN = at_budget(RUNS["lshapes-spe-seed0"], "quick")


@pytest.fixture
def elsewhere(tmp_path, monkeypatch) -> Path:
    """Records and checkpoints go to a folder of the test's own."""
    monkeypatch.setenv("SPE_RUNS", str(tmp_path))
    return tmp_path


def make_record(folder: Path) -> Path:
    """A record of RUN, as far as the queue looks at it."""
    path = folder / "runs-quick" / RUN.name
    path.mkdir(parents=True)
    (path / "run.json").write_text(json.dumps({"definition": asdict(RUN)}))
    return path


def test_a_disk_that_cannot_lock_is_no_run_at_work(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError, match="not implemented"), claim(tmp_path / "run"):
        pass


def test_threads_that_build_models_at_once_get_the_weights_of_their_seeds(monkeypatch):
    runs = [replace(RUN, seed=seed) for seed in range(3)]
    alone = [build_model(run).state_dict() for run in runs]
    seed = torch.manual_seed

    def slowly(number):
        seed(number)
        time.sleep(0.1)  # the others get their turn

    monkeypatch.setattr(torch, "manual_seed", slowly)
    built = {}
    threads = [
        threading.Thread(target=lambda run=run: built.update({run.seed: build_model(run)}))
        for run in runs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for run, expected in zip(runs, alone, strict=True):
        found = built[run.seed].state_dict()
        assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_a_plain_kill_leaves_nothing_half_written(elsewhere):
    code = """
import os, runpy, sys, time

def slowly(_):
    print("half-written", flush=True)
    time.sleep(60)

os.fsync = slowly
sys.argv = ["experiments", "train", "lshapes-spe-seed0", "--budget", "quick", "--device", "cpu"]
runpy.run_module("experiments", run_name="__main__")
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert any("half-written" in line for line in child.stdout)
        assert len([path for path in elsewhere.rglob("*-*") if path.is_file()]) == 1
        child.send_signal(signal.SIGTERM)
        assert child.wait() == 143
    assert [path.name for path in elsewhere.rglob("*") if path.is_file()] == ["lock"]


def test_what_a_killed_process_left_is_swept_up_after_an_hour(elsewhere):
    folder, checkpoint = make_record(elsewhere), checkpoint_of(RUN, "quick")
    checkpoint.parent.mkdir(parents=True)
    old = [folder.with_name(f".{RUN.name}-old"), checkpoint.with_name(f".{checkpoint.name}-old")]
    young = [path.with_name(path.name.replace("-old", "-young")) for path in old]
    for draft, half in (old, young):
        draft.mkdir()
        (draft / "run.json").touch()
        half.touch()
    for path in old:
        os.utime(path, (time.time() - 4000,) * 2)
    assert not queue.do_run(RUN, "quick", report=str)
    assert not any(path.exists() for path in old)
    assert all(path.exists() for path in (*young, folder / "run.json"))


def test_a_recorded_run_keeps_no_checkpoint_to_be_resumed_from(elsewhere):
    make_record(elsewhere)
    checkpoint = checkpoint_of(RUN, "quick")
    checkpoint.parent.mkdir(parents=True)
    checkpoint.touch()
    assert not queue.do_run(RUN, "quick", report=str)
    assert not checkpoint.exists()


def test_a_record_of_other_settings_is_not_taken_for_the_run(elsewhere):
    make_record(elsewhere)
    other = replace(RUN, estimator="bound")
    with pytest.raises(ValueError, match=f"{RUN.name} is recorded with other settings"):
        queue.do_run(other, "quick", report=str)
    assert queue.work_through([other], "quick", "cpu") == [RUN.name]


def test_nobody_takes_a_record_of_other_settings_for_done(elsewhere, monkeypatch, capsys):
    folder = make_record(elsewhere)
    other = asdict(replace(RUN, peak_lr=1.0))
    about = {"definition": other, "training_seconds": 1.0, "updates": 1}
    (folder / "run.json").write_text(json.dumps(about))
    assert main(["train", RUN.name, "--budget", "quick"]) == 2
    assert f"{RUN.name} is recorded with other settings" in capsys.readouterr().err
    (row,) = (row for row in ledger.status("quick") if row["name"] == RUN.name)
    assert row["status"] == "outdated"
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # a smoke test would begin afresh
    assert main(["reproduce", "--budget", "quick", "--only", RUN.name]) == 2
    assert f"{RUN.name} is recorded with other settings" in capsys.readouterr().err


def test_workers_are_stopped_if_one_of_them_cannot_start(monkeypatch):
    said, handlers = [], []

    class Worker:
        def __init__(self, command):
            assert handlers  # a kill would find it
            if said:
                raise OSError("no more processes")
            said.append("started")

        def terminate(self):
            said.append("terminate")

        def wait(self):
            said.append("wait")

    monkeypatch.setattr(queue.subprocess, "Popen", Worker)
    monkeypatch.setattr(queue.signal, "signal", lambda *given: handlers.append(given))
    with pytest.raises(OSError, match="no more"):
        queue.work_in_parallel(["a"], "quick", "cpu", 2)
    assert said == ["started", "terminate", "wait"]


def test_an_interrupted_queue_waits_for_its_workers(monkeypatch):
    said = []

    class Worker:
        def __init__(self, command):
            pass

        def terminate(self):
            said.append("terminate")

        def wait(self):
            said.append("wait")
            if len(said) == 1:
                raise KeyboardInterrupt
            return 143

    monkeypatch.setattr(queue.subprocess, "Popen", Worker)
    monkeypatch.setattr(queue.signal, "signal", lambda *_: None)
    assert queue.work_in_parallel(["a"], "quick", "cpu", 2) == 130
    assert said == ["wait", "terminate", "terminate", "wait", "wait"]


@pytest.mark.parametrize("device", ["cuda:99", "gpu"])
def test_a_device_that_is_not_there_is_named_without_a_traceback(device, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["train", RUN.name, "--device", device])
    assert f"argument --device: '{device}' cannot be used here: " in capsys.readouterr().err


def test_a_record_names_the_gpu_that_was_asked_for(monkeypatch):
    cards = {"cuda": "the first", "cuda:1": "the second"}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device="cuda": cards[device])
    assert record._name_of("cuda:1") == "the second"
    assert record._name_of("cuda") == "the first"
    assert record._name_of("cpu") == "cpu"
