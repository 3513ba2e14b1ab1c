"""Scores mean what they say: paired episodes, honest neighbours, known calibration."""

import math

import pytest
import torch
from blobs import blobs, model

from spe.evaluation import (
    accuracy,
    answer_episodes,
    brier_score,
    calibration_error,
    distance_of_means,
    embed_images,
    embed_set,
    episode_indices,
    expected_match,
    leave_one_out_neighbours,
    mean_and_sem,
    mean_rule,
    negative_log_likelihood,
    score_episodes,
    stochastic_rule,
    within_sem,
)
from spe.gaussian import Gaussian


def points(*rows: float) -> Gaussian:
    mean = torch.tensor(rows, dtype=torch.float32)[:, None]
    return Gaussian(mean, torch.zeros_like(mean))


def clouds(n_classes: int, per_class: int, spread: float, var: float) -> Gaussian:
    """Classes on a line, 1 apart, their items `spread` around them."""
    generator = torch.Generator().manual_seed(0)
    shape = (n_classes, per_class, 2)
    mean = spread * torch.randn(shape, generator=generator)
    mean[..., 0] += torch.arange(n_classes)[:, None]
    return Gaussian(mean, torch.full(shape, var))


def test_episodes_depend_on_the_task_and_the_seed_alone():
    classes, items = episode_indices(12, 9, n_way=5, n_drawn=4, n_episodes=30, seed=7)
    again = episode_indices(12, 9, n_way=5, n_drawn=4, n_episodes=30, seed=7)
    other = episode_indices(12, 9, n_way=5, n_drawn=4, n_episodes=30, seed=8)
    assert torch.equal(classes, again[0])
    assert torch.equal(items, again[1])
    assert not torch.equal(classes, other[0])
    assert all(len(set(row.tolist())) == 5 for row in classes)
    assert all(len(set(row.tolist())) == 4 for row in items.flatten(0, 1))
    assert set(classes.flatten().tolist()) == set(range(12))


def test_an_episode_larger_than_the_set_is_refused():
    with pytest.raises(ValueError, match="n_way: got 6, expected 1 to 5"):
        episode_indices(5, 9, n_way=6, n_drawn=1, n_episodes=1, seed=0)
    with pytest.raises(ValueError, match="n_drawn: got 10, expected 1 to 9"):
        episode_indices(5, 9, n_way=5, n_drawn=10, n_episodes=1, seed=0)


@pytest.mark.parametrize("n_shot", [0, 4, 5])
def test_an_episode_without_support_or_without_queries_is_refused(n_shot):
    sets = clouds(5, 9, spread=0.1, var=0.1)
    indices = episode_indices(5, 9, n_way=5, n_drawn=4, n_episodes=1, seed=0)
    for use in (answer_episodes, score_episodes):
        with pytest.raises(ValueError, match=f"n_shot: got {n_shot}, expected 1 to 3"):
            use(sets, sets, *indices, n_shot, mean_rule)


def test_a_number_of_episodes_below_one_is_refused():
    with pytest.raises(ValueError, match="n_episodes=0; expected an integer of at least 1"):
        episode_indices(4, 4, n_way=2, n_drawn=3, n_episodes=0, seed=0)


def test_no_query_is_ever_its_own_support():
    """Items are so far apart that an image is classified right only if it supports itself."""
    generator = torch.Generator().manual_seed(0)
    mean = 1e3 * torch.randn(10, 12, 2, generator=generator)
    lonely = Gaussian(mean, torch.zeros_like(mean))
    indices = episode_indices(10, 12, 10, 6, 50, seed=0)
    score = score_episodes(lonely, lonely, *indices, 3, mean_rule)["accuracy"].mean()
    assert score < 0.2


def test_well_separated_classes_are_told_apart_and_chance_is_chance():
    indices = episode_indices(10, 20, 10, 10, 20, seed=0)
    for rule in (mean_rule, stochastic_rule(0.01)):
        good = clouds(10, 20, spread=0.05, var=0.001)
        assert score_episodes(good, good, *indices, 5, rule)["accuracy"].mean() == 1
        bad = Gaussian(torch.randn(10, 20, 2), torch.full((10, 20, 2), 0.1))
        assert score_episodes(bad, bad, *indices, 5, rule)["accuracy"].mean() < 0.25


