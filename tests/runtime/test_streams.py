"""Uniforms, seeds and the inverse distribution function."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from cactus_runtime.streams import Purpose, Streams, draw_tokens


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
