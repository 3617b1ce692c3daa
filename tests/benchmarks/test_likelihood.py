"""Likelihoods of reference texts: against `score`, resumed, with intervals that are right."""

import json
import math

import numpy as np
import pytest

from benchmarks.quality import likelihood as command
from benchmarks.quality.__main__ import main
from benchmarks.quality.arms import Arm
from benchmarks.quality.curve import summarise
from benchmarks.quality.documents import load_documents
from cactus_runtime import Decoder, score
from cactus_runtime.pairs import load_pair
from cactus_theory import Cactus, Clamp, SpeculativeSampling, TypicalAcceptance
from scripts.train_tiny.text import FILES

PAIRS = [
    {"question": "dog:", "answer": " a member of <<1+1=2>>the genus Canis"},
    {"question": "river:", "answer": " a large natural stream of water"},
    {"question": "music:", "answer": " an artistic form"},
]
OPTIONS = ["--deltas", "0.1", "--match", "0.1"]


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("\n".join(map(json.dumps, PAIRS)))
    return path


def test_a_document_is_a_prompt_and_what_follows_it_up_to_its_end(texts):
    tokenizer = load_pair("tiny").tokenizer
    first = load_documents(texts, tokenizer)[0]
    assert tokenizer.decode(first.prompt) == "dog:"
    assert tokenizer.decode(first.text) == " a member of the genus Canis<|endoftext|>"
    assert first.text[-1] == tokenizer.eos_token_id


def test_of_wordnet_the_lines_are_read_that_the_pair_did_not_learn(tmp_path):
    for name in FILES:
        lines = (f"{i:08} 03 n 01 {name}{i} 0 000 | thing {i}  \n" for i in range(30))
        (tmp_path / name).write_text("".join(lines))
    tokenizer = load_pair("tiny").tokenizer
    found = load_documents(tmp_path, tokenizer)  # lines 0, 50 and 100 of 120
    assert [tokenizer.decode(one.prompt) for one in found] == [
        "data.noun0:", "data.verb20:", "data.adv10:"
    ]  # fmt: skip
    whole = tokenizer("data.verb20: thing 20<|endoftext|>")["input_ids"]
    assert [*found[1].prompt, *found[1].text] == whole


@pytest.mark.parametrize("line", ["no json", "[1]", '{"question": "dog:"}'])
def test_a_line_of_anything_else_is_named(tmp_path, line):
    path = tmp_path / "texts.jsonl"
    path.write_text(json.dumps(PAIRS[0]) + "\n" + line)
    with pytest.raises(ValueError, match=r"line 2 of .* object with question and answer"):
        load_documents(path, load_pair("tiny").tokenizer)


@pytest.mark.parametrize("rows", [4, 64])
def test_a_text_has_the_likelihood_that_score_gives_it(texts, monkeypatch, rows):
    monkeypatch.setattr(command, "_ROWS", rows)
    decoder = Decoder("tiny")
    document = load_documents(texts, decoder.tokenizer)[0]
    rules = [SpeculativeSampling(), Cactus(0.1), Clamp(0.05), TypicalAcceptance(0.001, 0.03)]
    found = command.score_document(decoder, document, {str(r): Arm(r) for r in rules}, 3)
    for rule in rules:
        wanted = score("tiny", document.text, prompt=document.prompt, rule=rule, num_draft_tokens=3)
        own, parts = found["arms"][str(rule)], wanted.probabilities
        # The same sums in float64, from logits of passes of other lengths in float32.
        assert own["loss"] == pytest.approx(-wanted.log_likelihood, rel=1e-6)
        assert own["kl"] == pytest.approx(parts.kl.sum(), rel=1e-6, abs=1e-12)
        assert own["total_variation"] == pytest.approx(parts.total_variation.sum(), abs=1e-6)
        assert own["excluded"] == (parts.emitted == 0).sum()
    plain = command.score_document(
        decoder, document, {"plain": Arm(rules[0], speculative=False)}, 3
    )
    assert plain["arms"]["plain"]["loss"] == pytest.approx(-wanted.target_log_likelihood, rel=1e-9)


def test_a_run_goes_on_and_ends_as_a_whole_one(texts, tmp_path, capsys):
    def run(name, *options):
        return main(["likelihood", str(tmp_path / name), str(texts), *OPTIONS, *options])

    def kept(name):
        return json.loads((tmp_path / name / "results.json").read_text())

    assert run("whole") == 0
    assert "3 documents" in capsys.readouterr().out
    assert (tmp_path / "whole" / "results.png").stat().st_size > 0
    lines = (tmp_path / "whole" / "documents.jsonl").read_text().splitlines(keepends=True)
    part = tmp_path / "part"
    part.mkdir()
    (part / "settings.json").write_text((tmp_path / "whole" / "settings.json").read_text())
    (part / "documents.jsonl").write_text("".join(lines[:2]).rstrip("\n"))
    assert run("part") == 0
    assert kept("part") == kept("whole")
    assert (part / "documents.jsonl").read_text() == "".join(lines)
    assert run("part", "--drafts", "2") == 2
    assert "drafts=4 (not 2)" in capsys.readouterr().err
    arms = kept("whole")["arms"]
    assert abs(arms["speculative"]["difference"]["value"]) < 1e-9  # lossless
    assert list(arms) == [
        "plain", "speculative", "cactus 0.1", "exact 0.1", "clamp 0.1", "typical 0.1", "mixture 0.1"
    ]  # fmt: skip


def test_documents_beyond_the_context_are_left_out_and_counted(tmp_path, capsys):
    path = tmp_path / "texts.jsonl"
    long = {"question": "dog:", "answer": " a member" * 200}
    path.write_text("\n".join(map(json.dumps, [PAIRS[0], long, PAIRS[1]])))
    assert main(["likelihood", str(tmp_path / "run"), str(path), *OPTIONS]) == 0
    told = capsys.readouterr()
    assert "left out: 1 documents of more than 256 tokens" in told.err
    assert "2 documents" in told.out


def lines_of(gains, tokens):
    costs = {"acceptance_rate": 0.5, "total_variation": 0.0, "kl": 0.0, "excluded": 0}
    return [
        {
            "tokens": n,
            "draft_loss": 1.0,
            "arms": {"plain": {**costs, "loss": 2.0 * n}, "clamp 1": {**costs, "loss": gain}},
        }
        for gain, n in zip(gains, tokens, strict=True)
    ]


def test_the_interval_of_a_difference_covers_it_in_95_of_100_samples():
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(1000):
        tokens = rng.integers(5, 40, size=60)
        # The gain depends on the length, so a mean of ratios would miss the ratio of means.
        gains = tokens * 2.0 + 0.02 * tokens**2 + rng.normal(scale=2.0, size=60)
        gap = summarise(lines_of(gains.tolist(), tokens.tolist()))["arms"]["clamp 1"]["difference"]
        lengths = np.arange(5, 40)
        held += gap["low"] <= 0.02 * (lengths**2).mean() / lengths.mean() <= gap["high"]
    assert 920 <= held <= 975  # 950, standard deviation 7; the interval is approximate


def test_a_text_that_a_rule_cannot_emit_makes_its_loss_infinite():
    found = summarise(lines_of([None, 2.0], [1, 1]))["arms"]["clamp 1"]
    assert math.isinf(found["loss"])
    assert math.isinf(found["difference"]["high"])


def test_one_document_has_no_interval():
    with pytest.raises(ValueError, match="two or more, got 1"):
        summarise(lines_of([1.0], [1]))