def test_support_and_query_come_from_the_sets_they_are_named_after():
    clean = clouds(6, 20, spread=0.05, var=0.001)
    shifted = Gaussian(clean.mean + torch.tensor([1.0, 0.0]), clean.var)  # one class further
    indices = episode_indices(6, 20, 6, 10, 5, seed=0)
    score = score_episodes(clean, shifted, *indices, 5, mean_rule)
    # Each query lands on its right neighbour; only the last class has none and stays.
    assert torch.allclose(score["accuracy"], torch.full((5,), 1 / 6))


def test_the_likelihood_of_an_episode_is_the_mean_log_probability_of_the_truth():
    sets = clouds(4, 12, spread=0.4, var=0.05)
    classes, items = episode_indices(4, 12, 4, 8, 1, seed=0)
    score = score_episodes(sets, sets, classes, items, 3, stochastic_rule(0.1))
    support = sets[classes[0][:, None], items[0, :, :3]]
    query = sets[classes[0][:, None], items[0, :, 3:]]
    flat = Gaussian(query.mean.flatten(0, 1), query.var.flatten(0, 1))
    log_p = stochastic_rule(0.1)(support, flat)
    labels = torch.arange(4).repeat_interleave(5)
    assert score["log_likelihood"].item() == pytest.approx(-negative_log_likelihood(log_p, labels))
    assert score["accuracy"].item() == pytest.approx(accuracy(log_p, labels))


def test_every_query_gets_an_answer_of_its_own_class_by_class():
    far_apart = clouds(6, 8, spread=0.01, var=1e-4)
    classes, items = episode_indices(6, 8, n_way=3, n_drawn=5, n_episodes=2, seed=0)
    answers = list(answer_episodes(far_apart, far_apart, classes, items, 2, mean_rule))
    assert [tuple(log_p.shape) for log_p in answers] == [(9, 3), (9, 3)]
    assert all(log_p.argmax(-1).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2] for log_p in answers)


def test_the_papers_200_naive_samples_agree_with_the_fixed_points():
    sets = clouds(10, 30, spread=0.5, var=0.3)
    indices = episode_indices(10, 30, 10, 20, 20, seed=0)
    fixed = score_episodes(sets, sets, *indices, 10, stochastic_rule(0.1))["accuracy"]
    generator = torch.Generator().manual_seed(0)
    naive = stochastic_rule(0.1, 200, "random", generator)
    naive = score_episodes(sets, sets, *indices, 10, naive)["accuracy"]
    difference, sem = mean_and_sem(naive - fixed)
    assert abs(difference) < 0.01
    assert sem < mean_and_sem(fixed)[1]  # pairing removes what episodes have in common


def test_a_certain_example_outweighs_uncertain_ones_in_the_stochastic_rule_alone():
    mean = torch.tensor([[[0.0], [9.0], [9.0]], [[4.0], [4.0], [4.0]]])
    var = torch.tensor([[[0.01], [100.0], [100.0]], [[0.01], [0.01], [0.01]]])
    query = Gaussian(torch.tensor([[0.5]]), torch.tensor([[0.01]]))
    support = Gaussian(mean, var)
    assert stochastic_rule(0.1)(support, query).argmax() == 0
    assert mean_rule(support, query).argmax() == 1


def test_the_image_left_out_is_not_its_own_neighbour():
    """Pairs of close images from different classes: with itself in the vote, 1-NN is perfect."""
    twins = points(0.0, 0.1, 5.0, 5.1, 9.0, 9.1)
    labels = torch.tensor([0, 1, 0, 1, 0, 1])
    assert not leave_one_out_neighbours(twins, twins, labels, k=1).any()


def test_five_neighbours_vote_and_the_nearer_breaks_a_tie():
    support = points(0.0, 1.0, 1.1, 1.2, 1.3, 1.4, 50.0)
    labels = torch.tensor([0, 1, 1, 0, 0, 0, 1])
    right = leave_one_out_neighbours(support, support, labels, k=5)
    assert right[0]  # neighbours 1 1 0 0 0: three against two
    tie = leave_one_out_neighbours(support, support, labels, k=4)
    assert not tie[0]  # neighbours 1 1 0 0: two against two, and the nearest is a 1


def test_an_occluded_query_is_compared_with_clean_images():
    clean = points(0.0, 0.1, 0.2, 9.0, 9.1, 9.2)
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    swapped = points(9.0, 9.1, 9.2, 0.0, 0.1, 0.2)
    assert leave_one_out_neighbours(clean, clean, labels, k=2).all()
    assert not leave_one_out_neighbours(clean, swapped, labels, k=2).any()


