"""The lm-evaluation-harness on our decoder, with a task of five prompts and the tiny pair."""

from __future__ import annotations

import os

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")  # no test reaches for a network

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

pytest.importorskip("lm_eval", reason="needs lm_eval; run `make test-lm-eval`")

import lm_eval
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from benchmarks.quality.__main__ import main as compare
from cactus_runtime import Decoder, Request, SamplingParams
from cactus_runtime.integrations.lm_eval import CactusLM, number_of
from cactus_theory import Cactus, Clamp, TypicalAcceptance
from cactus_theory.rules.parsing import parameters_of
from cactus_theory.rules.registry import RULES

TASK = Path(__file__).parent / "lm_eval_task"
DECODER = Decoder("tiny")
DOCUMENTS = [json.loads(line) for line in (TASK / "glosses.jsonl").read_text().splitlines()]

# Datasets and torch warn about themselves as the harness uses them.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def here(monkeypatch, tmp_path):
    monkeypatch.chdir(TASK)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))


def evaluate(model, task="glosses", **options):
    return lm_eval.simple_evaluate(
        model=model,
        tasks=[task],
        task_manager=TaskManager(include_path=str(TASK), include_defaults=False),
        bootstrap_iters=0,
        cache_requests=False,
        **options,
    )


def answers(results):
    """Answers of each document, in order."""
    return [sample["resps"][0] for sample in results["samples"]["glosses"]]


