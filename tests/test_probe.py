"""Probes: inputs that a network never trained on, the same for all networks (chapter 15)."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from experiments import probe
from experiments.__main__ import main
from experiments.probe import N_PICTURES, as_digits, make_probes, turn, write_probes
from experiments.record import load
from experiments.runs import RUNS
from experiments.train import build_model
from spe.data import ImageSet

ROOT = Path(__file__).parents[1]
PROBED = sorted(p.parent.name for p in (ROOT / "data" / "runs").glob("*/probes.safetensors"))
DIGITS, CHARACTERS = RUNS["ndigit2-d2-spe-seed0"], RUNS["omniglot-2d-pn-5shot-clean-seed0"]


def made(n_classes: int, per_class: int, n_tiles: int) -> ImageSet:
    """Images of bright boxes on black, each tile another one."""
    generator = torch.Generator().manual_seed(n_classes)
    tiles = torch.zeros(n_classes * per_class * n_tiles, 1, 28, 28, dtype=torch.uint8)
    for tile in tiles:
        top, left, height, width = torch.randint(3, 12, (4,), generator=generator).tolist()
        tile[0, top : top + height, left : left + width] = 200
    ids = torch.arange(len(tiles)).view(n_classes, per_class, n_tiles)
    counts = torch.full((n_classes,), per_class)
    return ImageSet(tiles, ids, counts, tuple(map(str, range(n_classes))))


NUMBERS, LETTERS = made(10, 55, 2), made(12, 20, 1)


@pytest.fixture(scope="module")
def of_digits() -> dict[str, probe.Kind]:
    return make_probes(DIGITS, NUMBERS, LETTERS, NUMBERS)


@pytest.fixture(scope="module")
def of_characters() -> dict[str, probe.Kind]:
    return make_probes(CHARACTERS, LETTERS, LETTERS, NUMBERS)


def test_every_network_meets_the_same_probes(of_digits):
    again = make_probes(RUNS["ndigit2-d2-pn-seed0"], NUMBERS, LETTERS, NUMBERS)
    assert again.keys() == of_digits.keys()
    for kind, made_before in of_digits.items():
        assert torch.equal(again[kind].images, made_before.images)


def test_a_probe_has_the_shape_that_the_network_knows(of_digits, of_characters):
    assert set(of_digits) == {"clean", "noise", "letters", "rotated", "hidden1", "hidden2"}
    assert set(of_characters) == {"clean", "noise", "digits", "rotated", "train"}
    for kinds, shape in ((of_digits, (1, 28, 56)), (of_characters, (1, 28, 28))):
        for kind in kinds.values():
            assert kind.images.dtype == torch.uint8
            assert kind.images.shape[1:] == shape


def test_probes_leave_the_support_alone(of_digits, of_characters):
    for kinds, data, first in ((of_digits, NUMBERS, 50), (of_characters, LETTERS, 5)):
        facts = kinds["clean"].facts
        classes, items = facts["classes"].long(), facts["items"].long()
        assert items.min() >= first
        assert len({*zip(classes.tolist(), items.tolist(), strict=True)}) == len(items)
        assert torch.equal(data.take(classes, items)[0], kinds["clean"].images)


def test_a_rectangle_hides_the_named_digit_and_no_other(of_digits):
    clean = of_digits["clean"].images
    for place, other in ((0, 1), (1, 0)):
        images, facts = (getattr(of_digits[f"hidden{place + 1}"], x) for x in ("images", "facts"))
        here, there = (slice(28 * p, 28 * p + 28) for p in (place, other))
        assert torch.equal(images[..., there], clean[..., there])
        changed = images[..., here] != clean[..., here]
        assert (images[..., here][changed] == 0).all()
        lost = 1 - images[..., here].double().sum((1, 2, 3)) / clean[..., here].sum((1, 2, 3))
        assert torch.allclose(facts["ink"], lost)
        assert (facts["area"] >= changed.double().mean((1, 2, 3))).all()
        assert facts["ink"].max() > 0.5
    assert torch.equal(of_digits["hidden1"].facts["area"], of_digits["hidden2"].facts["area"])


def test_each_digit_is_turned_in_its_place(of_digits):
    clean, rotated = of_digits["clean"].images, of_digits["rotated"].images
    for tile in (slice(28), slice(28, 56)):
        assert torch.equal(rotated[..., tile], clean[..., tile].rot90(1, (-2, -1)))


def test_turning_by_a_right_angle_moves_whole_pixels():
    images = LETTERS.tiles[:5]
    for quarter in range(3):
        turned = turn(images, 90 * quarter)
        gap = turned.int() - images.rot90(quarter, (-2, -1)).int()
        assert gap.abs().max() <= 1
    ink = images.float().mean().item()
    assert turn(images, 45).float().mean().item() == pytest.approx(ink, rel=0.05)


def test_letters_take_the_format_of_digits():
    """White on black, a longest side of 20 pixels, the centre of mass in the middle."""
    line = torch.zeros(1, 1, 28, 28, dtype=torch.uint8)
    line[0, 0, 2, 3:9] = 90
    for one in as_digits(torch.cat([LETTERS.tiles[:20], line]))[:, 0]:
        sides = [int((one.amax(dim) > 0).sum()) for dim in (0, 1)]
        assert max(sides) == 20
        assert one.max() == 255
        assert one[0, 0] == 0
        weight = one.double() / one.sum()
        for dim in (0, 1):
            assert (weight.sum(1 - dim) * torch.arange(28)).sum() == pytest.approx(13.5, abs=1)


@pytest.fixture
def recorded(tmp_path, monkeypatch) -> Path:
    """Records of untrained networks, on made data."""
    monkeypatch.setenv("SPE_RUNS", str(tmp_path))
    sets = {"train": LETTERS, "test": LETTERS, "seen": NUMBERS}
    monkeypatch.setattr(probe, "load_data", lambda *_: sets)
    monkeypatch.setattr(probe, "held_out_sets", lambda *_: sets)
    for run in (DIGITS, CHARACTERS, replace(RUNS["lshapes-spe-seed0"], keep=False)):
        folder = tmp_path / "runs-cpu" / run.name
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({"name": run.name, "definition": asdict(run)}))
        if run.keep:
            weights = {k: v.contiguous() for k, v in build_model(run).state_dict().items()}
            save_file(weights, folder / "model.safetensors")
    return tmp_path / "runs-cpu"


def test_probes_are_added_to_a_record_and_nothing_else_is_touched(recorded, capsys):
    folder = recorded / DIGITS.name
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert main(["probe", DIGITS.name, CHARACTERS.name]) == 0
    assert "probes.safetensors" in capsys.readouterr().out
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert after.pop("probes.safetensors")
    assert after == before


def test_a_file_of_probes_says_what_it_holds(recorded, of_digits):
    path = write_probes(DIGITS.name)
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["probes"])
    assert about["kinds"] == {kind: made.text for kind, made in of_digits.items()}
    assert about["seed"] == probe.PROBE_SEED
    assert about["versions"].keys() == {"python", "torch", "spe"}
    found = load(DIGITS.name)
    for kind, made_before in of_digits.items():
        exact = found.model().embed(made_before.images)
        assert torch.allclose(found.probe(kind).mean, exact.mean, rtol=1e-3, atol=1e-3)
        assert torch.allclose(found.probe(kind).var, exact.var, rtol=1e-2)
        pictures = found.probes()[f"{kind}.pictures"]
        assert torch.equal(pictures, made_before.images[:N_PICTURES, 0])


def test_a_deterministic_network_has_probes_without_variance(recorded):
    write_probes(CHARACTERS.name)
    assert not load(CHARACTERS.name).probe("noise").var.any()


def test_what_cannot_be_probed_is_refused(recorded):
    with pytest.raises(ValueError, match="no probes for lshapes"):
        write_probes("lshapes-spe-seed0")
    folder = recorded / DIGITS.name
    alone = {"name": DIGITS.name, "definition": asdict(replace(DIGITS, keep=False))}
    (folder / "run.json").write_text(json.dumps(alone))
    with pytest.raises(ValueError, match="keeps no weights"):
        write_probes(DIGITS.name)
    with pytest.raises(FileNotFoundError, match="python -m experiments probe"):
        load(DIGITS.name).probe("noise")


@pytest.mark.parametrize("name", PROBED)
def test_recorded_probes_agree_with_the_recorded_embeddings(name):
    """Unchanged test images are in both files, embedded at different times."""
    found = load(name)
    stored = found.probes()
    classes, items = stored["clean.classes"].long(), stored["clean.items"].long()
    before = found.embeddings(probe.TEST[found.run.data])[classes, items]
    assert torch.allclose(found.probe("clean").mean, before.mean, rtol=5e-3, atol=5e-3)
    assert torch.allclose(found.probe("clean").var, before.var, rtol=5e-2)
