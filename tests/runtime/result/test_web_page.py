"""Results as HTML: what is shown is what was decoded, and nothing in it is taken for markup."""

import math
import re
import unicodedata
from dataclasses import replace
from html.parser import HTMLParser
from itertools import accumulate
from xml.etree.ElementTree import Element, TreeBuilder

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cactus_runtime import Block, DecodeResult, Token, Verdict, html_page
from cactus_runtime.result import svg_curve as curve
from cactus_runtime.result.terminal import figures
from cactus_runtime.result.trace import Dtypes, Seconds
from cactus_runtime.result.web_page import LOOKS, details, fragment
from cactus_theory import Cactus

VOID = {"meta"}
SVG = {"path", "polyline", "circle", "g", "text"}
CHILDREN = {  # what may stand in what, of the elements that are used
    "html": {"head", "body"},
    "head": {"meta", "title", "style"},
    "body": {"h1", "h2", "p", "div", "table", "svg"},
    "div": {"span", "div", "p", "table", "style"},
    "p": {"span"},
    "span": {"span"},
    "table": {"tr"},
    "tr": {"th", "td"},
    "svg": SVG,
    "g": {"text"},
}


class Reader(HTMLParser):
    """Builds the tree of a text in which every element is closed where it was opened."""

    def __init__(self):
        super().__init__()
        self.builder, self.open, self.declared = TreeBuilder(), [], []

    def handle_decl(self, decl):
        self.declared.append(decl)

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), f"an attribute twice in {tag}"
        self.builder.start(tag, {name: value or "" for name, value in attrs})
        self.open.append(tag)
        if tag in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        self.builder.end(tag)

    def handle_data(self, data):
        if self.open:
            self.builder.data(data)


def read(text: str) -> Element:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader.builder.close()


def by_class(tree: Element, name: str) -> list[Element]:
    return [element for element in tree.iter() if name in element.get("class", "").split()]


def shown_tokens(tree: Element) -> list[Element]:
    (text,) = by_class(tree, "text")
    return list(text)


def told(token: Element) -> dict[str, str]:
    (box,) = by_class(token, "details")
    return dict(line.split(": ", 1) for line in box.text.split("\n"))


def table(tree: Element) -> dict[str, str]:
    return {row[0].text: row[1].text for row in tree.iter("tr")}


ANY_CHARACTER = st.characters(exclude_categories=())  # surrogates too
TEXTS = st.text(ANY_CHARACTER, max_size=4) | st.sampled_from(
    ["<script>alert(1)</script>", "</span>", "</div>", "&amp;", "'\"", "\r\n", "\x1b[2J", "\u202e"]
)
PROBABILITIES = st.floats(0, 1)
VERDICTS = st.builds(
    Verdict,
    id=st.integers(0, 10**6),
    draft_prob=st.floats(1e-300, 1),  # a drafted token was possible
    target_prob=PROBABILITIES,
    boosted=PROBABILITIES,
    acceptance_rate=PROBABILITIES,
    total_variation=PROBABILITIES,
    kl_bound=st.floats(0, 50),
)
TOKENS = st.builds(
    lambda judged, **rest: Token(origin=judged[0], verdict=judged[1], **rest),
    st.tuples(st.sampled_from(["accepted", "recovered"]), VERDICTS)
    | st.tuples(st.sampled_from(["bonus", "plain"]), st.none()),
    id=st.integers(0, 10**6),
    text=TEXTS,
    logprob=st.floats(-1e3, 0),
)
TRACES = st.lists(TOKENS, max_size=8).map(tuple)


def make(trace, **changes):
    result = DecodeResult(
        text="".join(token.text for token in trace),
        trace=trace,
        prompt_tokens=3,
        finish_reason="length",
        seed=1,
        number=0,
        rule=Cactus(0.1),
        blocks=tuple(
            Block(token.verdict is not None, token.origin == "accepted", 1) for token in trace
        ),
        seconds=Seconds(draft=0.1, target=1.0, verification=0.1, total=1.3),
        dtypes=Dtypes("float32", "float32"),
    )
    return replace(result, **changes)


VERDICT = Verdict(5, 0.3, 0.1, 0.2, 0.7, 0.05, 0.02)
ACCEPTED = Token(id=5, text=" a", origin="accepted", logprob=-1.5, verdict=VERDICT)
RECOVERED = Token(id=6, text=" b", origin="recovered", logprob=-0.5, verdict=VERDICT)
BONUS = Token(id=7, text=" c", origin="bonus", logprob=-2.5, verdict=None)
TRACE = (ACCEPTED, RECOVERED, BONUS)


def test_the_pair_itself_decodes_to_a_page_of_its_text(tiny):
    from cactus_runtime import decode

    result = decode(tiny, "kindness:", rule=Cactus(0.5), max_new_tokens=12, seed=1)
    tree = read(html_page(result))
    assert "".join(token.text for token in shown_tokens(tree)) == result.text


