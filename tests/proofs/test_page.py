"""The page of claims, which the docs show."""

from pathlib import Path

from proofs_check import claims
from proofs_check.page import page


def test_the_page_states_every_claim():
    text = page(claims.load().values())
    for item in claims.load().values():
        assert f"### {item.name}\n" in text
        assert item.tex in text


def test_the_trusted_base_of_the_prover_stays_short():
    source = Path(claims.__file__).with_name("balls.py").read_text(encoding="utf-8")
    assert len(source.splitlines()) < 120
