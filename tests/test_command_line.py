"""`python -m tx_from_scratch`, as a user types it; and the translator behind it."""

import io
import os
import re
import subprocess
import sys

import pytest
import torch

from tx_from_scratch.command_line import INTERRUPTED, main
from tx_from_scratch.data import NumberWords, Vocabulary
from tx_from_scratch.number_words import german_words, join_compound
from tx_from_scratch.transformer import Transformer, TransformerConfig
from tx_from_scratch.translator import Translator, exact_match

SMALL = [
    "--d-model",
    "16",
    "--heads",
    "2",
    "--layers",
    "1",
    "--d-ff",
    "16",
    "--pairs",
    "200",
    "--max-tokens",
    "200",
]


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch):
    monkeypatch.setenv("TX_DEVICE", "cpu")


@pytest.fixture(scope="module")
def pretrained() -> Translator:
    return Translator.pretrained()


# --- The model that comes with the package


def test_shipped_model_translates_unseen_numbers(pretrained):
    """1,000 numbers that were in no training batch: 99 of 100 to the last word, by greedy decoding."""
    data = NumberWords()
    assert data.vocabulary.words == pretrained.vocabulary.words
    assert exact_match(pretrained.model, data.batches("test", max_tokens=8_192, shuffle=False)) >= 0.99


def test_shipped_model_is_small_and_says_where_it_comes_from(pretrained):
    assert sum(p.numel() for p in pretrained.model.parameters()) < 600_000
    assert pretrained.high == 10**6
    assert {"command", "data", "steps", "seconds", "exact match", "torch"} <= set(pretrained.provenance)
    assert pretrained.provenance["command"].startswith("python -m tx_from_scratch train")


@pytest.mark.parametrize("beam_size", [1, 4])
def test_digits_and_words_in_any_company_give_the_same(pretrained, beam_size):
    """Alone or in a batch with longer ones, typed either way."""
    numbers = [723, 21, 616_017, 5_000]
    batch = pretrained.translate([str(n) for n in numbers], beam_size=beam_size)
    assert batch == [german_words(n) for n in numbers]
    assert pretrained.translate(["Seven hundred and twenty-three"], beam_size=beam_size) == batch[:1]


def test_translator_round_trip(tmp_path):
    torch.manual_seed(0)
    vocabulary = Vocabulary(["one", "eins"])
    config = TransformerConfig(
        vocab_size=5, d_model=8, n_heads=2, n_encoder_layers=1, n_decoder_layers=1, d_ff=8, dropout=0.0
    )
    translator = Translator(Transformer(config), vocabulary, high=2, provenance={"command": "x", "steps": 3})
    translator.save(tmp_path / "new" / "tiny.pt")
    loaded = Translator.load(tmp_path / "new" / "tiny.pt")
    source, target = torch.tensor([[3, 2]]), torch.tensor([[1, 4]])
    assert torch.equal(loaded.model(source, target), translator.model.eval()(source, target))
    assert loaded.model.config == config
    assert loaded.vocabulary.words == vocabulary.words
    assert (loaded.high, loaded.provenance) == (2, {"command": "x", "steps": 3})
    assert not loaded.model.training


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"text must hold digits \(723\) or words"),
        ("0", "from 1 to 999,999, got 0"),
        ("1,000,000", "from 1 to 999,999, got 1,000,000"),
        ("-5", "got -5"),
        ("sevn hundred", "'sevn'; did you mean 'seven'"),
    ],
)
def test_texts_that_are_no_number(pretrained, text, message):
    with pytest.raises(ValueError, match=message):
        pretrained.translate(["723", text])


@pytest.mark.usefixtures("without_shape_checks")
def test_translator_errors(pretrained):
    with pytest.raises(ValueError, match="sequence of at least one text, got '723'"):
        pretrained.translate("723")
    with pytest.raises(ValueError, match="beam_size must be at least 1, got 0"):
        pretrained.translate(["723"], beam_size=0)
    with pytest.raises(ValueError, match="the model's 64 words, got 4"):
        Translator(pretrained.model, Vocabulary(["a"]), high=10)
    with pytest.raises(ValueError, match=r"plain values, got .*TorchVersion.* for 'torch'"):
        Translator(pretrained.model, pretrained.vocabulary, high=10, provenance={"torch": torch.__version__})


def test_exact_match_counts_whole_targets(pretrained):
    """Against the model's own translations: all right. Two words exchanged: those pairs are wrong."""
    data = NumberWords(sizes=(10, 1, 200))
    written = pretrained.translate([" ".join(source) for source, _ in data.test])
    data.test = [(source, tuple(words)) for (source, _), words in zip(data.test, written, strict=True)]
    assert exact_match(pretrained.model, data.batches("test")) == 1
    swapped = {"neun": "acht", "acht": "neun"}
    wrong = sum(bool(swapped.keys() & set(target)) for _, target in data.test)
    assert 0 < wrong < 200
    data.test = [(source, tuple(swapped.get(word, word) for word in target)) for source, target in data.test]
    assert exact_match(pretrained.model, data.batches("test")) == pytest.approx(1 - wrong / 200)


