"""The floating-point type that models given by name are loaded in, and how results name it.

Knows processors, not models: whether a type suits a model is for the user to say.
"""

from __future__ import annotations

import os
from typing import Literal, get_args

import torch

DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
DTYPES: tuple[str, ...] = get_args(DtypeName)
VARIABLE = "CACTUS_DTYPE"


def chosen_dtype(dtype: str | torch.dtype, *, device: str | torch.device = "cpu") -> torch.dtype:
    """The type that a name stands for on a device.

    "auto" is bfloat16 where the processor multiplies it natively, float32 elsewhere. The
    environment variable ``CACTUS_DTYPE`` replaces "auto" by another name, so that runs are alike on
    all machines.

    Parameters
    ----------
    dtype : str or torch.dtype
        "auto", "float32", "bfloat16" or "float16".
    device : str or torch.device

    Returns
    -------
    torch.dtype

    Raises
    ------
    ValueError
        If there is no such type.

    Examples
    --------
    >>> chosen_dtype("bfloat16")
    torch.bfloat16
    >>> chosen_dtype("auto") in (torch.bfloat16, torch.float32)
    True
    """
    if dtype == "auto":
        given = os.environ.get(VARIABLE, "auto")
        if given not in DTYPES:
            raise ValueError(f"{VARIABLE} must be one of {', '.join(DTYPES)}, got {given!r}")
        if given == "auto":
            return torch.bfloat16 if has_native_bfloat16(device) else torch.float32
        dtype = given
    if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
        return dtype
    if dtype not in DTYPES:
        raise ValueError(
            f"dtype must be one of {', '.join(DTYPES)}, or a floating torch.dtype, got {dtype!r}"
        )
    return getattr(torch, str(dtype))


def has_native_bfloat16(device: str | torch.device = "cpu") -> bool:
    """Whether a processor has instructions for bfloat16: AVX-512 BF16, AMX, or a recent GPU.

    Others are slower in bfloat16 than in float32, because every number is converted. Processors of
    which torch says nothing, such as those of ARM, count as such.

    Examples
    --------
    >>> has_native_bfloat16() in (False, True)
    True
    """
    kind = torch.device(device).type
    if kind == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if kind != "cpu":
        return False
    asks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, ask, bool)() for ask in asks)


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a type without its module.

    Examples
    --------
    >>> dtype_name(torch.bfloat16)
    'bfloat16'
    """
    return str(dtype).removeprefix("torch.")