@given(TRACES, TEXTS.filter(str.strip))
def test_elements_are_closed_and_stand_where_they_may(trace, title):
    result = make(trace)
    page = html_page(result, title=title)
    page.encode("utf-8")
    reader = Reader()
    reader.feed(page)
    assert reader.declared == ["DOCTYPE html"]
    for tree in (read(page), read(fragment(result))):
        for parent in tree.iter():
            assert {child.tag for child in parent} <= CHILDREN.get(parent.tag, set())


def holds(char: str) -> bool:
    """Whether a document may contain it, by the HTML standard."""
    noncharacter = ord(char) % 0x10000 >= 0xFFFE or "\ufdd0" <= char <= "\ufdef"
    return char in "\t\n" or (not noncharacter and unicodedata.category(char) not in ("Cc", "Cs"))


def is_visible(text: str) -> bool:
    """Whether some character has ink of its own; a combining one may vanish in its neighbour."""
    return any(
        char.isprintable() and not char.isspace() and unicodedata.category(char)[0] != "M"
        for char in text
    )


@given(TRACES)
def test_the_pieces_joined_are_the_text(trace):
    result = make(trace)
    shown = "".join(token.text or "" for token in shown_tokens(read(html_page(result))))
    assert len(shown) == len(result.text)
    for char, original in zip(shown, result.text, strict=True):
        assert char == original if holds(original) else is_visible(char)


@given(TRACES)
@example((replace(ACCEPTED, text=""), replace(RECOVERED, text="\n"), replace(BONUS, text="\u0301")))
def test_a_token_without_ink_of_its_own_is_marked_and_no_other(trace):
    page = read(html_page(make(trace)))
    tokens = shown_tokens(page)
    assert len(tokens) == len(trace)
    for token, shown in zip(trace, tokens, strict=True):
        classes = shown.get("class").split()
        assert classes[0] == token.origin
        assert ("mark" in classes[1:]) != is_visible(shown.text or "")
    (style,) = page.iter("style")
    assert '.mark::before{content:"\\B7"}' in style.text


@given(TRACES)
def test_the_details_of_a_token_are_those_of_its_verdict(trace):
    tokens = shown_tokens(read(html_page(make(trace))))
    for i, (token, shown) in enumerate(zip(trace, tokens, strict=True), start=1):
        found = told(shown)
        assert found.pop("token") == f"{i} of {len(trace)}"
        assert found == details(token)
        assert (found["id"], found["origin"]) == (f"{token.id}", token.origin)
        said = {key: re.sub(r"at most | nats", "", value) for key, value in found.items()}
        expected = {"log-probability": token.logprob}
        if token.verdict is None:
            assert said["charged"] == "nothing"
        else:
            verdict = token.verdict
            expected |= {
                "draft p": verdict.draft_prob,
                "target q": verdict.target_prob,
                "granted g": verdict.boosted,
                "chance to pass": min(verdict.boosted / verdict.draft_prob, 1),
                "acceptance rate": verdict.acceptance_rate,
                "charged TV": verdict.total_variation,
                "charged KL": verdict.kl_bound,
            }
        for key, value in expected.items():
            # Six significant digits err by half a unit of the sixth; a subnormal has fewer bits.
            assert float(said[key]) == pytest.approx(value, rel=5.001e-6, abs=1e-300), key


def test_a_recovered_token_names_the_draft_that_was_refused_and_no_other_does():
    named = [
        told(shown).get("rejected draft") for shown in shown_tokens(read(html_page(make(TRACE))))
    ]
    assert named == [None, f"id {VERDICT.id}", None]


def test_details_are_reached_by_pointer_and_by_key_and_stay_hidden_without_the_style():
    page = read(html_page(make(TRACE)))
    for token in shown_tokens(page):
        assert token.get("tabindex") == "0"
        (box,) = by_class(token, "details")
        assert "hidden" in box.attrib
    (style,) = page.iter("style")
    for state in ("hover", "focus"):
        rule = rf":{state}>\.details[^{{}}]*{{display:block!important}}"
        assert re.search(rule, style.text)


@given(TRACES)
def test_the_table_holds_the_figures(trace):
    result = make(trace)
    for text in (html_page(result), fragment(result)):
        rows = table(read(text))
        for label, figure in figures(result).items():
            assert rows.pop(label) == figure
        assert rows == {
            "rule": str(result.rule),
            "seed": "1",
            "number of the request": "0",
            "prompt tokens": "3",
            "ended by": "length",
        }


def polylines(page: str) -> list[list[tuple[float, float]]]:
    return [
        [tuple(map(float, point.split(","))) for point in line.get("points").split()]
        for line in read(page).iter("polyline")
    ]