# --- translate


def test_translate(capsys):
    assert main(["translate", "723", "seven hundred and twenty-three"]) == 0
    line = "sieben hundert drei und zwanzig\tsiebenhundertdreiundzwanzig\n"
    assert capsys.readouterr().out == 2 * line


def test_translate_by_beam_search(capsys):
    assert main(["translate", "--beam", "3", "42"]) == 0
    assert capsys.readouterr().out == "zwei und vierzig\tzweiundvierzig\n"


def test_translate_reads_lines(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(map(str, range(1, 300))) + "\n\n"))
    assert main(["translate"]) == 0
    lines = capsys.readouterr().out.splitlines()
    expected = [f"{' '.join(german_words(n))}\t{join_compound(german_words(n))}" for n in range(1, 300)]
    assert len(lines) == 299
    assert sum(a == b for a, b in zip(lines, expected, strict=True)) >= 290


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("beam", ["1", "2"])
def test_one_bad_number_does_not_cost_the_others(beam, capsys):
    """All good ones in their order, one line for every bad one, and the status of wrong input."""
    assert main(["translate", "--beam", beam, "23", "sevn", "42", "", "1000000", "drei"]) == 2
    output, errors = capsys.readouterr()
    assert output == "drei und zwanzig\tdreiundzwanzig\nzwei und vierzig\tzweiundvierzig\n"
    lines = errors.splitlines()
    expected = [(2, "'sevn'"), (4, "text must hold"), (5, "from 1 to 999,999"), (6, "'drei'")]
    for line, (place, part) in zip(lines, expected, strict=True):
        assert line.startswith(f"python -m tx_from_scratch: error: argument {place}: ")
        assert part in line


