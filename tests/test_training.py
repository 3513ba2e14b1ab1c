"""The loop learns, validates honestly, keeps the best weights, and survives a kill."""

import json
import math
import signal
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from blobs import blobs, model
from torch import nn

import spe
from spe.evaluation import (
    embed_set,
    episode_indices,
    leave_one_out_neighbours,
    mean_rule,
    score_episodes,
    stochastic_rule,
)
from spe.gaussian import Gaussian
from spe.training import Diverged, fit, learning_rate, write_atomically

TRAIN, HELD_OUT = blobs(60, 20, seed=0), blobs(20, 20, seed=1)


def draw(net: nn.Module):
    """A function that draws what the model is trained on."""
    if net.kind == "pairs":
        return lambda generator: spe.sample_pairs(TRAIN, 20, 5, 128, generator)
    return lambda generator: spe.sample_episode(TRAIN, 20, 5, 5, generator)


def train(net: nn.Module, updates: int = 250, **other):
    return fit(
        net, draw(net), updates=updates, generator=torch.Generator().manual_seed(0),
        **({"peak_lr": 1e-2} | other),
    )  # fmt: skip


def held_out_accuracy(net: nn.Module) -> float:
    """Twenty classes never trained on: prototypes of 5, or five nearest neighbours."""
    embedded, _ = embed_set(net, HELD_OUT)
    if net.kind == "pairs":
        flat = Gaussian(embedded.mean.flatten(0, 1), embedded.var.flatten(0, 1))
        labels = torch.arange(20).repeat_interleave(20)
        return leave_one_out_neighbours(flat, flat, labels).float().mean().item()
    rule = stochastic_rule(net.noise.item()) if hasattr(net, "noise") else mean_rule
    indices = episode_indices(20, 20, 20, 15, 10, seed=0)
    return score_episodes(embedded, embedded, *indices, 5, rule)["accuracy"].mean().item()


@pytest.mark.parametrize("method", ["SPE", "PN", "HIB", "Contrastive"])
def test_each_model_learns_to_tell_classes_apart_that_it_never_saw(method):
    net = model(method)
    before = held_out_accuracy(net)
    history = train(net)
    assert held_out_accuracy(net) > max(0.6, before + 0.1)  # chance is 0.05
    assert history.stopped == "finished"
    assert history.updates == 250


def test_one_intersection_sample_teaches_more_than_one_naive_sample():
    """Where images are uncertain: occluded ones for training, and as support of the test."""
    data, score = blobs(100, 20, seed=0), {}
    indices = episode_indices(20, 20, 20, 15, 10, seed=0)
    for estimator in ("intersection", "naive"):
        net = model("SPE", seed=1, estimator=estimator, n_samples=1)
        fit(
            net, lambda generator: spe.sample_episode(data, 60, 5, 3, generator, occlude=0.8),
            updates=120, peak_lr=1e-2, generator=torch.Generator().manual_seed(1),
        )  # fmt: skip
        clean, _ = embed_set(net, HELD_OUT)
        occluded, _ = embed_set(net, HELD_OUT, 1.0, torch.Generator().manual_seed(1))
        rule = stochastic_rule(net.noise.item())
        score[estimator] = score_episodes(occluded, clean, *indices, 5, rule)
    gain = {
        key: (score["intersection"][key] - score["naive"][key]).mean() for key in score["naive"]
    }
    assert gain["accuracy"] > 0.02
    assert gain["log_likelihood"] > 0.1


def test_the_best_weights_come_back_and_not_the_last():
    scores = iter([0.1, 0.9, 0.3, 0.2])
    seen = []

    def validate(net):
        seen.append({k: v.clone() for k, v in net.state_dict().items()})
        return {"accuracy": next(scores)}

    net = model("PN")
    history = train(net, 8, validate=validate, validate_every=2)
    assert history.best_update == 4
    assert history.best_score == 0.9
    for name, value in net.state_dict().items():
        assert torch.equal(value, seen[1][name])
    assert not torch.equal(seen[1]["encoder.net.0.weight"], seen[3]["encoder.net.0.weight"])


def test_patience_stops_a_run_that_no_longer_improves():
    scores = iter([0.5, 0.6, 0.6, 0.4, 0.9])
    history = train(
        model("PN"),
        100,
        validate=lambda _: {"accuracy": next(scores)},
        validate_every=2,
        patience=2,
    )
    assert history.stopped == "patience"
    assert history.updates == 8
    assert history.best_update == 4


