"""Certificates survive a file, and the checker refuses what they do not show."""

import json
from fractions import Fraction

import pytest

from proofs_check import claims
from proofs_check.__main__ import main
from proofs_check.balls import ball, prove_positive
from proofs_check.certificates import read, recheck, recheck_boxes

UNIT = ((Fraction(0), Fraction(1)), (Fraction(0), Fraction(1)))


def above(x, y):
    return x * x + y * y - x * y - x - y + ball("1.1")  # least value 0.1, at (1, 1)


def test_the_checker_accepts_what_the_prover_found():
    found = prove_positive(above, UNIT, name="above")
    assert found.outcome == "holds"
    [certificate] = found.certificates
    assert recheck_boxes(above, UNIT, certificate["word"])


@pytest.mark.parametrize("change", [lambda w: w[1:], lambda w: w + ".", lambda w: "." + w])
def test_the_checker_refuses_a_word_that_does_not_cover_the_box(change):
    [certificate] = prove_positive(above, UNIT, name="above").certificates
    word = change(certificate["word"])
    try:
        accepted = recheck_boxes(above, UNIT, word)
    except StopIteration:
        accepted = False
    assert not accepted


def test_the_checker_refuses_a_word_of_another_inequality():
    [certificate] = prove_positive(above, UNIT, name="above").certificates
    assert not recheck_boxes(lambda x, y: above(x, y) - ball("0.2"), UNIT, certificate["word"])


def test_the_prover_refutes_with_a_point_and_gives_up_on_a_zero():
    below = prove_positive(lambda x, y: above(x, y) - ball("0.2"), UNIT, name="below")
    assert below.outcome == "fails"
    touching = prove_positive(lambda x, y: (x - y) * (x - y), UNIT, name="touching", limit=500)
    assert touching.outcome in {"fails", "undecided"}


def test_certificates_are_written_and_checked_again(tmp_path, capsys):
    path = tmp_path / "certificates.jsonl"
    assert main(["--only", "delta-bounds-the-output", "--certificates", str(path)]) == 0
    assert main(["--recheck", str(path)]) == 0
    [certificate] = read(path)
    certificate["data"]["exceeds"] = "5"
    path.write_text(json.dumps(certificate) + "\n")
    assert main(["--recheck", str(path)]) == 1
    assert "BAD" in capsys.readouterr().out


def test_every_certificate_of_the_quick_claims_is_accepted_by_the_checker():
    for item in claims.load().values():
        if item.quick and item.kind in {"interval", "counterexample"}:
            assert all(map(recheck, claims.run(item).certificates)), item.name