def test_small_distances_survive_far_from_the_origin():
    """Neighbours 0.01 apart at 1000: an expanded square loses them in single precision."""
    mean = 1000 + 0.01 * torch.arange(40.0)[:, None] * torch.ones(2)
    line = Gaussian(mean, torch.zeros_like(mean))
    similarity = distance_of_means(line, line)
    exact = torch.cdist(mean.double(), mean.double())
    assert (similarity.double() + exact).abs().max() < 1e-4


def test_neighbours_by_match_probability_agree_with_the_average_over_hibs_own_samples():
    head = model("HIB").head
    with torch.no_grad():
        head.offset.fill_(2.0)
    slope = torch.nn.functional.softplus(head.raw_slope).item()
    generator = torch.Generator().manual_seed(0)
    a, b = (
        Gaussian(torch.randn(n, 2, generator=generator), torch.rand(n, 2, generator=generator))
        for n in (7, 9)
    )
    drawn = a.sample(20_000, generator)[:, :, None] - b.sample(20_000, generator)[:, None]
    sampled = head(drawn).sigmoid().mean(0)  # (7, 9)
    similarity = expected_match(slope, 2.0, n_points=256)(a, b)
    assert torch.allclose(similarity, sampled, atol=0.01)


def test_match_probability_prefers_the_certain_of_two_equally_near():
    query = points(0.0)
    both = Gaussian(torch.tensor([[1.0], [1.0]]), torch.tensor([[0.01], [9.0]]))
    certain, uncertain = expected_match(5.0, 8.0, n_points=256)(query, both)[0]
    assert certain > uncertain
    assert distance_of_means(query, both)[0].unique().numel() == 1


def test_k_must_leave_a_neighbour():
    with pytest.raises(ValueError, match="k: got 6"):
        leave_one_out_neighbours(points(*range(6)), points(*range(6)), torch.zeros(6).long(), k=6)


def test_labels_may_be_any_whole_numbers_and_neighbours_many():
    """Nearness breaks ties alone: 150 far neighbours outvote 149 near ones."""
    support = points(0.0, *[1.0] * 149, *[2.0] * 150)
    labels = torch.tensor([-7] * 1 + [10**12] * 149 + [-7] * 150)
    assert leave_one_out_neighbours(support, support, labels, k=299)[0]


def test_neighbours_need_one_label_an_image():
    with pytest.raises(ValueError, match=r"labels has shape \(5,\)"):
        leave_one_out_neighbours(points(*range(6)), points(*range(6)), torch.zeros(5).long(), k=2)


def test_a_set_is_embedded_image_by_image_in_the_order_of_its_classes():
    data, net = blobs(4, 6, seed=0), model("SPE").eval()
    embedded, hidden = embed_set(net, data, batch=5)
    images, _ = data.take(torch.tensor([2]), torch.tensor([3]))
    assert torch.allclose(embedded.mean[2, 3], embed_images(net, images).mean[0], atol=1e-5)
    assert embedded.shape == (4, 6, 2)
    assert hidden is None


def test_an_occluded_copy_is_drawn_once_and_its_hidden_part_is_known():
    data, net = blobs(4, 6, seed=0), model("SPE")
    copies = [embed_set(net, data, 1.0, torch.Generator().manual_seed(2)) for _ in range(2)]
    assert torch.equal(copies[0][0].mean, copies[1][0].mean)
    hidden = copies[0][1]
    assert hidden.shape == (4, 6, 1)
    assert 0 < hidden.mean() < 0.6
    clean, _ = embed_set(net, data)
    unhidden = hidden[..., 0] == 0
    assert torch.equal(copies[0][0].mean[unhidden], clean.mean[unhidden])
    assert net.training  # as it was before


def test_a_model_may_lie_on_another_device_than_the_images():
    """The occlusions are then those of the images' device."""
    data, net = blobs(4, 6, seed=0), model("SPE")
    here, hidden = embed_set(net, data, 1.0, torch.Generator().manual_seed(2))
    there, same = embed_set(net.to("meta"), data, 1.0, torch.Generator().manual_seed(2))
    assert (here.device.type, there.device.type) == ("cpu", "meta")
    assert here.shape == there.shape
    assert torch.equal(hidden, same)


def test_a_set_of_unequal_classes_is_refused():
    data = blobs(3, 4, seed=0)
    data.counts[1] = 2
    with pytest.raises(ValueError, match=r"smallest class has 2 .* largest 4"):
        embed_set(model("PN"), data)


