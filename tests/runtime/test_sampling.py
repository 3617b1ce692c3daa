"""Temperature and filters, and what is refused of them."""

import numpy as np
import pytest
import torch

from cactus_runtime.sampling import SamplingParams


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
