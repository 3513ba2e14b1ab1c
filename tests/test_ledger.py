"""Runs have names and definitions, records agree with what is stored, the ledger adds up."""

import json
import math
import os
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from blobs import blobs

import spe
from experiments import ledger, queue, record
from experiments.__main__ import main
from experiments.record import load, score
from experiments.runs import BETAS, HIB_BETA, RUNS, at_budget, find, select
from experiments.train import (
    CONDITIONS,
    Busy,
    build_model,
    checkpoint_of,
    claim,
    folder_of,
    mislabelled,
    validator,
)
from spe.data import DataNotFoundError, ImageSet
from spe.training import History

ROOT = Path(__file__).parents[1]
RECORDED = sorted(path.parent.name for path in (ROOT / "data" / "runs").glob("*/run.json"))
KEPT = [name for name in RECORDED if (ROOT / "data/runs" / name / "model.safetensors").exists()]


@pytest.fixture
def elsewhere(tmp_path, monkeypatch) -> Path:
    """Records and checkpoints go to a folder of the test's own."""
    monkeypatch.setenv("SPE_RUNS", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def smoke(tmp_path_factory) -> Path:
    """A run of a few updates, recorded; L shapes need no data on disk."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPE_RUNS", str(folder))
        assert main(["reproduce", "--budget", "quick", "--only", "lshapes-spe-seed0"]) == 0
    return folder


def test_every_cell_of_the_papers_tables_has_runs_that_fill_it():
    for cell in ledger.cells():
        runs, wanted = ledger._runs_of(
            *(cell[k] for k in ("table", "method", "condition", "column"))
        )
        assert runs, cell
        assert all(run.method == cell["method"] for run in runs)
        assert wanted["classifier"] == ledger.CLASSIFIER[cell["method"]]


def test_every_run_of_a_cell_is_scored_in_that_cell():
    for cell in ledger.cells():
        keys = ("table", "method", "condition", "column")
        runs, wanted = ledger._runs_of(*(cell[k] for k in keys))
        wanted["condition"] = cell["condition"]
        for run in runs:
            stored = {f"{test}.clean.mean": torch.zeros(100, 1) for test in record.TESTS[run.data]}
            plan = record._plan(run, stored)
            assert sum(wanted.items() <= row.items() for row in plan) == 1, (run.name, wanted)


def test_short_clean_runs_are_scored_on_clean_images_alone():
    stored = {"test.clean.mean": torch.zeros(100, 1)}
    for name, conditions in (
        ("sampler-naive-s1-rep0", 1),
        ("omniglot-2d-spe-1shot-clean-seed0", 3),
    ):
        rows = record._plan(RUNS[name], stored)
        assert len({row["condition"] for row in rows}) == conditions


def test_omniglot_cells_come_from_models_trained_for_their_column():
    for condition, images in (
        ("clean_support_clean_query", 0.0),
        ("corrupt_support_clean_query", 0.2),
        ("clean_support_corrupt_query", 0.2),
    ):
        for column, shot in (("1-shot 20-class", 1), ("5-shot 5-class", 5)):
            runs, wanted = ledger._runs_of("omniglot_2d", "PN", condition, column)
            assert {(run.shot, run.occlude, run.split) for run in runs} == {(shot, images, 0)}
            assert wanted["shot"] == shot


def test_spe_and_its_sibling_train_under_the_same_settings():
    for name, run in RUNS.items():
        if run.method == "SPE" and name.replace("-spe", "-pn") in RUNS:
            sibling = RUNS[name.replace("-spe", "-pn")]
            assert replace(sibling, name=name, method="SPE") == run


def test_the_rivals_train_on_the_same_classes_and_hib_of_the_tables_on_as_many_images():
    pairs = [
        (run, RUNS[name])
        for run in RUNS.values()
        if run.pairs and (name := run.name.replace(run.method.lower(), "pn")) in RUNS
    ]
    assert len(pairs) == 2 * 4 + 3
    for run, sibling in pairs:
        assert (run.way, run.shot) == (sibling.way, sibling.shot)
        images = sibling.updates * (sibling.shot + sibling.query)
        half = run.name.startswith(("mislabel", "ndigit2-d2-contr", "ndigit2-d3-contr"))
        assert run.updates * run.shot == (images // 2 if half else images)


def test_hib_has_the_beta_of_its_dimension_which_in_the_plane_is_the_best_of_the_sweep():
    for run in RUNS.values():
        if run.method == "HIB" and "-beta" not in run.name:
            assert run.beta == HIB_BETA[run.d]
    best = {
        float(beta): max(
            row["accuracy"] for row in load(f"ndigit2-d2-hib-beta{beta}").info["curve"]
        )
        for beta in BETAS
    }
    assert max(best, key=best.__getitem__) == HIB_BETA[2]


@pytest.mark.parametrize("name", RECORDED)
def test_a_record_was_made_with_the_settings_that_its_name_stands_for(name):
    assert load(name).run == RUNS[name]


def test_runs_come_in_the_order_of_their_importance():
    groups = [run.group for run in RUNS.values()]
    assert groups == sorted(groups)
    assert set(groups) == set(range(1, 8))


def test_the_sampler_figure_compares_both_samplers_at_one_budget():
    runs = select("sampler-*")
    assert len(runs) == 2 * 5 * 5
    changed = {"name": "", "estimator": "", "n_samples": 0, "seed": 0}
    assert len({replace(run, **changed) for run in runs}) == 1
    assert all(run.name.endswith(("rep0", "rep1", "rep2")) for run in runs[:30])


def test_variants_differ_from_their_baseline_in_one_thing_alone():
    free = {"name": "", "group": 0}
    for base, pattern in (
        ("sampler-intersection-s1-rep0", "*-omniglot-rep0"),
        ("intersection-ndigit2-d2-seed0", "*-ndigit2-d2-seed0"),
    ):
        for run in select(pattern):
            changed = {
                key
                for key, value in asdict(replace(run, **free)).items()
                if value != asdict(replace(RUNS[base], **free))[key]
            }
            assert changed in (set(), {"estimator"}, {"n_samples", "points"}, {"gamma"})


def test_wrong_labels_are_right_labels_shuffled():
    n, per_class = 10, 40
    ids = torch.arange(n * per_class).reshape(n, per_class, 1)
    counts = torch.full((n,), per_class)
    counts[3] = 7  # the slots behind are never drawn
    tiles = torch.zeros(n * per_class, 1, 1, 1, dtype=torch.uint8)
    data = ImageSet(tiles, ids, counts, tuple("abcdefghij"))
    shuffled = mislabelled(data, 0.4, seed=0)
    real = torch.arange(per_class) < counts[:, None]
    assert torch.equal(shuffled.ids[real].sort(0).values, ids[real].sort(0).values)
    assert torch.equal(shuffled.ids[~real], ids[~real])
    wrong = (shuffled.ids[real] // per_class != ids[real] // per_class).double().mean()
    assert 0.3 < wrong <= 0.4
    assert torch.equal(mislabelled(data, 0.0, seed=0).ids, ids)


@pytest.mark.parametrize("name", RUNS)
def test_every_run_can_be_built_at_every_budget(name):
    for budget in ("quick", "cpu", "paper"):
        run = at_budget(RUNS[name], budget)
        assert (run.pairs > 0) == (run.method in ("HIB", "Contrastive"))
        model = build_model(run)
        assert model.kind == ("pairs" if run.pairs else "episodes")
        assert run.method != "SPE" or 0 < model.noise.item() < 300
    assert at_budget(run, "quick").updates <= 10


def test_only_one_seed_of_a_table_row_keeps_weights_and_embeddings_but_for_two_digits():
    kept = [run for run in RUNS.values() if run.keep]
    assert {run.data for run in kept if run.seed} == {"ndigit2"}  # for the axes of chapter 16
    assert all(run.d < 64 and run.group in (1, 2, 3, 5, 6) for run in kept)


@pytest.mark.parametrize("name", RECORDED)
def test_a_record_holds_the_files_that_its_run_keeps(name):
    run, folder = RUNS[name], ROOT / "data" / "runs" / name
    assert (folder / "embeddings.safetensors").exists() == run.keep
    assert (folder / "model.safetensors").exists() == run.keeps_weights


def test_an_unknown_name_is_answered_with_the_nearest_one(capsys):
    assert main(["train", "ndigit2-d2-spe"]) == 2
    message = capsys.readouterr().err
    assert "'ndigit2-d2-spe'" in message
    assert "did you mean ndigit2-d2-spe-seed" in message
    assert "Traceback" not in message


def test_a_missing_data_set_and_a_full_disk_are_said_in_plain_words(elsewhere, monkeypatch, capsys):
    def absent(*_):
        raise DataNotFoundError("mnist was not found. Tried: …")

    monkeypatch.setattr("experiments.train.load_data", absent)
    assert main(["train", "ndigit2-d2-spe-seed0", "--budget", "quick"]) == 2
    assert "mnist was not found" in capsys.readouterr().err

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("experiments.train.load_data", full)
    assert main(["train", "ndigit2-d2-spe-seed0", "--budget", "quick"]) == 2
    assert "disk is full" in capsys.readouterr().err


def test_a_record_says_how_it_came_about(smoke, monkeypatch):
    monkeypatch.setenv("SPE_RUNS", str(smoke))
    found = load("lshapes-spe-seed0", "quick")
    info = found.info
    assert info["updates"] == 4
    assert info["stopped"] == "finished"
    assert info["versions"].keys() == {"python", "torch", "spe"}
    assert info["parameters"]["noise"] > 0
    assert len(info["curve"]) == 2
    assert found.run == at_budget(RUNS["lshapes-spe-seed0"], "quick")
    row = found.metric(classifier="prototypes", shot=2)
    assert {"accuracy", "sem", "log_likelihood", "naive200"} <= row.keys()
    text = (found.folder / "run.json").read_text()
    assert str(ROOT) not in text
    assert os.uname().nodename not in text.replace('"cpu"', "")
    assert sorted(p.name for p in found.folder.iterdir()) == [
        "embeddings.safetensors", "model.safetensors", "run.json",
    ]  # fmt: skip
    assert not list(smoke.rglob("*.safetensors-*"))
    assert not checkpoint_of(found.run, "quick").exists()


def test_a_records_metrics_follow_from_its_embeddings_and_its_weights(smoke, monkeypatch):
    monkeypatch.setenv("SPE_RUNS", str(smoke))
    found = load("lshapes-spe-seed0", "quick")
    parameters = found.info["parameters"]
    assert score(found.run, found.tensors(), parameters, "quick") == found.info["metrics"]
    sets = record.held_out_sets(found.run, "cpu", "quick")
    again = record.embed_tests(found.run, found.model(), sets)
    assert score(found.run, again, parameters, "quick") == found.info["metrics"]
    assert found.embeddings("test").shape == (4, 120, 2)
    assert len(found.class_names("test")) == 4


def test_scoring_again_finds_the_recorded_numbers(smoke, monkeypatch, capsys):
    """`evaluate` compares a record with its embeddings and with its weights."""
    monkeypatch.setenv("SPE_RUNS", str(smoke))
    assert main(["evaluate", "lshapes-spe-seed0", "--budget", "quick", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    for source in ("its embeddings", "its weights"):
        assert f"from {source}: 3 accuracies, largest change 0.000 standard errors" in said


def test_one_cell_can_be_scored_alone(smoke, monkeypatch):
    monkeypatch.setenv("SPE_RUNS", str(smoke))
    found = load("lshapes-spe-seed0", "quick")
    alone = score(found.run, found.tensors(), found.info["parameters"], "quick", shot=100)
    assert alone == [found.metric(shot=100)]


def test_a_smoke_test_never_touches_the_records(monkeypatch):
    monkeypatch.delenv("SPE_RUNS", raising=False)
    assert folder_of("runs", "cpu") == ROOT / "data" / "runs"
    for budget in ("quick", "paper"):
        for kind in ("runs", "checkpoints"):
            assert folder_of(kind, budget).parent == ROOT / "data" / "cache"
            assert folder_of(kind, budget) != folder_of(kind, "cpu")


def test_a_recorded_run_is_not_done_again(smoke, monkeypatch):
    monkeypatch.setenv("SPE_RUNS", str(smoke))
    said = []
    run = at_budget(find("lshapes-spe-seed0"), "quick")
    assert not queue.do_run(run, "quick", report=said.append)
    assert said == ["lshapes-spe-seed0  is recorded already"]


def test_two_processes_never_train_the_same_run(tmp_path):
    twice = pytest.raises(Busy, match="run is being trained")
    with claim(tmp_path / "run"), twice, claim(tmp_path / "run"):
        pass
    with claim(tmp_path / "run"):
        pass


def test_other_settings_start_a_checkpoint_of_their_own(elsewhere):
    run = RUNS["ndigit2-d2-spe-seed0"]
    assert checkpoint_of(run, "cpu") == checkpoint_of(replace(run, keep=False, group=9), "cpu")
    assert checkpoint_of(run, "cpu") != checkpoint_of(replace(run, occlude=0.3), "cpu")


def test_a_failed_run_does_not_stop_the_queue(elsewhere, monkeypatch):
    done = []

    def do_run(run, budget, device):
        if run.name == "b":
            raise FloatingPointError("the loss stopped being finite")
        if run.name == "c" and "c" not in done:
            done.append("c")
            raise Busy
        done.append(run.name)
        monkeypatch.setattr(record, "is_recorded", lambda run, _: run.name in done)
        return True

    monkeypatch.setattr(queue, "do_run", do_run)
    runs = [replace(RUNS["lshapes-spe-seed0"], name=name) for name in "abcd"]
    assert queue.work_through(runs, "quick", "cpu") == ["b"]
    assert done == ["a", "c", "d"]


def cell_of(column: str, method: str = "SPE", condition: str = next(iter(CONDITIONS))) -> dict:
    at = {"method": method, "condition": condition, "column": column}
    (cell,) = (c for c in ledger.cells() if all(c[k] == v for k, v in at.items()))
    return cell


def test_a_cell_averages_seeds_and_states_their_spread(elsewhere):
    for seed, accuracy in enumerate((0.90, 0.92, 0.97)):
        write_metrics(f"ndigit2-d2-spe-seed{seed}", accuracy, elsewhere)
    cell = cell_of("seen N=2 D=2")
    assert cell["ours"] == 93.0
    assert cell["error"].seeds == pytest.approx(13**0.5)
    testing = sum((p * (1 - p) / 9940) ** 0.5 for p in (0.90, 0.92, 0.97)) / 3
    assert cell["error"].testing == pytest.approx(100 * testing)
    assert cell["error"].of_mean == pytest.approx((13 / 3 + (100 * testing) ** 2) ** 0.5)
    assert len(cell["runs"]) == cell["error"].n_runs == 3


@pytest.mark.parametrize("change", [{"peak_lr": 1.0}, {"a_setting_of_another_version": 1}])
def test_a_record_of_other_settings_fills_no_cell(elsewhere, change):
    for seed, accuracy in enumerate((0.90, 0.97)):
        write_metrics(f"ndigit2-d2-spe-seed{seed}", accuracy, elsewhere)
    path = elsewhere / "runs-cpu" / "ndigit2-d2-spe-seed1" / "run.json"
    info = json.loads(path.read_text())
    info["definition"] |= change
    path.write_text(json.dumps(info))
    cell = ledger._cell("ndigit_mnist", "SPE", "clean_support_clean_query", "seen N=2 D=2")
    assert (cell["ours"], len(cell["runs"])) == (pytest.approx(90), 1)
    status = {row["name"]: row["status"] for row in ledger.status()}
    assert status["ndigit2-d2-spe-seed0"] == "done"
    assert status["ndigit2-d2-spe-seed1"] == "outdated"
    with pytest.raises(ValueError, match=r"recorded with other settings|of another version"):
        record.is_recorded(RUNS["ndigit2-d2-spe-seed1"], "cpu")


def test_one_seed_states_the_error_over_test_images_or_over_episodes(elsewhere):
    """9940 images, 90 % of them right: the root of 0.9 · 0.1 / 9940."""
    write_metrics("ndigit2-d2-spe-seed0", 0.9, elsewhere)
    cell = cell_of("seen N=2 D=2")
    assert cell["ours"] == pytest.approx(90)
    assert cell["error"] == (pytest.approx(0.3009, abs=1e-4), 0, math.inf, 1)
    row = load("ndigit2-d2-spe-seed0").metric(
        test="seen", condition="clean_support_clean_query", classifier="prototypes"
    )
    run = RUNS["ndigit2-d2-spe-seed0"]
    assert ledger.error_of(run, row) == pytest.approx((0.9 * 0.1 / 9940) ** 0.5)
    assert ledger.error_of(run, row | {"sem": 0.02}) == 0.02


def test_drawings_of_one_character_are_no_independent_witnesses():
    run = RUNS["omniglot-2d-spe-1shot-clean-seed0"]
    error = ledger.error_of(run, {"test": "test", "accuracy": 0.5, "sem": 0.001})
    assert error == pytest.approx((0.25 / (423 * 80 / ledger.ALIKE)) ** 0.5)


def test_a_cell_scatters_like_those_of_its_kind(elsewhere):
    """Seeds at 90 and 94 % have the variance 8; pooled with five cells that agree, 8 / 6."""
    for seed, accuracy in enumerate((0.90, 0.94)):
        write_metrics(f"ndigit2-d2-spe-seed{seed}", accuracy, elsewhere)
        write_metrics(f"ndigit2-d3-spe-seed{seed}", 0.9, elsewhere)
    for n in (2, 3):
        write_metrics(f"ndigit{n}-d2-pn-seed0", 0.9, elsewhere)  # PN has no seeds of its own

    pooled = pytest.approx((8 / 6) ** 0.5)
    assert cell_of("seen N=2 D=2")["error"].seeds == pytest.approx(8**0.5)  # its own is larger
    for condition in list(CONDITIONS)[1:]:  # these cells agree, by chance
        assert cell_of("seen N=2 D=2", condition=condition)["error"].seeds == pooled
    assert cell_of("seen N=2 D=3")["error"].seeds == pooled  # other networks of the kind
    assert cell_of("seen N=2 D=2", "PN")["error"].seeds == pooled  # borrowed
    assert cell_of("unseen N=2 D=2")["error"].seeds == 0  # another test set
    assert cell_of("seen N=3 D=2", "PN")["error"].seeds == 0  # another number of digits
    for method in ("SPE", "PN"):  # two networks of two seeds each, whatever they are tested on
        assert cell_of("seen N=2 D=2", method)["error"].degrees == 2
    assert cell_of("seen N=3 D=2", "PN")["error"].degrees == math.inf


@pytest.mark.parametrize("name", KEPT)
def test_a_test_set_has_as_many_images_as_its_errors_are_taken_over(name):
    kept = load(name)
    for test, n_images in record.TEST_IMAGES[kept.run.data].items():
        assert kept.embeddings(test).shape[:2].numel() == n_images


def write_metrics(name: str, accuracy: float, folder: Path) -> None:
    """A made record of an N-digit run; all cells but clean seen ones are at 0.5."""
    rows = [
        {"test": test, "condition": condition, "classifier": "prototypes", "sem": 0.001}
        | {"accuracy": accuracy if (test, i) == ("seen", 0) else 0.5}
        for test in ("seen", "unseen")
        for i, condition in enumerate(CONDITIONS)
    ]
    path = folder / "runs-cpu" / name / "run.json"
    path.parent.mkdir(parents=True)
    info = {"definition": asdict(RUNS[name]), "training_seconds": 60, "updates": 1}
    path.write_text(json.dumps(info | {"metrics": rows}))


def test_the_ledger_prints_every_cell_with_null_for_what_is_missing(elsewhere, capsys):
    write_metrics("ndigit2-d2-spe-seed0", 0.9, elsewhere)
    assert main(["runs", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed.keys() == {"cells", "runs"}
    assert len(printed["cells"]) == 1 + 3 * 4 * 2 + 3 * 8 * 4
    keys = {"table", "method", "condition", "column", "test"}
    keys |= {"paper", "ours", "sem", "by_seed", "runs"}
    assert all(cell.keys() == keys for cell in printed["cells"])
    assert {cell["method"] for cell in printed["cells"]} == {"SPE", "PN", "HIB", "Contrastive"}
    filled = [cell for cell in printed["cells"] if cell["ours"] is not None]
    assert {(cell["method"], cell["column"][-7:]) for cell in filled} == {("SPE", "N=2 D=2")}
    assert {cell["paper"]: cell["ours"] for cell in filled} == {
        93.0: 90.0, 92.4: 50.0, 53.7: 50.0, 90.0: 50.0, 88.8: 50.0, 56.3: 50.0,
    }  # fmt: skip
    assert all(cell["sem"] is None for cell in printed["cells"] if cell["ours"] is None)
    assert len(printed["runs"]) == len(RUNS)
    assert main(["runs"]) == 0
    text = capsys.readouterr().out
    assert " 93.0    90.0 ± 0.3   -3.0  (1)" in text
    assert f"1 of {len(RUNS)} runs done" in text


def test_the_curve_is_thinned_and_ends_where_training_ended():
    rows = [{"update": i, "loss": 1 / i} for i in range(1, 1001)]
    thin = record.thin(rows)
    assert len(thin) <= 200
    assert thin[-1]["update"] == 1000
    assert record.thin(rows[:7])[0]["update"] == 1


def test_a_crash_while_recording_leaves_no_record(elsewhere, monkeypatch):
    run = at_budget(find("lshapes-spe-seed0"), "quick")

    def crash(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(record, "write_atomically", crash)
    with pytest.raises(OSError, match="No space"):
        record.write(run, build_model(run).eval(), History(), "cpu", "quick")
    assert list((elsewhere / "runs-quick").iterdir()) == []


def test_validation_mixes_the_conditions_that_the_run_is_tested_on():
    from blobs import blobs, model

    run = replace(RUNS["omniglot-2d-spe-1shot-clean-seed0"], shot=1)
    data = blobs(12, 20, seed=0)
    clean = validator(run, data)(model("SPE"))
    mixed = validator(replace(run, occlude=0.2), data)(model("SPE"))
    assert clean["accuracy"] == clean["clean_clean"]
    parts = [mixed[key] for key in ("clean_clean", "occluded_clean", "clean_occluded")]
    assert mixed["accuracy"] == pytest.approx(sum(parts) / 3)
    assert mixed["clean_clean"] == clean["clean_clean"]
    again = validator(replace(run, occlude=0.2), data)(model("SPE"))
    assert again == mixed


def test_the_command_line_explains_itself(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    said = capsys.readouterr().out
    assert all(name in said for name in ("runs", "train", "evaluate", "probe", "reproduce"))
    assert " work " not in said  # the command that `--jobs` starts is not for people


def test_all_records_together_stay_small():
    size = sum(path.stat().st_size for path in (ROOT / "data" / "runs").rglob("*"))
    assert size < 40e6


@pytest.mark.skipif(not KEPT, reason="no run is recorded with its embeddings yet")
def test_a_sample_of_recorded_runs_scores_the_same_from_its_embeddings():
    """Each run's cheapest prototype row and, where it has them, a neighbour row; equal."""
    for name in KEPT[:: max(1, len(KEPT) // 3)]:
        found = load(name)
        tensors, parameters = found.tensors(), found.info["parameters"]
        rows = sorted(found.info["metrics"], key=lambda row: row.get("way", 0))
        for classifier in ("prototypes", "5-NN distance"):
            for old in [row for row in rows if row["classifier"] == classifier][:1]:
                keys = {k: old[k] for k in ("test", "condition", "classifier", "way")}
                shot = {"shot": old["shot"]} if "shot" in old else {}
                (new,) = score(found.run, tensors, parameters, **keys, **shot)
                # Another CPU may round a tie the other way, in one query of ten thousand.
                assert new["accuracy"] == pytest.approx(old["accuracy"], abs=1e-4), (name, old)
                assert new["sem"] == pytest.approx(old["sem"], abs=1e-4)


@pytest.mark.skipif(not KEPT, reason="no run is recorded with its weights yet")
def test_a_recorded_model_embeds_as_it_did_when_it_was_recorded():
    """The first test images of a sample of runs, where the data is at hand."""
    from made_data import real

    for name in KEPT[:: max(1, len(KEPT) // 3)]:
        found = load(name)
        sets = real(lambda run=found.run: record.held_out_sets(run, "cpu", "quick"))
        stored, again = found.tensors(), record.embed_tests(found.run, found.model(), sets)
        for key, value in again.items():
            if "clean" in key:
                old = stored[key][: len(value), : value.shape[1]].float()
                assert torch.allclose(old, value.float(), rtol=5e-3, atol=5e-3), (name, key)


def test_missing_data_does_not_stop_the_queue(elsewhere, monkeypatch):
    tried = []

    def do_run(run, budget, device):
        tried.append(run.name)
        if run.name == "a":
            raise DataNotFoundError("no MNIST here")
        monkeypatch.setattr(record, "is_recorded", lambda run, _: run.name == "b")
        return True

    monkeypatch.setattr(queue, "do_run", do_run)
    runs = [replace(RUNS["lshapes-spe-seed0"], name=name) for name in "ab"]
    assert queue.work_through(runs, "quick", "cpu") == ["a"]
    assert tried == ["a", "b"]


@pytest.mark.parametrize(("codes", "result"), [((0, 0), 0), ((0, -9), 1), ((1, 0), 1)])
def test_a_worker_that_was_killed_counts_as_a_failure(monkeypatch, codes, result):
    left = list(codes)

    class Worker:
        def __init__(self, command):
            self.code = left.pop(0)

        def wait(self):
            return self.code

    monkeypatch.setattr(queue.subprocess, "Popen", Worker)
    monkeypatch.setattr(queue.signal, "signal", lambda *_: None)
    assert queue.work_in_parallel(["a"], "quick", "cpu", 2) == result
    with pytest.raises(ValueError, match="jobs=0; expected"):
        queue.work_in_parallel(["a"], "quick", "cpu", 0)


def test_means_that_half_precision_cannot_hold_are_refused():
    far = spe.Gaussian(torch.full((1, 1, 2), 1e5), torch.ones(1, 1, 2))
    with pytest.raises(ValueError, match=r"cannot hold the means of 'seen\.clean'"):
        record.in_half("seen.clean", far)


def test_runs_of_another_budget_are_listed_too(smoke, monkeypatch, capsys):
    monkeypatch.setenv("SPE_RUNS", str(smoke))
    assert main(["runs", "--budget", "quick"]) == 0
    assert f"1 of {len(RUNS)} runs done" in capsys.readouterr().out
    assert main(["runs"]) == 0
    assert f"0 of {len(RUNS)} runs done" in capsys.readouterr().out
    assert main(["evaluate", "sampler-naive-s1-rep0", "--budget", "quick"]) == 2
    assert "train sampler-naive-s1-rep0 --budget quick" in capsys.readouterr().err


def test_a_smoke_test_of_omniglot_is_listed_though_it_has_few_classes(tmp_path, monkeypatch):
    monkeypatch.setenv("SPE_RUNS", str(tmp_path))
    run = at_budget(RUNS["omniglot-2d-spe-1shot-clean-seed0"], "quick")
    stored = {f"test.{each}.mean": torch.zeros(10, 20, 2) for each in ("clean", "occluded")}
    metrics = [row | {"accuracy": 0.5, "sem": 0.1} for row in record._plan(run, stored)]
    folder = tmp_path / "runs-quick" / run.name
    folder.mkdir(parents=True)
    info = {"definition": asdict(run), "metrics": metrics, "training_seconds": 1.0, "updates": 1}
    (folder / "run.json").write_text(json.dumps(info))
    cells = [cell for cell in ledger.cells("quick") if cell["ours"] is not None]
    assert {cell["column"] for cell in cells} == {"1-shot 5-class", "1-shot 20-class"}
    assert main(["runs", "--budget", "quick"]) == 0


def test_validation_of_pairs_looks_at_as_many_images_as_there_are():
    run = replace(RUNS["ndigit2-d2-hib-seed0"], data="omniglot")
    validator(run, blobs(5, 20, seed=0))
