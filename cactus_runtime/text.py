"""From tokens to text as they come: incomplete characters wait, stop strings cut."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

_CONTEXT = 6  # prompt tokens decoded along, for tokenizers that treat a first token specially


class TextStream:
    """Incremental detokenisation with stop strings.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase or None
        None gives no text.
    prompt_ids : sequence of int
    stop : sequence of str
        The text ends before the first of them; text that may be the beginning of one waits.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase | None,
        prompt_ids: Sequence[int],
        stop: Sequence[str],
    ) -> None:
        self.text = ""
        self.stopped = False
        self._tokenizer = tokenizer
        self._stop = tuple(stop)
        self._ids = list(prompt_ids[-_CONTEXT:])
        self._window, self._read = 0, len(self._ids)
        self._held = ""

    def push(self, token: int, *, last: bool = False) -> str:
        """Add a token; return the text it releases. `last` releases all that waits."""
        if self._tokenizer is None:
            return ""
        self._ids.append(token)
        self._held += self._new_text(whole=last)
        cut = self._first_stop()
        if cut is not None:
            self.stopped = True
            piece, self._held = self._held[:cut], ""
        else:
            keep = 0 if last else self._possible_stop()
            split = len(self._held) - keep
            piece, self._held = self._held[:split], self._held[split:]
        self.text += piece
        return piece

    def _new_text(self, *, whole: bool) -> str:
        before = self._decode(self._ids[self._window : self._read])
        after = self._decode(self._ids[self._window :])
        if len(after) == len(before) or (after.endswith("�") and not whole):
            return ""  # a special token, or the middle of a character
        self._window, self._read = self._read, len(self._ids)
        return after[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(  # type: ignore[union-attr]
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )

    def _first_stop(self) -> int | None:
        places = [self._held.find(stop) for stop in self._stop]
        return min((place for place in places if place >= 0), default=None)

    def _possible_stop(self) -> int:
        """Length of the longest tail that is a proper beginning of a stop string."""
        longest = max((len(stop) - 1 for stop in self._stop), default=0)
        for size in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self._stop):
                return size
        return 0
