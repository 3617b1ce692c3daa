"""The demonstration command, on the pair that needs no download."""

from cactus_runtime.cli import main


def test_it_streams_the_text_and_prints_the_comparison(capsys):
    assert main(["demo", "--pair", "tiny", "--tokens", "12", "--seed", "3", "river:"]) == 0
    out = capsys.readouterr().out
    assert "river:" in out
    assert "speculative sampling" in out
    for figure in ("tokens/s", "accepted drafts", "acceptance by position", "block efficiency"):
        assert figure in out
    assert "total variation per token" in out
    assert "\x1b" not in out  # no colours where there is no terminal


def test_a_wrong_budget_is_a_sentence_and_not_a_traceback(capsys):
    assert main(["demo", "--pair", "tiny", "--delta", "-1"]) == 2
    assert "delta must be a number of nats" in capsys.readouterr().err