def logged(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("batch_size", [1, 4])
def test_an_answer_is_the_decode_of_its_seed_and_number_and_is_logged(tmp_path, batch_size):
    log = tmp_path / "new" / "cactus.jsonl"
    model = CactusLM(
        "tiny",
        rule="cactus",
        delta=0.3,
        num_draft_tokens=3,
        temperature=0.8,
        top_p=0.95,
        top_k=20,
        seed=7,
        batch_size=batch_size,
        log=log,
        device="cpu",
    )
    results = evaluate(model)
    lines = {(line["doc_id"], line["repeat"]): line for line in logged(log)}
    assert set(lines) == {(i, j) for i in range(5) for j in range(2)}
    for (doc_id, repeat), line in lines.items():
        request = Request(
            DOCUMENTS[doc_id]["question"],
            rule=Cactus(0.3),
            num_draft_tokens=3,
            sampling=SamplingParams(temperature=0.8, top_p=0.95, top_k=20),
            max_new_tokens=12,
            seed=7,
            number=number_of("glosses", doc_id, repeat),
            stop=[";"],
        )
        expected = DECODER.stream(request).finish()
        assert expected.text == answers(results)[doc_id][repeat]
        found = expected.sums()
        for name in (
            "seconds",
            "acceptance_rate",
            "total_variation",
            "kl_bound",
        ):  # kernels differ in last bits
            assert line[name] >= 0
            found.pop(name)
        assert found.items() <= line.items()
        assert line["task"] == "glosses"
        assert line["total_variation"] == pytest.approx(expected.total_variation, abs=1e-4)
    assert any(len(set(pair)) > 1 for pair in answers(results)), "repeats are independent"


def test_greedy_answers_are_those_of_the_harness_s_own_model():
    ours = evaluate(CactusLM("tiny", rule="cactus", delta=1.0, batch_size=3, device="cpu"))
    theirs = evaluate(HFLM(pretrained=DECODER.target, tokenizer=DECODER.tokenizer))
    assert answers(ours) == answers(theirs)
    assert ours["results"]["glosses"]["exact_match,none"] == pytest.approx(
        theirs["results"]["glosses"]["exact_match,none"]
    )


def test_log_likelihoods_are_the_target_s_whatever_the_rule():
    ours = evaluate(CactusLM("tiny", rule="cactus", delta=1.0, device="cpu"), "continuations")
    theirs = evaluate(HFLM(pretrained=DECODER.target, tokenizer=DECODER.tokenizer), "continuations")
    found = [r["results"]["continuations"]["perplexity,none"] for r in (ours, theirs)]
    assert found[0] == found[1]


def test_what_the_model_is_told_goes_before_what_the_task_says(tmp_path):
    log = tmp_path / "cactus.jsonl"
    model = CactusLM("tiny", max_gen_toks=3, temperature=1.0, log=log, device="cpu")
    evaluate(model, limit=2)
    assert {line["tokens"] for line in logged(log)} <= {1, 2, 3}
    own = tmp_path / "own.jsonl"
    evaluate(
        CactusLM("tiny", log=own, device="cpu"),
        limit=2,
        gen_kwargs={"temperature": 1.5, "do_sample": True, "max_gen_toks": 9, "top_k": -1},
    )
    assert max(line["tokens"] for line in logged(own)) > 3
    texts = answers(evaluate(CactusLM("tiny", device="cpu"), limit=2))
    assert texts == [[text] * 2 for text, _ in texts], "greedy where nobody says otherwise"


def test_decoding_is_greedy_unless_sampling_or_a_temperature_is_asked_for():
    model = CactusLM("tiny", device="cpu")
    requests = [
        model._prepare("dog:", {"until": [], "max_gen_toks": 5, **asked}, number=0)
        for asked in ({}, {"do_sample": True}, {"temperature": 0.7}, {"do_sample": False})
    ]
    assert [request.sampling.temperature for request in requests] == [0, 1, 0.7, 0]


def test_every_generation_argument_that_sampling_has_is_applied():
    wanted = {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.5,
        "min_p": 0.25,
        "repetition_penalty": 1.5,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "logit_bias": {3: -1.0},
        "bad_words": [[1, 2]],
        "min_new_tokens": 4,
    }
    assert wanted.keys() == {field.name for field in fields(SamplingParams)} - {"processors"}
    model = CactusLM("tiny", device="cpu")
    asked = {**wanted, "do_sample": True, "until": [], "max_gen_toks": 5}
    told = json.loads(json.dumps(asked))  # as a task file or the command line says it
    for arguments in (asked, told):
        assert model._prepare("dog:", arguments, number=0).sampling == SamplingParams(**wanted)
    by_other_name = model._prepare("dog:", {**asked, "bad_words_ids": [[3, 4]]}, number=0)
    assert by_other_name.sampling.bad_words == ((3, 4),)


@pytest.mark.parametrize(
    ("name", "value", "neutral"),
    [
        ("num_beams", 3, 1),
        ("no_repeat_ngram_size", 2, 0),
        ("num_return_sequences", 2, 1),
        ("use_cache", False, True),
        ("nonsense", 1, None),
        ("max_length", 50, None),
        ("processors", "any", None),
    ],
)
def test_any_other_generation_argument_is_refused_by_name_before_the_first_answer(
    name, value, neutral, monkeypatch
):
    model = CactusLM("tiny", device="cpu")
    monkeypatch.setattr(model.decoder, "batch", pytest.fail)
    with pytest.raises(ValueError, match=f"{name}={value!r} cannot be served"):
        evaluate(model, limit=1, gen_kwargs={name: value})
    model._prepare("dog:", {name: neutral, "until": [], "max_gen_toks": 5}, number=0)


def test_the_model_s_arguments_go_before_the_command_line_s_defaults():
    given = {"target": "tiny", "batch_size": 4}
    defaults = {"batch_size": 1, "max_batch_size": None, "device": "cpu"}
    assert CactusLM.create_from_arg_obj(given, defaults).batch_size == 4


def test_a_long_prompt_loses_its_beginning_and_an_impossible_length_is_refused():
    model = CactusLM("tiny", max_length=20, device="cpu")
    prepared = model._prepare("dog: a dog is " * 20, {"max_gen_toks": 12, "until": []}, number=0)
    assert len(prepared.prompt) == 8
    assert prepared.prompt == DECODER.tokenizer("dog: a dog is " * 20)["input_ids"][-8:]
    with pytest.raises(ValueError, match="max_gen_toks=30 must leave room for a prompt in"):
        model._prepare("dog:", {"max_gen_toks": 30, "until": []}, number=0)


def test_a_special_token_among_the_stops_ends_the_text():
    """Text is without special tokens, so that such a stop would never be found in it."""
    model = CactusLM("tiny", device="cpu")
    model.tokenizer.add_special_tokens({"additional_special_tokens": ["<|stop|>"]})
    arguments = {"until": ["<|stop|>", ";"], "max_gen_toks": 5}
    prepared = model._prepare("dog:", arguments, number=0)
    own = {model.tokenizer.convert_tokens_to_ids("<|stop|>"), model.tokenizer.eos_token_id}
    assert set(prepared.eos_token_id) == own
    assert len(own) == 2


def test_the_log_of_an_answer_of_infinite_divergence_is_strict_json(tmp_path):
    log = tmp_path / "cactus.jsonl"
    sampling = {"temperature": 1.0, "top_k": 2}  # the draft's two best tokens, not the target's
    evaluate(CactusLM("tiny", rule="mixture", weight=0.5, log=log, device="cpu", **sampling))
    lines = [json.loads(line, parse_constant=pytest.fail) for line in log.read_text().splitlines()]
    assert any(line["kl_bound"] is None for line in lines)


def test_thoughts_are_cut_off_the_answer():
    model = CactusLM("tiny", think_end_token=" ", device="cpu")
    texts = [text for pair in answers(evaluate(model, limit=3)) for text in pair]
    assert not any(" " in text for text in texts)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rule": "cactuss"}, "rule must be one of speculative, cactus, .*, got 'cactuss'"),
        ({"rule": "cactus"}, "rule cactus needs delta, got none"),
        ({"rule": "typical", "delta": 1.0}, "rule typical takes epsilon, alpha, got delta=1.0"),
        ({"batch_size": "auto"}, "batch_size must be an integer >= 1, got 'auto'"),
        ({"top_p": 2.0}, "top_p must"),
    ],
)
def test_a_wrong_argument_is_named(options, words):
    with pytest.raises(ValueError, match=words):
        CactusLM("tiny", device="cpu", **options)


