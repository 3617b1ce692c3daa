"""Pictures draw what the theory says, with units on their axes and lines that can be told apart."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest

from cactus_theory import (
    Cactus,
    Frontier,
    binary_kl,
    exact_optimum,
    output_distribution,
    plots,
    second_order_optimum,
)
from cactus_theory.curves import curve
from cactus_theory.rules.parsing import entry_from
from cactus_theory.rules.registry import RULES, budgeted_candidates

matplotlib.use("agg")
from matplotlib import pyplot as plt

RNG = np.random.default_rng(5)
DRAFT, TARGET = RNG.dirichlet(np.full(16, 0.5), size=3), RNG.dirichlet(np.ones(16), size=3)
DELTAS = np.array([0.01, 0.3, 2.0])


def test_the_frontier_draws_rules_and_the_best_of_every_number_of_drafts(curves):
    best = {
        k: [Frontier(draft=DRAFT, target=TARGET, num_drafts=k).at_price(x) for x in (0.0, 0.5)]
        for k in (1, 3)
    }
    left, right = plots.frontier(curves, best)
    for line, points in zip(right.lines, best.values(), strict=True):
        wanted = [[one.kl, one.acceptance_rate] for one in points]
        np.testing.assert_array_equal(line.get_xydata(), wanted)
    with_budget = [name for name, found in curves.items() if np.ptp(found.acceptance_rate) > 0]
    assert len(left.lines) == len(with_budget) + 1
    np.testing.assert_array_equal(left.lines[0].get_xdata(), curves[with_budget[0]].kl)
    np.testing.assert_array_equal(left.lines[-1].get_xydata(), right.lines[0].get_xydata())


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def curves():
    return {
        name: curve(entry.at, draft=DRAFT, target=TARGET, deltas=DELTAS)
        for name, entry in RULES.items()
    }


def drawn(axes) -> dict[str, np.ndarray]:
    """Lines by their colour and dashes, as points."""
    return {
        f"{line.get_color()} {line.get_linestyle()} {line.get_label()}": np.array(
            [line.get_xdata(), line.get_ydata()]
        )
        for line in axes.lines
    }


def test_delta_curves_draw_acceptance_and_kl_against_delta(curves):
    left, right = plots.delta_curves(curves)
    for i, found in enumerate(curves.values()):
        np.testing.assert_array_equal(left.lines[i].get_xydata().T, [DELTAS, found.acceptance_rate])
        np.testing.assert_array_equal(right.lines[i].get_xydata().T, [DELTAS, found.kl])
    assert [axes.get_xscale() for axes in (left, right)] == ["log", "log"]


def test_lines_of_one_rule_with_other_parameters_are_told_apart():
    texts = ["exact", "exact:divergence=chi-square", "exact:delta=1", "top-k", "top-k:k=3"]
    found = {
        text: curve(entry_from(text).at, draft=DRAFT, target=TARGET, deltas=DELTAS)
        for text in texts
    }
    left, right = plots.delta_curves(found)
    for axes in (left, right):
        looks = {(line.get_color(), str(line._dash_pattern)) for line in axes.lines[:5]}
        assert len(looks) == 5
    assert [line.get_label() for line in left.lines[:5]] == [
        RULES[text].title if text in RULES else text for text in texts
    ]


def test_a_budget_of_zero_has_no_place_on_a_logarithmic_axis():
    found = curve(Cactus, draft=DRAFT, target=TARGET, deltas=[0.0, 1.0])
    with pytest.raises(ValueError, match=r"deltas must be positive, got \[0.0, 1.0\]"):
        plots.delta_curves({"cactus": found})


def test_a_kl_that_is_infinite_leaves_the_scale_to_the_others():
    target = np.where(np.arange(16) < 15, TARGET, 0.0)
    target /= target.sum(axis=1, keepdims=True)
    both = {
        name: curve(RULES[name].at, draft=DRAFT, target=target, deltas=DELTAS)
        for name in ("cactus", "mixture")
    }
    assert np.isinf(both["mixture"].kl).all()
    _, right = plots.delta_curves(both)
    assert right.get_ylim()[1] == pytest.approx(1.05 * both["cactus"].kl.max())


def test_pareto_draws_acceptance_against_both_prices_and_points_where_there_is_no_budget(curves):
    left, right = plots.pareto(curves)
    for i, (name, found) in enumerate(curves.items()):
        count = 1 if RULES[name].at_budget is None else 3
        for axes, spent in ((left, found.total_variation), (right, found.kl)):
            wanted = [spent[:count], found.acceptance_rate[:count]]
            np.testing.assert_array_equal(axes.lines[i].get_xydata().T, wanted)
        assert (left.lines[i].get_marker() == "o") == (count == 1)


def test_granted_draws_g_and_the_share_of_the_budget_that_is_spent():
    left, right = plots.granted(0.5)
    drawn = dict(zip(budgeted_candidates(), left.lines, strict=True))
    q = drawn["exact"].get_xdata()
    exact = exact_optimum(q, 0.5).value
    # The rule's root is rounded either way, the optimum's down by some ulp of 1.
    np.testing.assert_allclose(drawn["exact"].get_ydata(), exact, rtol=0, atol=5e-15)
    np.testing.assert_array_equal(drawn["cactus"].get_ydata(), second_order_optimum(q, 0.5))
    shares = right.lines[0].get_ydata()
    np.testing.assert_array_equal(shares, binary_kl(second_order_optimum(q, 0.5), q) / 0.5)
    assert shares.max() > 1.3


@pytest.mark.parametrize("delta", [0.0, -1.0, np.inf])
def test_granted_needs_a_budget(delta):
    with pytest.raises(ValueError, match="delta must be"):
        plots.granted(delta)


def test_laws_draws_the_largest_tokens_of_three_laws():
    axes = plots.laws(Cactus(0.1), draft=DRAFT[0], target=TARGET[0], tokens=5)
    shown = np.argsort(-np.maximum(DRAFT[0], TARGET[0]))[:5]
    emitted = output_distribution(Cactus(0.1), draft=DRAFT[0], target=TARGET[0])
    heights = [patch.get_height() for patch in axes.patches]
    np.testing.assert_array_equal(
        heights, np.concatenate([law[shown] for law in (DRAFT[0], TARGET[0], emitted)])
    )


def test_ledger_draws_running_sums_from_zero():
    axes = plots.ledger({"TV": [0.5, 0.0], "KL bound (nats)": [1.0, 2.0]})
    assert [line.get_ydata().tolist() for line in axes.lines] == [[0, 0.5, 0.5], [0, 1, 3]]


def test_counts_draws_the_expectation_and_four_deviations():
    axes = plots.counts([30, 70], [0.4, 0.6], names=["a", "b"])
    assert [patch.get_height() for patch in axes.patches] == [30, 70]
    (bars,) = axes.containers[1][2]
    heights = np.array(bars.get_segments())[:, :, 1]
    np.testing.assert_allclose(heights.mean(axis=1), [40, 60])
    np.testing.assert_allclose(np.diff(heights)[:, 0], 8 * np.sqrt(24))


def test_counts_of_another_vocabulary_are_refused():
    with pytest.raises(ValueError, match="must have one shape"):
        plots.counts([1, 2, 3], [0.5, 0.5])


def test_every_axis_has_a_label_and_every_line_a_look_of_its_own(curves):
    pictures = [*plots.delta_curves(curves), *plots.pareto(curves), *plots.granted(1.0)]
    pictures += [plots.laws(Cactus(1.0), draft=DRAFT[0], target=TARGET[0])]
    pictures += [plots.ledger({"TV": [0.5]}), plots.counts([1, 1], [0.5, 0.5])]
    for axes in pictures:
        assert axes.get_xlabel()
    assert all(axes.get_ylabel() for axes in pictures[::2])
    assert len(drawn(pictures[0])) == len(RULES)


def test_a_key_of_the_legend_is_long_enough_to_show_every_dash_of_its_line(curves):
    left, _ = plots.pareto(curves)
    (legend,) = left.figure.legends
    points = legend.handlelength * legend.get_texts()[0].get_fontsize()
    width = plt.rcParams["lines.linewidth"]  # by which dashes are scaled
    assert points >= width * max(sum(look.dash) for look in RULES.values())


def test_the_line_of_the_budget_does_not_hide_a_curve_that_lies_on_it(curves):
    for axes in (plots.granted(0.5)[1], plots.delta_curves(curves)[1]):
        *others, reference = axes.lines
        assert all(reference.get_zorder() < line.get_zorder() for line in others)


def test_pictures_are_drawn_into_axes_that_are_given(curves):
    figure, axes = plt.subplots(1, 2)
    plots.delta_curves(curves, axes=axes)
    assert len(axes[0].lines) == len(curves)
    assert plt.get_fignums() == [figure.number]