def test_perfect_and_hopeless_predictions_have_the_textbook_scores():
    labels = torch.tensor([0, 1, 2, 1])
    sure = torch.nn.functional.one_hot(labels, 3).double().clamp_min(1e-12).log()
    assert accuracy(sure, labels) == 1
    assert negative_log_likelihood(sure, labels) == pytest.approx(0)
    assert brier_score(sure, labels) == pytest.approx(0)
    assert calibration_error(sure, labels) == pytest.approx(0)
    wrong = sure.roll(1, 1)
    assert accuracy(wrong, labels) == 0
    assert brier_score(wrong, labels) == pytest.approx(2)
    assert calibration_error(wrong, labels) == pytest.approx(1)
    even = torch.full((4, 3), 1 / 3).log()
    assert negative_log_likelihood(even, labels) == pytest.approx(math.log(3))
    assert brier_score(even, labels) == pytest.approx(2 / 3)


def test_a_forecast_that_keeps_its_word_is_calibrated_and_an_overconfident_one_is_not():
    generator = torch.Generator().manual_seed(0)
    p = 0.5 + 0.5 * torch.rand(20_000, generator=generator)
    right = torch.rand(20_000, generator=generator) < p
    log_p = torch.stack([p, 1 - p], 1).log()
    labels = (~right).long()
    assert calibration_error(log_p, labels) < 0.015
    boast = torch.tensor([[0.99, 0.01]]).log().expand(20_000, 2)
    assert calibration_error(boast, labels) == pytest.approx(0.99 - p.mean().item(), abs=0.01)


def test_the_standard_error_is_that_of_the_mean():
    mean, sem = mean_and_sem(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert mean == 2.5
    assert sem == pytest.approx(math.sqrt(5 / 3) / 2)
    assert math.isnan(mean_and_sem(torch.tensor([1.0]))[1])


def test_a_lead_that_is_the_same_in_all_tasks_has_no_error_however_they_differ():
    tasks = torch.tensor([[80.0], [50.0], [20.0]], dtype=torch.float64)
    assert within_sem(tasks + torch.tensor([0.0, 2.0])) == pytest.approx(0, abs=1e-9)


def test_for_two_methods_the_error_bar_is_that_of_their_difference_over_root_two():
    y = torch.tensor([[80.0, 84.0], [50.0, 50.0], [20.0, 22.0]], dtype=torch.float64)
    _, sem = mean_and_sem(y[:, 1] - y[:, 0])
    assert within_sem(y) == pytest.approx(sem / math.sqrt(2))


def test_a_model_that_cannot_embed_goes_on_training_as_before():
    net = model("SPE").train()
    with pytest.raises(ValueError, match="images has shape"):
        embed_images(net, torch.zeros(2, 5, 7, 7))
    assert net.training


def test_a_frozen_part_of_a_model_stays_in_evaluation_mode():
    net = model("SPE").train()
    net.encoder.eval()
    embed_images(net, blobs(2, 1, seed=0).tiles)
    assert net.training
    assert not any(module.training for module in net.encoder.modules())


def test_embeddings_may_be_worked_on_with_gradients():
    """Inference tensors could not: prototypes of embedded images may be learned further."""
    embedded = embed_images(model("SPE"), blobs(2, 1, seed=0).tiles)
    scale = torch.ones((), requires_grad=True)
    (scale * embedded.mean).square().sum().backward()
    assert scale.grad is not None


@pytest.mark.parametrize(
    ("log_p", "labels", "error", "says"),
    [
        (torch.zeros(3), torch.zeros(3).long(), ValueError, r"log_p has shape \(3,\)"),
        (torch.zeros(0, 3), torch.zeros(0).long(), ValueError, r"log_p has shape \(0, 3\)"),
        (torch.zeros(2, 3), torch.zeros(3).long(), ValueError, r"labels has shape \(3,\)"),
        (torch.zeros(2, 3), torch.zeros(2, 1).long(), ValueError, r"labels has shape \(2, 1\)"),
        (torch.zeros(2, 3), torch.zeros(2), TypeError, r"labels has type torch\.float32"),
    ],
)
@pytest.mark.parametrize(
    "score", [accuracy, negative_log_likelihood, brier_score, calibration_error]
)
def test_answers_and_labels_that_do_not_go_together_are_refused(score, log_p, labels, error, says):
    with pytest.raises(error, match=says):
        score(log_p, labels)


@pytest.mark.parametrize("shape", [(1, 2), (4, 1), (4,)])
def test_an_error_within_tasks_needs_two_tasks_and_two_methods(shape):
    with pytest.raises(ValueError, match="expected at least two tasks and methods"):
        within_sem(torch.zeros(shape))