@pytest.mark.usefixtures("without_shape_checks")
def test_bad_lines_are_named_by_their_number(capsys, monkeypatch):
    """Empty lines count, as an editor counts them, also beyond the first batch."""
    lines = ["23"] * 130 + ["", "sevn", "2"] + ["3"] * 130 + ["forty two hundredz", "4"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    assert main(["translate"]) == 2
    output, errors = capsys.readouterr()
    numbers = [23] * 130 + [2] + [3] * 130 + [4]
    expected = [f"{' '.join(german_words(n))}\t{join_compound(german_words(n))}" for n in numbers]
    assert output.splitlines() == expected
    places = [line.split(": ")[2] for line in errors.splitlines()]
    assert places == ["line 132", "line 264"]


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("text", ["x" * 10_000, "7" * 10_000, "," * 10_000, "twenty-" + "x" * 10_000])
def test_long_nonsense_is_cut_in_messages(text, capsys):
    """Behind 60 characters."""
    assert main(["translate", text, "7"]) == 2
    output, errors = capsys.readouterr()
    assert output == "sieben\tsieben\n"
    assert re.search(r"got '(x{60}…|7{60}…|,{60})'", errors)
    assert len(errors) < 1_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["translate", "sevn"], "'sevn'; did you mean 'seven'"),
        (["translate", "1000000"], "from 1 to 999,999"),
        (["translate", "--checkpoint", "missing.pt", "1"], "there is no checkpoint missing.pt"),
        (["translate", "--checkpoint", __file__, "1"], "must be a whole checkpoint file"),
        (["info", "--checkpoint", "missing.pt"], "there is no checkpoint missing.pt"),
        (["train", "--heads", "3"], "n_heads"),
        (["train", "--dropout", "1.5"], "dropout must be"),
        (["train", "--high", "100"], "sizes must add up to at most half of the 99 numbers"),
        (["train", "--factor", "0"], "factor must be positive"),
        (["train", "--max-tokens", "3"], "max_tokens must be at least"),
    ],
)
@pytest.mark.usefixtures("without_shape_checks")
def test_mistakes_end_with_one_line_and_status_2(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.splitlines()[-1].startswith("python -m tx_from_scratch: error: ")
    assert message in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "COMMAND"),
        (["fly"], "invalid choice: 'fly'"),
        (["translate", "--beam", "0"], "must be at least 1, got 0"),
        (["train", "--steps", "many"], "invalid whole number value: 'many'"),
        (["train", "--precision", "fp8"], "invalid choice: 'fp8'"),
        (["train", "--resume", "--overwrite"], "not allowed with argument"),
    ],
)
def test_wrong_options_end_with_status_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--help"], ["translate", "--help"], ["info", "--help"], ["train", "--help"]]
)
def test_help(arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 0
    assert capsys.readouterr().out.startswith("usage: python -m tx_from_scratch")


def test_as_a_program():
    """The whole way once, through the interpreter and a pipe; help without waiting for PyTorch."""
    run = subprocess.run(
        [sys.executable, "-m", "tx_from_scratch", "translate"],
        input="23\nforty-two\n",
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
    )
    assert (run.returncode, run.stdout) == (
        0,
        "drei und zwanzig\tdreiundzwanzig\nzwei und vierzig\tzweiundvierzig\n",
    )
    code = "import sys, tx_from_scratch.command_line; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# --- info


def test_info(capsys):
    """The two counts are those of the paper's formula with a vocabulary of 37,000."""
    assert main(["info"]) == 0
    output = capsys.readouterr().out
    for expected in (
        "63,045,632",
        "214,171,648",
        torch.__version__,
        "cpu",
        "python -m tx_from_scratch train",
    ):
        assert expected in output


# --- train


@pytest.mark.usefixtures("without_shape_checks")  # three times as fast
def test_train_saves_a_translator(tmp_path, capsys):
    path = tmp_path / "runs" / "tiny.pt"
    assert main(["train", "--output", str(path), "--steps", "3", "--evaluate-every", "2", *SMALL]) == 0
    output, errors = capsys.readouterr()
    assert "of 1,000 unseen numbers" in output
    assert "200 train" in errors
    assert "exact 0" in errors
    translator = Translator.load(path)
    assert translator.model.config.d_model == 16
    assert translator.provenance["steps"] == 3
    assert f"--output {path} --steps 3" in translator.provenance["command"]
    assert main(["translate", "--checkpoint", str(path), "7"]) == 0


@pytest.mark.usefixtures("without_shape_checks")  # three times as fast
def test_train_resumes_to_the_same_weights(tmp_path, capsys):
    whole, parts = tmp_path / "whole.pt", tmp_path / "parts.pt"
    options = ["--dropout", "0.2", *SMALL]
    assert main(["train", "--output", str(whole), "--steps", "6", *options]) == 0
    assert main(["train", "--output", str(parts), "--steps", "2", *options]) == 0
    assert main(["train", "--output", str(parts), "--steps", "6", *options]) == 2
    assert "--resume goes on from it, --overwrite replaces it" in capsys.readouterr().err
    assert main(["train", "--output", str(parts), "--steps", "6", "--resume", *options]) == 0
    one, other = Translator.load(whole).model.state_dict(), Translator.load(parts).model.state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert main(["train", "--output", str(parts), "--steps", "6", "--resume", "--seed", "1", *options]) == 2
    assert "seed must be 0 to resume" in capsys.readouterr().err


def test_interrupted_training_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    """The signal comes in the third step; two are not lost."""
    import signal

    from tx_from_scratch.losses import SequenceLoss

    calls = []

    def interrupting(self: SequenceLoss, model: object, batch: object) -> object:
        calls.append(batch)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return original(self, model, batch)

    original = SequenceLoss.__call__
    monkeypatch.setattr(SequenceLoss, "__call__", interrupting)
    path = tmp_path / "tiny.pt"
    assert main(["train", "--output", str(path), "--steps", "6", *SMALL]) == INTERRUPTED
    assert "interrupted after 3 steps; --resume goes on" in capsys.readouterr().err
    assert not path.exists()
    assert main(["train", "--output", str(path), "--steps", "6", "--resume", *SMALL]) == 0
    assert len(calls) == 6


def test_diverging_training_fails_with_advice(tmp_path, capsys):
    arguments = ["train", "--output", str(tmp_path / "x.pt"), "--steps", "20", "--factor", "1e30", *SMALL]
    assert main(arguments) == 1
    assert "try a lower learning rate" in capsys.readouterr().err


@pytest.mark.distributed
def test_train_under_torchrun(tmp_path):
    """Two processes, one translator, one report."""
    path = tmp_path / "two.pt"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    with subprocess.Popen(
        [*command, "-m", "tx_from_scratch", "train", "--output", str(path), "--steps", "4", *SMALL],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        try:
            output, errors = process.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun ends its processes; killed, it would leave them behind
            raise
    assert process.returncode == 0, errors
    assert output.count("unseen numbers") == 1

    alone = tmp_path / "one.pt"
    assert main(["train", "--output", str(alone), "--steps", "4", "--accumulate", "2", *SMALL]) == 0
    one, two = Translator.load(alone).model.state_dict(), Translator.load(path).model.state_dict()
    for name, weight in one.items():
        torch.testing.assert_close(weight, two[name], atol=1e-5, rtol=1e-4)


@pytest.mark.usefixtures("without_shape_checks")
def test_the_source_must_be_english_and_text():
    """The shared vocabulary holds German words too; they are no input."""
    from tx_from_scratch.translator import Translator

    translator = Translator.pretrained()
    with pytest.raises(ValueError, match="drei"):
        translator.translate(["drei"])
    with pytest.raises(TypeError, match="723"):
        translator.translate([723])
    with pytest.raises(ValueError, match="beam_size"):
        translator.translate(["723"], beam_size=2.5)
    assert translator.translate(["523"]) == [["fünf", "hundert", "drei", "und", "zwanzig"]]
