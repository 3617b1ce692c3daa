"""The quality benchmark: what it compares, that it resumes, and that its figures are right."""

import json
import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.quality import answers
from benchmarks.quality import run as command
from benchmarks.quality.__main__ import main
from benchmarks.quality.arms import MATCHED, all_arms
from benchmarks.quality.ifeval import load_prompts
from benchmarks.quality.layers import without_layers
from benchmarks.quality.summary import summarise
from cactus_runtime.models.kv_cache import Context
from cactus_runtime.pairs import load_pair
from cactus_runtime.result.strict_json import strict_json
from cactus_theory import Cactus, acceptance_rate
from cactus_theory.recording import compress_distributions, load_recording

WORDS = ("dog:", "river:", "music:", "kindness:")
OPTIONS = ["--target", "tiny", "--drop-layers", "1", "--max-new-tokens", "6", "--drafts", "2"]
OPTIONS += ["--deltas", "0.1", "--match", "0.1", "--batch-size", "3", "--top-p", "1"]


def checks(prompt, answer):
    return {
        name: [len(answer) > 12]
        for name in ("prompt_level_strict_acc", "inst_level_strict_acc", "inst_level_loose_acc")
    }


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The command on the tiny pair, with checks that need no package; returns its exit status."""
    monkeypatch.setattr(command, "ifeval_checks", lambda: checks)
    monkeypatch.setattr(command, "_RECORDED_TOKENS", 1)  # fewer laws to match rates on
    prompts = tmp_path / "prompts.jsonl"
    lines = [
        {"key": key, "prompt": word, "instruction_id_list": ["any"], "kwargs": [{}]}
        for key, word in enumerate(WORDS)
    ]
    prompts.write_text("\n".join(map(json.dumps, lines)))

    def run(name, *options):
        return main(["ifeval", str(tmp_path / name), "--prompts", str(prompts), *OPTIONS, *options])

    run.folder = tmp_path
    return run


def kept(folder):
    return {
        (line["arm"], line["key"]): line["answer"]
        for line in answers.read_answers(folder / "answers.jsonl")
    }


def test_every_arm_answers_every_prompt_and_the_results_say_so(run, capsys):
    assert run("whole") == 0
    for name in ("results.json", "settings.json"):
        json.loads((run.folder / "whole" / name).read_text(), parse_constant=pytest.fail)
    found = json.loads((run.folder / "whole" / "results.json").read_text())
    arms = ["plain", "speculative", "cactus 0.1", *MATCHED]
    assert found["prompts"] == len(WORDS)
    assert list(found["arms"]) == arms
    assert len(kept(run.folder / "whole")) == len(arms) * len(WORDS)
    assert found["arms"]["plain"]["block_efficiency"] == 1
    assert found["arms"]["speculative"]["total_variation_per_token"] == 0
    assert found["arms"]["cactus 0.1"]["total_variation_per_token"] > 0
    assert (run.folder / "whole" / "results.png").stat().st_size > 0
    assert "Over 4 prompts" in capsys.readouterr().out


def test_an_interrupted_run_goes_on_to_the_same_answers(run, monkeypatch, capsys):
    assert run("whole") == 0
    whole = kept(run.folder / "whole")
    seen = []

    def stop(progress, task):
        seen.append(task)
        if len(seen) == 9:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(answers.Progress, "advance", stop)
        assert run("part", "--batch-size", "2") == 130
    part = kept(run.folder / "part")
    assert len(part) == 9 < len(whole)
    assert part.items() <= whole.items()
    before = (run.folder / "part" / "answers.jsonl").read_text()
    assert run("part") == 0
    assert (run.folder / "part" / "answers.jsonl").read_text().startswith(before)
    assert kept(run.folder / "part") == whole
    text = (run.folder / "part" / "answers.jsonl").read_text()
    assert text.count("\n") == len(whole)  # none was decoded twice
    assert run("part", "--report") == 0


def test_more_prompts_may_be_asked_for_later_and_other_settings_may_not(run, capsys):
    assert run("folder", "--limit", "2") == 0
    assert run("folder", "--limit", "3") == 0
    found = json.loads((run.folder / "folder" / "results.json").read_text())
    assert found["prompts"] == 3
    assert run("folder", "--temperature", "0.5") == 2
    assert "temperature=0.6 (not 0.5)" in capsys.readouterr().err


def test_what_the_checks_need_is_named_before_any_work(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "langdetect", None)
    assert main(["ifeval", str(tmp_path / "run"), *OPTIONS]) == 2
    assert "pip install 'cactus-speculative[lm-eval]'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_line_cut_short_is_named(tmp_path):
    path = tmp_path / "answers.jsonl"
    whole = {"arm": "plain", "key": 1, "asked": "", "answer": "", "rule": ""}
    path.write_text(json.dumps(whole) + '\n{"arm": "pl')
    with pytest.raises(ValueError, match=r"line 2 of .* must be an answer"):
        list(answers.read_answers(path))


PROMPT = {"key": 1, "prompt": "dog:\u2028cat", "instruction_id_list": ["any"], "kwargs": [{}]}


def test_a_prompt_may_hold_any_line_end_but_that_of_its_file(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps(PROMPT, ensure_ascii=False) + "\n", encoding="utf-8")
    assert load_prompts(path) == [PROMPT]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "got none"),
        ("no json", "line 1"),
        ("[1]", "an object with key, prompt"),
        (json.dumps({"key": 1, "prompt": "dog:"}), "an object with key, prompt"),
        (json.dumps(PROMPT) + "\n" + json.dumps(PROMPT), "line 2.*key 1 was there before"),
        (json.dumps(PROMPT | {"key": "a"}), "an integer >= 0, got 'a'"),
        (json.dumps(PROMPT | {"prompt": ""}), "a text, got ''"),
        (json.dumps(PROMPT | {"kwargs": []}), "kwargs for each"),
    ],
)
def test_a_file_of_anything_else_holds_no_prompts(tmp_path, text, told):
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=told):
        load_prompts(path)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--limit", "-1"], "'--limit': -1 is not in the range x>=1"),
        (["--drafts", "0"], "'--drafts': 0 is not in the range x>=1"),
        (["--match", "nan"], "match must be in [0, 1e+100] nats, got nan"),
        (["--deltas", "0.1,0.10000001"], "must differ in six digits"),
        (["--deltas", "0.1,nan"], "must be numbers in [0, 1e100]"),
        (["--target", "nonesuch"], "nonesuch"),
        (["--max-new-tokens", "99999"], "99999"),
    ],
)
def test_a_wrong_option_spoils_no_folder(run, capsys, options, told):
    assert run("folder", *options) == 2
    assert told in capsys.readouterr().err
    assert run("folder", "--limit", "1") == 0


def test_answers_to_another_prompt_or_by_another_rule_are_not_taken(run, capsys):
    assert run("folder", "--limit", "1") == 0
    path = run.folder / "folder" / "answers.jsonl"
    whole = path.read_text()
    prompts = run.folder / "prompts.jsonl"
    asked = prompts.read_text()
    prompts.write_text(asked.replace("dog:", "cat:"))
    for options in ([], ["--report"]):
        assert run("folder", *options) == 2
        assert "an answer to another prompt of key 0" in capsys.readouterr().err
    prompts.write_text(asked)
    path.write_text(whole.replace("Cactus(delta=0.1)", "Cactus(delta=0.2)"))
    assert run("folder") == 2
    assert "answers of 'cactus 0.1' by Cactus(delta=0.2)" in capsys.readouterr().err
    path.write_text(whole.rstrip("\n"))  # cut between a line and its end
    assert run("folder", "--limit", "2") == 0
    assert path.read_text().startswith(whole)


@pytest.mark.parametrize("delta", [0.05, 0.5])
def test_matched_arms_accept_alike(delta):
    whole = load_recording()
    laws = compress_distributions(draft=whole.draft[::8], target=whole.target[::8])
    pair = {"draft": laws.draft, "target": laws.target}
    wanted = acceptance_rate(Cactus(delta), **pair).mean()
    arms = all_arms([delta], matched=delta, laws=laws)
    for name in MATCHED:
        found = acceptance_rate(arms[name].rule, **pair).mean()
        # typical acceptance jumps by a token's probability under the draft, over 12 positions
        assert wanted - 1e-12 <= found <= wanted + (1 / 12 if name == "typical" else 1e-9), name


LINE = {"rule": "", "finish_reason": "eos", "blocks": 2, "drafted": 4, "accepted": 2}
LINE |= {"tokens": 4, "judged": 4, "acceptance_rate": 3.0, "total_variation": 0.4, "kl_bound": 0.2}


def followed(line):
    return {"m": [bool(line["followed"])]}


def lines_of(**values_of):
    return [
        {"arm": arm, "key": key, **LINE, "followed": value}
        for arm, values in values_of.items()
        for key, value in enumerate(values)
    ]


outcomes = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=30)


@given(outcomes)
def test_an_interval_holds_its_value_and_a_difference_is_that_of_values(pairs):
    plain, other = zip(*pairs, strict=True)
    found = summarise(lines_of(plain=plain, clamp=other), followed, baseline="plain")
    ours, theirs = (found["arms"][arm]["m"] for arm in ("clamp", "plain"))
    assert ours["low"] - 1e-9 <= ours["value"] <= ours["high"] + 1e-9
    assert ours["value"] == pytest.approx(np.mean(other))
    assert ours["difference"]["value"] == pytest.approx(ours["value"] - theirs["value"])
    if plain == other:
        assert ours["difference"]["low"] == ours["difference"]["high"] == 0


def test_the_interval_is_that_of_a_binomial_where_there_are_many():
    rng = np.random.default_rng(0)
    plain = rng.random(2000) < 0.3
    found = summarise(lines_of(plain=plain), followed, baseline="plain")
    own = found["arms"]["plain"]["m"]
    half = 1.96 * math.sqrt(own["value"] * (1 - own["value"]) / 2000)
    # 9,999 resamples know an end to some 2 % of its distance
    assert own["high"] - own["value"] == pytest.approx(half, rel=0.1)
    assert own["value"] - own["low"] == pytest.approx(half, rel=0.1)


def test_a_kl_bound_of_null_is_infinite():
    lines = [line | {"kl_bound": None} for line in lines_of(plain=[True])]
    found = summarise(lines, followed, baseline="plain")
    assert found["arms"]["plain"]["kl_bound_per_token"] == math.inf
    json.loads(strict_json(found), parse_constant=pytest.fail)


def test_only_prompts_that_all_arms_have_answered_count():
    lines = lines_of(plain=[True, False, True], clamp=[True, True])
    found = summarise(lines, followed, baseline="plain")
    assert found["prompts"] == 2
    assert found["arms"]["plain"]["m"]["value"] == 0.5
    with pytest.raises(ValueError, match="plain"):
        summarise(lines_of(clamp=[True]), followed, baseline="plain")


def test_layers_are_dropped_and_weights_shared():
    whole = load_pair("tiny").target
    short = without_layers(whole, [1])
    tokens = torch.tensor([[1, 2, 3, 4]])
    hidden = whole.model.embed_tokens(tokens)
    positions = whole.model.rotary_emb(hidden, torch.arange(4)[None])
    for layer in (whole.model.layers[i] for i in (0, 2, 3)):
        hidden = layer(hidden, position_embeddings=positions, attention_mask=None)
    expected = whole.lm_head(whole.model.norm(hidden))
    assert torch.allclose(short(tokens).logits, expected, atol=1e-5)  # float32
    assert len(whole.model.layers) == 4
    assert short.lm_head.weight.data_ptr() == whole.lm_head.weight.data_ptr()
    with torch.no_grad():  # its cache has a place for each layer that is left
        context = Context(short, rows=1, slots=4)
        context.read([[1, 2, 3]])
        last = context.read([[4]])
    assert torch.allclose(last, expected[:, 3:], atol=1e-5)


@pytest.mark.parametrize("dropped", [[4], [-1], [0, 1, 2, 3]])
def test_only_layers_that_there_are_can_be_dropped_and_not_all(dropped):
    with pytest.raises(ValueError, match="dropped must be some of the 4 layers"):
        without_layers(load_pair("tiny").target, dropped)