@pytest.mark.parametrize("name", RULES)
def test_every_rule_of_the_registry_is_taken(name):
    given = {key: p.example for key, p in parameters_of(name).items() if p.is_required}
    model = CactusLM("tiny", device="cpu", rule=name, **given)
    assert model.rule == RULES[name].example()
    if given:
        with pytest.raises(ValueError, match="needs"):
            CactusLM("tiny", device="cpu", rule=name)


def test_a_rule_is_named_or_given():
    assert CactusLM("tiny", device="cpu", rule="typical:epsilon=0.1").rule == TypicalAcceptance(0.1)
    assert CactusLM("tiny", device="cpu", rule="clamp", epsilon=0.1).rule == Clamp(0.1)
    assert CactusLM("tiny", device="cpu", rule=Clamp(0.1)).rule == Clamp(0.1)


def test_an_argument_of_neither_model_nor_rule_is_refused():
    with pytest.raises(TypeError, match=r"has no argument batchsize, got batchsize=4"):
        CactusLM("tiny", device="cpu", batchsize=4)


def test_the_command_line_runs_a_task_and_its_results_are_compared(tmp_path, capsys):
    run = tmp_path / "run"
    command = [
        *(sys.executable, "-m", "cactus_runtime.integrations.lm_eval", "run"),
        *("--model", "cactus", "--tasks", "glosses", "--include_path", str(TASK)),
        *("--output_path", str(run), "--device", "cpu", "--log_samples"),
        "--model_args",
        "target=tiny,rule=cactus,delta=0.75,num_draft_tokens=4,temperature=.6,top_p=.95,top_k=20,"
        f"batch_size=4,log={run / 'cactus.jsonl'}",
    ]
    done = subprocess.run(command, cwd=TASK, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert compare(["compare", str(run)]) == 0
    title, _, heads, _, row = capsys.readouterr().out.strip().splitlines()
    assert title.startswith("**glosses.** Over 5 prompts")
    assert heads.startswith("| arm | exact_match,none % |")
    assert row.startswith("| Cactus(delta=0.75), 4 drafts |")