@given(TRACES.filter(len))
def test_a_curve_has_a_point_for_each_token_at_its_running_sum(trace):
    result = make(trace)
    lines = polylines(html_page(result))
    verdicts = [token.verdict for token in trace]
    charges = [
        [verdict.total_variation if verdict else 0.0 for verdict in verdicts],
        [verdict.kl_bound if verdict else 0.0 for verdict in verdicts],
    ]
    for line, charged, total in zip(
        lines, charges, (result.total_variation, result.kl_bound), strict=True
    ):
        sums = list(accumulate(charged))
        assert sums[-1] == pytest.approx(total)
        height = curve.BOTTOM - curve.TOP
        shares = [(curve.BOTTOM - y) / height * (sums[-1] or 1.0) for _, y in line]
        rounding = 0.051 / height * sums[-1]  # a coordinate has one decimal
        assert shares == pytest.approx(sums, abs=rounding)
        steps = [x - curve.LEFT for x, _ in line]
        even = (curve.RIGHT - curve.LEFT) / len(trace)
        assert steps == pytest.approx([even * (i + 1) for i in range(len(trace))], abs=0.051)


def test_the_axes_are_labelled_with_their_units():
    drawings = list(read(html_page(make(TRACE))).iter("svg"))
    labels = [[text.text for text in drawing.iter("text")] for drawing in drawings]
    assert labels == [
        ["0", "0.1", "0", "3", "token index", "total variation"],
        ["0", "0.04", "0", "3", "token index", "KL bound (nats)"],
    ]


@pytest.mark.parametrize("charge", [math.inf, math.nan])
def test_a_charge_that_is_not_finite_is_drawn_at_the_upper_edge(charge):
    endless = replace(RECOVERED, verdict=replace(VERDICT, kl_bound=charge))
    page = html_page(make((ACCEPTED, endless, ACCEPTED)))
    heights = [y for _, y in polylines(page)[1]]
    assert heights == [curve.TOP] * 3  # the only finite sum is the largest
    assert f"KL bound (nats) against the token index: the final sum is {charge}" in page


def test_there_is_nothing_to_draw_without_tokens():
    assert polylines(html_page(make(()))) == []
    with pytest.raises(ValueError, match="at least one token"):
        curve.running_sum([], label="nats", colour="red")


@given(TRACES, TEXTS.filter(str.strip))
def test_a_page_loads_nothing_and_runs_nothing(trace, title):
    result = make(trace)
    for tree in (read(html_page(result, title=title)), read(fragment(result))):
        for element in tree.iter():
            assert element.tag not in ("script", "link", "img", "iframe")
            assert not {name for name in element.attrib if name.startswith("on")}
            assert not {"src", "href", "style"} & element.attrib.keys()
        (style,) = tree.iter("style")
        assert not re.search(r"url\(|@import", style.text)


def test_a_notebook_shows_the_fragment():
    result = make(TRACE)
    assert result._repr_html_() == fragment(result)
    assert "<svg" not in fragment(result)


def test_warnings_are_shown():
    losing = make((RECOVERED,) * 20)
    assert len(losing.warnings) == 2
    for text in (html_page(losing), fragment(losing)):
        shown = [element.text for element in by_class(read(text), "warning")]
        assert shown == [f"Warning: {sentence}." for sentence in losing.warnings]
    assert by_class(read(html_page(make(TRACE))), "warning") == []


def test_without_a_text_the_ids_are_shown():
    bare = tuple(replace(token, text="") for token in TRACE)
    shown = shown_tokens(read(html_page(make(bare, text=None))))
    assert [token.text for token in shown] == ["5 ", "6 ", "7 "]


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb, as WCAG 2 defines it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("origin", LOOKS)
@pytest.mark.parametrize("background", ["#ffffff", "#111111"])
def test_an_underline_stands_out_from_light_and_dark_pages(origin, background):
    lights = sorted(luminance(colour) + 0.05 for colour in (LOOKS[origin].colour, background))
    assert lights[1] / lights[0] >= 3  # WCAG 2.1, 1.4.11


def test_origins_differ_in_more_than_colour():
    assert len({look.underline for look in LOOKS.values()}) == len(LOOKS) == 4
    page = html_page(make(TRACE))
    for origin, look in LOOKS.items():
        assert re.search(rf"\.{origin}{{[^}}]*underline {look.underline} ", page)
        assert f'<span class="{origin}">{origin}</span> {look.meaning}' in page


@pytest.mark.parametrize(
    ("result", "title", "error", "said"),
    [
        ("text", "t", TypeError, "result must be a DecodeResult, got 'text'"),
        (make(TRACE), 3, TypeError, "title must be a text, got 3"),
        (make(TRACE), " \n", ValueError, "title must have a visible character"),
    ],
)
def test_what_is_no_result_or_no_title_is_refused(result, title, error, said):
    with pytest.raises(error, match=said):
        html_page(result, title=title)