def test_validation_sees_batch_norm_in_evaluation_mode_and_training_goes_on_in_training_mode():
    modes, net = [], model("PN")

    def sample(generator):
        modes.append(net.training)
        return spe.sample_episode(TRAIN, 5, 1, 1, generator)

    def validate(net):
        modes.append(net.training)
        return {"accuracy": 0.0}

    fit(net, sample, updates=4, generator=torch.Generator(), validate=validate, validate_every=2)
    assert modes == [True, True, False, True, True, False]
    assert not net.training


def test_the_one_cycle_schedule_rises_for_30_percent_and_ends_at_zero():
    rates = [learning_rate(i, 1000, "onecycle", 3e-3, 0) for i in range(1000)]
    assert max(rates) == pytest.approx(3e-3, rel=1e-3)
    assert rates.index(max(rates)) == 300
    assert rates[0] == pytest.approx(3e-3 / 25)
    assert rates[-1] < 1e-7
    assert rates[:301] == sorted(rates[:301])
    assert rates[300:] == sorted(rates[300:], reverse=True)


def test_the_papers_schedule_halves_every_fifty_epochs():
    rates = [learning_rate(i, 20_000, "halving", 1e-3, 5000) for i in (0, 4999, 5000, 14_999)]
    assert rates == [1e-3, 1e-3, 5e-4, 2.5e-4]


def test_an_unknown_schedule_is_refused_by_name():
    with pytest.raises(ValueError, match=r"schedule.*'cosinus'.*onecycle"):
        train(model("PN"), schedule="cosinus")


