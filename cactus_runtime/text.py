"""From tokens to text, incrementally: incomplete characters wait, stop strings end the text."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

_CONTEXT = 6  # prompt tokens decoded along, for tokenizers that treat a first token specially
_PIECES = 3  # tokens of a character of four bytes, less one
_MISSING = "\N{REPLACEMENT CHARACTER}"  # tokenizers decode a part of a character to this
_SPELLINGS = (_MISSING, "<0xEF><0xBF><0xBD>", "ï¿½")  # as a token, by byte fallback, byte-level


class TextStream:
    """Incremental detokenisation with stop strings.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase or None
        None gives no text.
    prompt_ids : sequence of int
        The text continues their text. Where they end inside a character, it begins with that
        character.
    stop : sequence of str
        The text ends before the first of them; text that may be the beginning of one is held back.
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
        self._ids = list(prompt_ids[-_CONTEXT - _PIECES :])
        self._window, self._read = self._whole_characters()
        self._held = ""

    def push(self, token: int, *, last: bool = False) -> str:
        """Add a token and return the text it completes. `last` releases all held-back text."""
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

    def _whole_characters(self) -> tuple[int, int]:
        """Indices where context and text begin, neither inside a character.

        A part of a character is not decoded alone, because byte fallback corrupts its neighbours.
        """
        size = len(self._ids)
        if self._tokenizer is None:
            return size, size
        first = max(size - _CONTEXT, 0)
        for end in range(size, max(size - _PIECES, 0) - 1, -1):
            for start in (*range(min(first, end - 1), -1, -1), *range(first + 1, end)):
                if self._is_whole(self._ids[start:end]):
                    return start, end
        return size, size

    def _is_whole(self, ids: list[int]) -> bool:
        """Whether the ids neither begin nor end inside a character."""
        text = self._decode(ids)
        if not text.startswith(_MISSING) and not text.endswith(_MISSING):
            return True
        convert = getattr(self._tokenizer, "convert_ids_to_tokens", lambda ids: [])
        spelled = "".join(convert(ids))  # the replacement character itself is whole
        begins = not text.startswith(_MISSING) or spelled.startswith(_SPELLINGS)
        return begins and (not text.endswith(_MISSING) or spelled.endswith(_SPELLINGS))

    def _new_text(self, *, whole: bool) -> str:
        before = self._decode(self._ids[self._window : self._read])
        after = self._decode(self._ids[self._window :])
        if after == before or (after.endswith(_MISSING) and not whole):
            return ""  # a special token, or the middle of a character
        if not after.startswith(before):  # new incomplete bytes changed the old text
            before, after = "", self._decode(self._ids[self._read :])
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
