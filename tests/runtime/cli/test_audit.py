"""`cactus audit`, with transcripts and with a server on the loopback."""

from __future__ import annotations

import json

import pytest

from cactus_runtime import Decoder, Request, SamplingParams
from cactus_runtime.cli import main
from cactus_theory import Cactus, SpeculativeSampling
from tests.runtime.audit.openai_server import serving

PLAIN = SpeculativeSampling()
PROMPTS = ("dog:", "kindness:", "river:", "to run:")
WARM = ["--pair", "tiny", "--temperature", "0.7", "--level", "1e-3"]


def transcripts(path, pair, *, rule=PLAIN, temperature=0.7, samples=4, **settings):
    decoder = Decoder(pair)
    requests = [
        request
        for prompt in PROMPTS
        for request in Request(
            prompt,
            rule=rule,
            num_draft_tokens=3,
            sampling=SamplingParams(temperature=temperature, **settings),
            max_new_tokens=24,
            seed=1,
            eos_token_id=(),
        ).samples(samples)
    ]
    results = decoder.batch(requests, batch_size=20).finish()
    lines = (
        json.dumps({"prompt": request.prompt, "token_ids": list(result.tokens)})
        for request, result in zip(requests, results, strict=True)
    )
    path.write_text("\n".join(lines))
    return str(path)


def test_plain_speculative_sampling_is_consistent_and_the_page_is_written(tmp_path, tiny, capsys):
    page = tmp_path / "page.html"
    file = transcripts(tmp_path / "a.jsonl", tiny)
    assert main(["audit", file, *WARM, "--html", str(page)]) == 0
    assert "consistent with the target at level 0.001" in capsys.readouterr().out
    assert "<svg" in page.read_text()


@pytest.mark.parametrize(
    ("settings", "looks"),
    [({"rule": Cactus(0.3)}, "delta"), ({"temperature": 1.0}, "temperature")],
    ids=["lossy", "hot"],
)
def test_another_sampler_is_not_consistent_and_is_named(tmp_path, tiny, capsys, settings, looks):
    file = transcripts(tmp_path / "a.jsonl", tiny, samples=6, **settings)
    assert main(["audit", file, *WARM, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["exit_status"] == 1
    assert looks in found["looks_like"]["name"]
    assert found["looks_like"]["nats_per_token"] > 0.01


def test_the_claimed_rule_is_consistent_with_itself(tmp_path, tiny, capsys):
    file = transcripts(tmp_path / "a.jsonl", tiny, rule=Cactus(0.3), samples=2)
    claim = ["--claim", "cactus:delta=0.3", "--drafts", "3", "--tolerance", "0", "--json"]
    found = []
    for longest in ("24", "400"):
        assert main(["audit", file, *WARM, *claim, "--tokens", longest]) == 0
        found.append(json.loads(capsys.readouterr().out)["surprise_z"])
    assert found[0] != found[1]  # the last block of a text is shorter if 24 tokens were the limit


def test_too_few_tokens_for_what_should_be_detected_leave_it_undecided(tmp_path, tiny, capsys):
    file = transcripts(tmp_path / "a.jsonl", tiny, samples=1)
    assert main(["audit", file, *WARM, "--detect", "cactus:delta=0.01"]) == 3
    assert "tokens are too few to tell cactus:delta=0.01" in capsys.readouterr().out


ASK = ["--samples", "2", "--tokens", "6", "--concurrency", "2", "--tolerance", "0"]


def test_a_server_is_asked_and_an_interrupted_run_goes_on(tmp_path, tiny, capsys):
    out = tmp_path / "out.jsonl"
    with serving(tiny) as (url, asked):
        arguments = ["audit", "--server", url, "--model", "tiny", *WARM, *ASK, "-o", str(out)]
        assert main(arguments) == 0
        assert len(asked) == 16
        lines = out.read_text().splitlines()
        out.write_text("\n".join(lines[:10]) + "\n")
        assert main(arguments) == 0
        assert len(asked) == 22
    assert sorted(out.read_text().splitlines()) == sorted(lines)
    assert "consistent" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("server", "model", "message"),
    [
        ({}, "other", "model must be one that"),
        ({"ids": False}, "tiny", "must give token ids"),
    ],
)
def test_a_server_that_cannot_be_audited_is_told_in_one_sentence(
    tiny, capsys, server, model, message
):
    with serving(tiny, **server) as (url, _):
        assert main(["audit", "--server", url, "--model", model, *WARM, *ASK]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.strip().splitlines()[-1].startswith("cactus: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--server", "http://127.0.0.1:9", "--model", "x", *WARM], "cannot be reached"),
        (["--server", "localhost", "--model", "x", *WARM], "must be an http or https URL"),
        (["--server", "http://127.0.0.1:9", *WARM], "--server needs --model"),
        (WARM, "give TRANSCRIPTS or --server"),
        (["--server", "http://127.0.0.1:9"], "give the target as --pair or as --target"),
        ([*WARM, "--server", "x", "--temperature", "0"], "a greedy transcript has no distribution"),
    ],
)
def test_bad_usage_is_told_in_one_sentence(capsys, arguments, message):
    assert main(["audit", *arguments]) == 2
    assert message in capsys.readouterr().err


CLAIM = ["--claim", "cactus:delta=0.1", "--drafts", "3"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "x"], "--model needs --server, as TRANSCRIPTS exist already"),
        (["--samples", "3"], "--samples needs --server"),
        (["--tokens", "24"], "--tokens needs --server"),
        (["--output", "x.jsonl"], "--output needs --server"),
        (CLAIM, "--claim with --drafts needs --tokens"),
        ([*CLAIM, "--tokens", "0"], "0 is not in the range x>=1"),
    ],
)
def test_an_option_that_transcripts_leave_no_use_for_is_refused(
    tmp_path, capsys, arguments, message
):
    file = tmp_path / "a.jsonl"
    file.write_text('{"prompt": "dog:", "token_ids": [5, 6]}')
    assert main(["audit", str(file), *WARM, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_transcripts_asked_with_other_settings_are_not_resumed(tmp_path, tiny, capsys):
    out = tmp_path / "out.jsonl"
    with serving(tiny) as (url, asked):
        arguments = ["audit", "--server", url, "--model", "tiny", *WARM, *ASK, "-o", str(out)]
        assert main(arguments) == 0
        before = len(asked)
        assert main([*arguments, "--temperature", "0.9"]) == 2
        assert len(asked) == before
    assert "output must hold transcripts asked with" in capsys.readouterr().err


def test_transcripts_of_which_none_can_be_scored_are_refused_with_the_reason(tmp_path, capsys):
    file = tmp_path / "a.jsonl"
    file.write_text('{"prompt": "dog:", "token_ids": [5, 6], "text": "unlike"}')
    assert main(["audit", str(file), *WARM]) == 2
    assert "1 dropped: the ids do not decode to the text" in capsys.readouterr().err