class Fragile(nn.Module):
    """A model whose loss turns into NaN at a chosen update."""

    def __init__(self, breaks_at: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.count, self.breaks_at = 0, breaks_at

    def loss(self, batch, generator=None):
        self.count += 1
        return self.weight.square().sum() * (math.nan if self.count == self.breaks_at else 1.0)


def test_a_loss_that_is_not_finite_stops_the_run_and_the_model_keeps_its_best_weights():
    net, validated = Fragile(breaks_at=70), []

    def validate(net):
        validated.append(net.weight.item())
        return {"accuracy": len(validated)}

    with pytest.raises(Diverged, match=r"the loss .* update 80; the model holds the best weights"):
        fit(
            net, lambda generator: None, updates=500, generator=torch.Generator(),
            validate=validate, validate_every=20,
        )  # fmt: skip
    assert len(validated) == 3
    assert net.weight.item() == validated[-1]  # of update 60


def test_a_weight_that_is_not_finite_never_reaches_the_checkpoint(tmp_path):
    from safetensors.torch import load_file

    net, checkpoint = Fragile(breaks_at=70), tmp_path / "c.safetensors"
    with pytest.raises(Diverged, match=r"a weight .* update 70; .*c\.safetensors the last good"):
        fit(
            net, lambda generator: None, updates=500, generator=torch.Generator(),
            checkpoint=checkpoint, checkpoint_seconds=0.0,
        )  # fmt: skip
    assert load_file(checkpoint)["model.weight"].isfinite().all()


def test_a_finished_run_is_not_trained_again(tmp_path):
    first, second = model("SPE"), model("SPE", seed=1)
    train(first, 5, checkpoint=tmp_path / "c.safetensors")
    history = fit(
        second, lambda generator: pytest.fail("drew a batch"), updates=5, peak_lr=1e-2,
        generator=torch.Generator(), checkpoint=tmp_path / "c.safetensors",
    )  # fmt: skip
    assert history.updates == 5
    assert all(
        torch.equal(a, b)
        for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )


def test_a_checkpoint_of_other_settings_is_refused(tmp_path):
    train(model("PN"), 5, checkpoint=tmp_path / "c.safetensors")
    with pytest.raises(ValueError, match=r"other settings.*'updates': 5.*'updates': 6"):
        train(model("PN"), 6, checkpoint=tmp_path / "c.safetensors")


def test_a_file_that_is_no_checkpoint_of_the_model_is_named_with_the_remedy(tmp_path):
    from safetensors.torch import save_file

    path = tmp_path / "c.safetensors"
    says = r"c\.safetensors is no checkpoint .*; delete the file to start afresh"
    path.mkdir()
    with pytest.raises(ValueError, match=says):
        train(model("PN"), 5, checkpoint=path)
    path.rmdir()
    path.write_bytes(b"not a safetensors file")
    with pytest.raises(ValueError, match=says):
        train(model("PN"), 5, checkpoint=path)
    for metadata in (None, {"state": "{}"}, {"state": "half a"}):
        save_file({"a": torch.zeros(1)}, path, metadata=metadata)
        with pytest.raises(ValueError, match=says):
            train(model("PN"), 5, checkpoint=path)
    for before, after in (("SPE", "PN"), ("PN", "SPE"), ("PN", "HIB")):
        path.unlink()
        train(model(before), 5, checkpoint=path)
        with pytest.raises(ValueError, match=r"(?s)does not fit this model .*delete the file"):
            train(model(after), 5, checkpoint=path)


def test_a_run_begun_on_another_device_is_not_resumed(tmp_path):
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    path = str(tmp_path / "c.safetensors")  # a name will do
    train(model("PN"), np.int64(5), checkpoint=path)
    with safe_open(path, "pt") as file:
        state = json.loads(file.metadata()["state"])
    tensors, settings = load_file(path), state["settings"]
    assert settings["device"] == "cpu"
    settings["device"] = "cuda"
    save_file(tensors, path, metadata={"state": json.dumps(state)})
    with pytest.raises(ValueError, match=r"'device': 'cuda'.*'device': 'cpu'"):
        train(model("PN"), 5, checkpoint=path)
    del settings["device"]  # as it was in older checkpoints
    save_file(tensors, path, metadata={"state": json.dumps(state)})
    assert train(model("PN"), 5, checkpoint=path).updates == 5


def test_half_precision_trains_too_and_the_encoder_is_left_as_it_was():
    net = model("SPE")
    before = held_out_accuracy(net)
    train(net, 150, mixed_precision=True)
    assert held_out_accuracy(net) > before + 0.2
    assert net.embed(HELD_OUT.tiles[:4]).mean.dtype == torch.float32
    assert "forward" not in vars(net.encoder)


def test_a_copy_made_while_half_precision_is_on_has_weights_of_its_own():
    """Such as a running mean of the weights, made in a validation."""
    images, copies = HELD_OUT.tiles[:4], []

    def validate(net):
        copies.append(deepcopy(net))
        with torch.no_grad():
            for p in copies[-1].parameters():
                p.zero_()
        assert net.embed(images).mean.any()
        assert not copies[-1].embed(images).mean.any()
        return {"accuracy": 1.0}

    train(model("SPE"), 5, mixed_precision=True, validate=validate)
    assert copies


def test_only_a_terminal_sees_a_progress_bar(monkeypatch, capfd):
    train(model("PN"), 3)
    assert capfd.readouterr() == ("", "")
    train(model("PN"), 3, progress=True)
    assert "3/3" in capfd.readouterr().err
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    train(model("PN"), 3)
    assert "3/3" in capfd.readouterr().err
    train(model("PN"), 3, progress=False)
    assert capfd.readouterr() == ("", "")


def run_to_the_end(checkpoint: Path, report=None) -> nn.Module:
    """A run with batch norm, random samples and a best state that is not the last."""
    net = model("SPE")

    def validate(net):
        return {"accuracy": -abs(net.encoder.net[0].weight.norm().item() - 1.5)}

    fit(
        net, draw(net), updates=120, peak_lr=1e-2, generator=torch.Generator().manual_seed(3),
        validate=validate, validate_every=20, checkpoint=checkpoint, checkpoint_seconds=0.1,
        report=report,
    )  # fmt: skip
    return net


def test_a_run_killed_at_any_moment_ends_bit_identical_to_one_that_was_not(tmp_path, one_thread):
    tests = Path(__file__).parent
    code = (
        f"import sys, torch; sys.path[:0] = [{str(tests)!r}, {str(tests.parent)!r}]\n"
        "torch.set_num_threads(1)\n"
        "from test_training import *\n"
        "run_to_the_end(Path(sys.argv[1]), report=lambda row: print(row['update'], flush=True))"
    )
    checkpoint = tmp_path / "killed.safetensors"
    command = [sys.executable, "-c", code, str(checkpoint)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        while not checkpoint.exists() or not child.stdout.readline():
            assert child.poll() is None
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL

    resumed_at = []
    killed = run_to_the_end(checkpoint, report=lambda row: resumed_at.append(row["update"]))
    whole = run_to_the_end(tmp_path / "whole.safetensors")
    assert 20 <= resumed_at[0] <= 120
    for name, value in whole.state_dict().items():
        assert torch.equal(value, killed.state_dict()[name]), name


@pytest.mark.parametrize("method", ["PN", "HIB", "Contrastive"])
def test_every_model_resumes_where_it_was_interrupted(method, tmp_path, one_thread):
    class Interrupted(Exception):
        pass

    def interrupt(row):
        if row["update"] == 10:
            raise Interrupted

    def run(checkpoint, report=None):
        net = model(method)
        train(
            net, 30, validate=lambda _: {"accuracy": 0.0}, validate_every=5, report=report,
            checkpoint=checkpoint, checkpoint_seconds=0.0,
        )  # fmt: skip
        return net.state_dict()

    with pytest.raises(Interrupted):
        run(tmp_path / "a", interrupt)
    again, whole = run(tmp_path / "a"), run(tmp_path / "b")
    assert all(torch.equal(again[name], value) for name, value in whole.items())


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("score", [math.nan, -math.inf])
def test_a_score_that_is_not_finite_stops_the_run(score):
    net = Fragile(breaks_at=-1)
    with pytest.raises(Diverged, match="the score 'accuracy' stopped being finite"):
        fit(
            net, lambda generator: None, updates=50, generator=torch.Generator(),
            validate=lambda net: {"accuracy": score}, validate_every=20,
        )  # fmt: skip


def test_an_unknown_score_and_a_length_of_zero_are_named():
    def attempt(**other):
        fit(
            Fragile(breaks_at=-1), lambda generator: None, updates=9, generator=torch.Generator(),
            **{"validate": lambda net: {"accuracy": 1.0}, **other},
        )  # fmt: skip

    for select in ("acuracy", "loss"):  # a loss would be maximised
        with pytest.raises(ValueError, match=f"select='{select}'; expected one of accuracy$"):
            attempt(select=select)
    for name in ("validate_every", "halve_every", "patience"):
        with pytest.raises(ValueError, match=f"{name}=0; expected an integer of at least 1"):
            attempt(**{name: 0})
    for taken in ("lr", "seconds"):
        with pytest.raises(ValueError, match=f"validate returns {taken}, which fit records itself"):
            attempt(validate=lambda net, taken=taken: {"accuracy": 1.0, taken: 1.0})
    with pytest.raises(ValueError, match="patience=2 counts validations, and validate is None"):
        attempt(patience=2, validate=None)


def test_a_model_is_left_in_evaluation_mode_whatever_happens():
    def interrupted(generator):
        raise KeyboardInterrupt

    net = model("PN")
    with pytest.raises(KeyboardInterrupt):
        fit(net, interrupted, updates=2, generator=torch.Generator())
    assert not net.training


def test_without_safetensors_a_run_with_a_checkpoint_does_not_even_begin(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    net, drawn = model("PN"), []
    with pytest.raises(ImportError, match="safetensors"):
        fit(net, drawn.append, updates=2, generator=torch.Generator(), checkpoint=tmp_path / "c")
    assert not drawn


class Idle(Fragile):
    """A model with a weight that never gets a gradient."""

    def __init__(self) -> None:
        super().__init__(breaks_at=-1)
        self.idle = nn.Parameter(torch.ones(2))


def test_a_run_with_an_idle_weight_resumes_too(tmp_path):
    def go(net, checkpoint, stop_at):
        def draw(generator):
            if net.count == stop_at:
                raise KeyboardInterrupt
            return torch.rand(1, generator=generator)

        return fit(
            net, draw, updates=20, generator=torch.Generator().manual_seed(0),
            checkpoint=checkpoint, checkpoint_seconds=0.0,
        )  # fmt: skip

    whole, first, second = Idle(), Idle(), Idle()
    go(whole, None, -1)
    with pytest.raises(KeyboardInterrupt):
        go(first, tmp_path / "c.safetensors", 7)
    go(second, tmp_path / "c.safetensors", -1)
    assert torch.equal(whole.weight, second.weight)
    assert second.count == 20 - 7


def test_a_file_written_atomically_can_be_read_by_all_who_may(tmp_path):
    write_atomically(tmp_path / "a", b"x")
    (tmp_path / "b").write_bytes(b"x")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode
