"""Filters, uniforms and the inverse distribution function."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cactus_runtime.sampling import SamplingParams
from cactus_runtime.streams import Purpose, Streams, draw_tokens


def law(logits, **parameters):
    return SamplingParams(**parameters).warp(torch.tensor([logits])).softmax(-1)[0]


def test_temperature_divides_the_logits():
    torch.testing.assert_close(
        law([0.0, 1.0], temperature=0.5), torch.tensor([0.0, 2.0]).softmax(-1)
    )


def test_temperature_zero_is_one_hot_on_the_first_largest_logit():
    assert law([1.0, 3.0, 3.0], temperature=0).tolist() == [0, 1, 0]


@pytest.mark.parametrize("temperature", [1e-30, 1e-8, 1e30])
def test_an_extreme_temperature_gives_a_law(temperature):
    tempered = law([3e4, 1.0, 3e4, -torch.inf], temperature=temperature)
    assert tempered.sum().item() == pytest.approx(1)
    assert tempered[3] == 0
    assert tempered[0] == tempered[2]


def test_numpy_numbers_are_numbers():
    sampling = SamplingParams(temperature=np.float32(0.5), top_k=np.int64(2))
    assert (sampling.warp(torch.zeros(1, 4)) > -torch.inf).sum() == 4  # ties of the second


def test_top_k_and_top_p_keep_the_most_probable():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log().tolist()
    torch.testing.assert_close(law(logits, top_k=2), torch.tensor([0.625, 0.375, 0, 0]))
    torch.testing.assert_close(law(logits, top_p=0.6), torch.tensor([0.625, 0.375, 0, 0]))
    torch.testing.assert_close(law(logits, top_k=1000), torch.tensor([0.5, 0.3, 0.15, 0.05]))


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"temperature": -0.1}, ValueError),
        ({"temperature": 1e-38}, ValueError),
        ({"temperature": float("nan")}, ValueError),
        ({"temperature": float("inf")}, ValueError),
        ({"temperature": "hot"}, TypeError),
        ({"top_p": 0.0}, ValueError),
        ({"top_p": 1.1}, ValueError),
        ({"top_p": float("nan")}, ValueError),
        ({"top_k": 0}, ValueError),
        ({"top_k": 2.5}, TypeError),
        ({"top_k": True}, TypeError),
    ],
)
def test_a_wrong_parameter_is_named_with_its_value(wrong, error):
    (name, value), *_ = wrong.items()
    with pytest.raises(error, match=f"{name} must .*{value}"):
        SamplingParams(**wrong)


def test_uniforms_are_numpy_s_philox_of_seed_request_position_and_purpose():
    got = Streams(5, request=9).uniforms(position=4, count=3)
    for i, drawn in enumerate(got):
        bits = np.random.Philox(key=5 + (9 << 64), counter=4 + i)
        assert drawn.tolist() == np.random.Generator(bits).random(len(Purpose)).tolist()


def test_no_two_streams_share_a_uniform():
    draws = [
        value
        for seed in (0, 1)
        for request in (0, 1)
        for value in Streams(seed, request=request).uniforms(position=0, count=50).ravel()
    ]
    assert len(set(draws)) == len(draws)


def test_a_fresh_seed_survives_readers_of_json_whose_numbers_are_floats():
    seeds = {Streams().seed for _ in range(200)}
    assert len(seeds) == 200
    assert all(float(seed) == seed for seed in seeds)


weights = st.lists(st.sampled_from([0.0, 1e-30, 0.1, 1.0, 3.0]), min_size=1, max_size=8).filter(any)


@given(weights, st.one_of(st.sampled_from([0.0, 1 - 2**-53]), st.floats(0, 1, exclude_max=True)))
def test_inverse_cdf_never_draws_weight_zero_and_brackets_its_uniform(weights, uniform):
    u = torch.tensor([uniform], dtype=torch.float64)
    index = draw_tokens(torch.tensor([weights], dtype=torch.float64), u).item()
    cumulative = np.cumsum(weights)
    assert weights[index] > 0
    assert cumulative[index] >= uniform * cumulative[-1]
    assert index == 0 or cumulative[index - 1] <= uniform * cumulative[-1]


def test_inverse_cdf_is_right_on_a_large_vocabulary():
    law = torch.full((1, 152_000), 1 / 152_000)
    u = torch.tensor([0.75], dtype=torch.float64)
    assert abs(draw_tokens(law, u).item() - 114_000) <= 1
