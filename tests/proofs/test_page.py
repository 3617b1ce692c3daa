"""The page of claims, which the docs show."""

import re
from pathlib import Path

from proofs_check import claims
from proofs_check.page import page

REGISTRY = claims.load()


def test_the_page_states_every_claim_and_every_step_in_order():
    text = page()
    for item in REGISTRY.values():
        entry = text.split(f"\n### {item.name}\n")[1].split("\n### ")[0]
        assert item.tex in entry
        places = [entry.index(f"**Step {n}.**") for n, _ in enumerate(item.steps(), start=1)]
        assert places == sorted(places)
        for step in item.steps():
            assert step.says in entry
            assert step.tex in entry
            assert step.assumes in entry


def test_the_page_counts_the_claims_by_verdict():
    proved = sum(item.expected == "proved" for item in REGISTRY.values())
    assert f"Claims: {len(REGISTRY)}, of which {proved} proved" in page()


def test_mathematics_is_delimited_in_pairs_and_its_braces_are_balanced():
    for item in REGISTRY.values():
        for step in item.steps():
            for words in (step.says, step.assumes):
                assert words.count("$") % 2 == 0, words
            for tex in [step.tex, *re.findall(r"\$([^$]*)\$", step.says + step.assumes)]:
                bare = re.sub(r"\\[{}|]", "", tex)
                assert bare.count("{") == bare.count("}"), tex
                assert tex.count(r"\left") - tex.count(r"\leftarrow") == tex.count(r"\right"), tex
                assert "\n\n" not in tex


def test_links_between_claims_lead_to_headings():
    text = page()
    headings = set(re.findall(r"^### (.*)$", text, re.MULTILINE))
    assert set(re.findall(r"\]\(#([^)]*)\)", text)) <= headings


def test_the_page_says_distribution():
    assert not re.search(r"\blaws?\b", page())


def test_the_trusted_base_of_the_prover_stays_short():
    source = Path(claims.__file__).with_name("balls.py").read_text(encoding="utf-8")
    assert len(source.splitlines()) < 120
