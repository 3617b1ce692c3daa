"""Results on a terminal, and the warnings that they carry."""

import unicodedata
from dataclasses import replace
from io import StringIO

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from rich.console import Console

from cactus_runtime import Block, DecodeResult, Token, Verdict
from cactus_runtime.result.record import ENOUGH
from cactus_runtime.result.terminal import STYLES, colour, comparison, figures, showable
from cactus_runtime.result.trace import Dtypes, Seconds
from cactus_theory import Cactus

VERDICT = Verdict(5, 0.3, 0.1, 0.2, 0.7, 0.05, 0.02)
ACCEPTED = Token(id=5, text=" a", origin="accepted", logprob=-1.5, verdict=VERDICT)
RECOVERED = replace(ACCEPTED, origin="recovered")
PLAIN = replace(ACCEPTED, origin="plain", verdict=None)
CHEAP = Seconds(draft=0.0, target=1.0, verification=0.1, total=1.2)


def make(trace, *, blocks, seconds=CHEAP):
    return DecodeResult(
        text="".join(token.text for token in trace),
        trace=tuple(trace),
        prompt_tokens=3,
        finish_reason="length",
        seed=1,
        number=0,
        rule=Cactus(0.1),
        blocks=tuple(blocks),
        seconds=seconds,
        dtypes=Dtypes("float32", "float32"),
    )


def rejecting(count, **changes):
    return make([RECOVERED] * count, blocks=[Block(1, 0, 1)] * count, **changes)


def printed(renderable):
    console = Console(file=StringIO(), width=200)
    console.print(renderable)
    return console.file.getvalue()


@given(st.text(st.characters(exclude_categories=())), st.sampled_from(sorted(STYLES)))
def test_a_token_cannot_command_the_terminal(text, origin):
    shown = colour(replace(PLAIN, text=text, origin=origin))
    assert shown.plain == showable(text)
    assert len(shown.plain) == len(text)
    for char, original in zip(shown.plain, text, strict=True):
        assert unicodedata.category(char) not in ("Cc", "Cs") or char in "\t\n"
        harmless = unicodedata.category(original) not in ("Cc", "Cs", "Cn") or original in "\t\n"
        assert char == original or not harmless
    printed(shown).encode("utf-8")


@pytest.mark.parametrize(("char", "shown"), [("\x1b", "␛"), ("\r", "␍"), ("\x1f", "␟")])
def test_a_control_is_shown_by_its_picture(char, shown):
    assert showable(f"a{char}b\n") == f"a{shown}b\n"


@pytest.mark.parametrize("char", ["\x7f", "\x9b", "\ud800", "\ufdd0", "\uffff", "\U0010fffe"])
def test_what_has_no_picture_is_shown_by_the_replacement_character(char):
    assert showable(f"\t{char}b") == "\t\N{REPLACEMENT CHARACTER}b"


def test_figures_are_the_properties():
    result = make(
        [ACCEPTED, ACCEPTED, PLAIN, RECOVERED, ACCEPTED, RECOVERED],
        blocks=[Block(2, 2, 3), Block(2, 0, 1), Block(2, 1, 2)],
    )
    said = figures(result)
    by_position = said.pop("acceptance by position").split()
    assert list(map(float, by_position)) == pytest.approx([2 / 3, 1 / 2], abs=0.005)
    expected = {
        "tokens": (6, 0),
        "tokens/s": (result.tokens_per_second, 1),
        "accepted drafts per block": (result.accepted_tokens, 2),
        "acceptance rate": (result.acceptance_rate, 3),
        "block efficiency": (result.block_efficiency, 2),
        "total variation per token": (result.total_variation / 6, 4),
        "total variation in all": (result.total_variation, 3),
        "KL bound per token (nats)": (result.kl_bound / 6, 4),
        "KL bound in all (nats)": (result.kl_bound, 3),
    }
    assert said.keys() == expected.keys()
    for label, (value, digits) in expected.items():
        # Printed with so many decimals: half a unit of the last.
        assert float(said[label]) == pytest.approx(value, abs=0.501 * 10**-digits), label


def test_where_nothing_was_verified_there_is_a_dash():
    plain = figures(make([PLAIN], blocks=[Block(0, 0, 1)]))
    assert plain["acceptance rate"] == plain["acceptance by position"] == "-"
    never_reached = figures(make([RECOVERED], blocks=[Block(2, 0, 1)]))
    assert never_reached["acceptance by position"] == "0.00 -"


def test_the_comparison_has_a_column_for_each_result_and_a_row_for_each_figure():
    results = {"one": rejecting(3), "two": make([PLAIN], blocks=[Block(0, 0, 1)])}
    table = comparison(results)
    assert [column.header for column in table.columns] == ["", "one", "two"]
    cells = [list(column.cells) for column in table.columns]
    for i, result in enumerate(results.values(), start=1):
        assert dict(zip(cells[0], cells[i], strict=True)) == figures(result)


def test_a_decode_without_any_kept_draft_is_warned_of_from_twenty_positions_on():
    assert ENOUGH == 20  # the docstring says so
    assert rejecting(20).warnings == ("none of 20 verified draft tokens was kept",)
    assert rejecting(19).warnings == ()
    assert make([RECOVERED] * 30 + [ACCEPTED], blocks=[Block(1, 0, 1)] * 31).warnings == ()


def test_plain_decoding_has_nothing_to_warn_of():
    seconds = Seconds(draft=0.1, target=1.0, verification=0.1, total=1.3)
    assert make([PLAIN] * 50, blocks=[Block(0, 0, 1)] * 50, seconds=seconds).warnings == ()


def half_kept(count, draft, *, total=10.0):
    """Blocks of one draft of which every second is kept: 1.5 tokens per pass."""
    blocks = [Block(1, 1, 2), Block(1, 0, 1)] * (count // 2)
    seconds = Seconds(draft=draft, target=total - draft, total=total)
    return make([ACCEPTED, PLAIN, RECOVERED] * (count // 2), blocks=blocks, seconds=seconds)


def test_drafting_that_takes_more_time_than_it_can_repay_is_warned_of():
    # 1.5 tokens per pass spare a third of the passes: drafting may take a third of the time.
    assert half_kept(20, 3.4).warnings == (
        "plain decoding would have been faster: drafting took 34.0% of the time, and 1.50 tokens "
        "per target pass repay at most 33.3%",
    )
    assert half_kept(20, 3.3).warnings == ()
    assert half_kept(18, 9.0).warnings == ()
    assert half_kept(20, 0.0, total=0.0).warnings == ()


@given(
    st.lists(st.booleans(), min_size=ENOUGH, max_size=60).filter(any),
    *[st.floats(0.01, 1)] * 4,
)
def test_it_is_warned_exactly_where_passes_without_drafting_would_have_sufficed(
    kept, draft, target, verification, overhead
):
    pairs = [((ACCEPTED, PLAIN) if keep else (RECOVERED,)) for keep in kept]
    total = draft + target + verification + overhead
    result = make(
        [token for pair in pairs for token in pair],
        blocks=[Block(1, int(keep), 1 + keep) for keep in kept],
        seconds=Seconds(draft, target, verification, total),
    )
    plain = len(result.tokens) * (target + verification + overhead) / len(result.blocks)
    assume(abs(total - plain) > 1e-9)  # rounding decides nearer ties
    assert bool(result.warnings) == (total > plain)


def test_warnings_follow_the_account_in_words():
    result = rejecting(20)
    assert str(result).splitlines()[-1] == f"  warning: {result.warnings[0]}"
    assert "warning" not in str(rejecting(19))
