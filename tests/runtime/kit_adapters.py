"""The verifiers of the runtime in the form that the conformance kit takes."""

from __future__ import annotations

import numpy as np
import torch


def in_torch(verify, rule, *, dtype=torch.float64):
    """A verifier of ragged batches, `verify` being one of padded tensors with `num_drafts`."""

    def verifier(tokens, draft, target, accept_uniforms, recover_uniforms):
        counts = [len(row) for row in tokens]
        rows, longest, size = len(tokens), max(counts), np.shape(target[0])[-1]
        ids = torch.zeros(rows, longest, dtype=torch.int64)
        drafts = torch.full((rows, longest, size), 1 / size, dtype=dtype)
        logits = torch.zeros(rows, longest + 1, size, dtype=dtype)
        accept = torch.zeros(rows, longest, dtype=torch.float64)
        for i, k in enumerate(counts):
            ids[i, :k] = torch.tensor(tokens[i], dtype=torch.int64)
            drafts[i, :k] = floats(draft[i])
            logits[i, : k + 1] = floats(target[i]).log()
            accept[i, :k] = floats(accept_uniforms[i])
        block = verify(
            rule,
            ids,
            draft_probs=drafts,
            target_logits=logits,
            accept_uniforms=accept,
            recover_uniforms=floats(recover_uniforms),
            num_drafts=torch.tensor(counts),
        )
        accepted = block.accepted.tolist()
        last = block.last_token.tolist()
        pairs = zip(tokens, accepted, last, strict=True)
        return [[*row[:count], token] for row, count, token in pairs], accepted

    return verifier


def floats(values):
    """Numbers or Fractions as a float64 tensor."""
    return torch.from_numpy(np.asarray(values, dtype=np.float64))
