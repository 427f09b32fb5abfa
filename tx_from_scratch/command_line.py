"""The command line: translate numbers, train the translator, say what is installed.

    python -m tx_from_scratch translate 723 "seven hundred and twenty-three"
    python -m tx_from_scratch train --output runs/number_words.pt
    torchrun --nproc-per-node=2 -m tx_from_scratch train --output runs/number_words.pt
    python -m tx_from_scratch info

Wrong input ends with one line on the error stream and status 2. Of several numbers to translate, each wrong
one gets such a line, and the others are translated.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import nn

# PyTorch takes seconds to import, and --help should not wait for it: every command imports what it needs.

PROGRAM = "python -m tx_from_scratch"
INTERRUPTED = 130
Item = TypeVar("Item")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status."""
    options = _parser().parse_args(arguments)
    options.command_line = shlex.join([*PROGRAM.split(), *(sys.argv[1:] if arguments is None else arguments)])
    try:
        return int(options.run(options))
    except BrokenPipeError:  # the reader of our output, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return INTERRUPTED
    except FloatingPointError as error:
        print(f"{PROGRAM}: training failed: {error}", file=sys.stderr)
        return 1
    except (ValueError, OSError) as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 2


def translate(options: argparse.Namespace) -> int:
    """Print the German words of each number, and the number as German writes it, separated by a tab.

    Inputs that are no numbers are reported with their place, and the status is 2 at the end.
    """
    from tx_from_scratch.devices import best_device
    from tx_from_scratch.number_words import join_compound
    from tx_from_scratch.translator import Translator

    device = best_device()
    if options.checkpoint is None:
        translator = Translator.pretrained(device=device)
    else:
        translator = Translator.load(options.checkpoint, device=device)
    status = 0
    kind, texts = ("argument", options.text) if options.text else ("line", _stdin_lines())
    numbered = ((place, text) for place, text in enumerate(texts, start=1) if options.text or text.strip())
    for chunk in _chunks(numbered, size=1 if sys.stdin.isatty() else 128):
        good = []
        for place, text in chunk:
            try:
                translator.encode([text])
            except ValueError as error:
                print(f"{PROGRAM}: error: {kind} {place}: {error}", file=sys.stderr, flush=True)
                status = 2
            else:
                good.append(text)
        for words in translator.translate(good, beam_size=options.beam) if good else []:
            print(f"{' '.join(words)}\t{join_compound(words)}", flush=True)
    return status


def info(options: argparse.Namespace) -> int:
    """Print versions, the device, sizes of the published models, and the shipped model's provenance."""
    from importlib.metadata import PackageNotFoundError, version

    import torch

    from tx_from_scratch.devices import best_device
    from tx_from_scratch.transformer import Transformer, TransformerConfig
    from tx_from_scratch.translator import Translator, machine

    path = options.checkpoint
    translator = Translator.load(path) if path else Translator.pretrained()
    try:
        print(f"tx_from_scratch  {version('tx_from_scratch')}")
    except PackageNotFoundError:
        print("tx_from_scratch  not installed, run from its source")
    for name, value in {**machine(), "device": str(best_device())}.items():
        print(f"{name:16} {value}")

    print("\nParameters with a shared vocabulary of 37,000")
    for name, config in {
        "base": TransformerConfig.base(37_000),
        "big": TransformerConfig.big(37_000),
    }.items():
        with torch.device("meta"):
            model = Transformer(config)
        print(f"{name:16} {_count(model):,}")

    print("\nTranslator" if path else "\nTranslator that comes with this package")
    print(f"{'parameters':16} {_count(translator.model):,}")
    print(f"{'numbers':16} 1 to {translator.high - 1:,}")
    for name, value in translator.provenance.items():
        print(f"{name:16} {value}")
    return 0


def train(options: argparse.Namespace) -> int:
    """Train a translator of number words; save it with a record of how it was made."""
    import torch

    from tx_from_scratch.data import NumberWords
    from tx_from_scratch.training import NoamSchedule, SequenceLoss, best_device, fit, seed_everything
    from tx_from_scratch.transformer import Transformer, TransformerConfig
    from tx_from_scratch.translator import Translator, exact_match, machine

    state = options.output.with_suffix(".training" + options.output.suffix)
    if state.exists() and not (options.resume or options.overwrite):
        raise ValueError(f"{state} exists; --resume goes on from it, --overwrite replaces it")
    device = best_device()
    main_process = int(os.environ.get("RANK", 0)) == 0
    data = NumberWords(high=options.high, sizes=(options.pairs, 1_000, 1_000))
    seed_everything(options.seed)
    config = TransformerConfig(
        vocab_size=len(data.vocabulary),
        d_model=options.d_model,
        n_heads=options.heads,
        n_encoder_layers=options.layers,
        n_decoder_layers=options.layers,
        d_ff=options.d_ff,
        dropout=options.dropout,
    )
    model = Transformer(config).to(device)
    if main_process:
        print(f"{data!r}, {_count(model):,} parameters, on {device}", file=sys.stderr)

    validation = data.batches("validation", max_tokens=8_192, shuffle=False)
    history = fit(
        model,
        data.batches(max_tokens=options.max_tokens, seed=options.seed),
        SequenceLoss(smoothing=options.smoothing),
        # Vaswani et al. 2017, section 5.3; the schedule sets the rate.
        optimizer=torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9),
        schedule=NoamSchedule(options.d_model, warmup=options.warmup, factor=options.factor),
        steps=options.steps,
        seconds=options.seconds,
        accumulate=options.accumulate,
        clip_norm=options.clip_norm,
        precision=options.precision,
        seed=options.seed,
        checkpoint=state,
        checkpoint_every=options.checkpoint_every,
        resume=options.resume,
        evaluate=(lambda _: {"exact": exact_match(model, validation)}) if options.evaluate_every else None,
        evaluate_every=options.evaluate_every,
    )
    if not main_process:
        return INTERRUPTED if history.interrupted else 0
    if history.interrupted:
        print(f"interrupted after {len(history):,} steps; --resume goes on from {state}", file=sys.stderr)
        return INTERRUPTED

    exact = exact_match(model, data.batches("test", max_tokens=8_192, shuffle=False))
    provenance = {
        "command": options.command_line,
        "data": repr(data),
        "steps": len(history),
        "seconds": round(history.seconds[-1], 1),
        "exact match": f"{exact:.1%} of {len(data.test):,} unseen numbers, greedy",
        **machine(),
        "device": str(device),
    }
    Translator(model, data.vocabulary, high=data.high, provenance=provenance).save(options.output)
    print(f"{provenance['exact match']}; saved {options.output}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="The Transformer, taken apart: train and use the translator of number words.",
        epilog="The environment variable TX_DEVICE (cpu, cuda, mps) overrides the choice of the device.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    command = commands.add_parser("translate", help="English number words or digits to German")
    command.description = "Print the German words of each number, a tab, and the number as German writes it."
    command.add_argument(
        "text", nargs="*", help="723 or 'seven hundred and twenty-three'; none: lines of stdin"
    )
    command.add_argument(
        "--beam", type=_positive, default=1, metavar="N", help="beam size (default 1: greedy)"
    )
    command.add_argument(
        "--checkpoint", type=Path, metavar="FILE", help="a translator that `train` has saved"
    )
    command.set_defaults(run=translate)

    command = commands.add_parser("info", help="versions, device, model sizes, where the weights come from")
    command.add_argument(
        "--checkpoint", type=Path, metavar="FILE", help="a translator that `train` has saved"
    )
    command.set_defaults(run=info)

    command = commands.add_parser(
        "train",
        help="train a translator of number words",
        description="Train a translator of number words; the defaults take about half a minute on two CPU "
        "cores. Ctrl-C saves, --resume goes on. In several processes: torchrun --nproc-per-node=2 -m "
        "tx_from_scratch train",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _add_training_options(command)
    command.set_defaults(run=train)
    return parser


def _add_training_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--output", type=Path, default=Path("runs/number_words.pt"), metavar="FILE", help="where to save")
    group = command.add_mutually_exclusive_group()
    group.add_argument("--resume", action="store_true", help="go on where the run of the same output stopped")
    group.add_argument("--overwrite", action="store_true", help="start anew, whatever is there")

    add = command.add_argument_group("data").add_argument
    add("--pairs", type=_positive, default=13_000, metavar="N", help="numbers to train on")
    add("--high", type=_positive, default=10**6, metavar="N", help="numbers are below this, at most 10**12")
    add("--max-tokens", type=_positive, default=624, metavar="N", help="tokens of a batch, padding included")

    add = command.add_argument_group("model").add_argument
    add("--d-model", type=_positive, default=128, metavar="N", help="width")
    add("--heads", type=_positive, default=4, metavar="N", help="attention heads")
    add("--layers", type=_positive, default=2, metavar="N", help="layers of encoder and decoder each")
    add("--d-ff", type=_positive, default=128, metavar="N", help="width inside the feed-forward networks")
    add("--dropout", type=float, default=0.0, metavar="P", help="probability")

    add = command.add_argument_group("training").add_argument
    add("--steps", type=_positive, default=500, metavar="N", help="how many, those before --resume included")
    add("--seconds", type=float, metavar="S", help="stop earlier, after this time")
    add("--warmup", type=_positive, default=100, metavar="N", help="steps in which the learning rate rises")
    add("--factor", type=float, default=0.15, metavar="X", help="multiplies the learning rate")
    add("--smoothing", type=float, default=0.1, metavar="E", help="of the labels")
    add("--accumulate", type=_positive, default=1, metavar="N", help="batches of each process in a step")
    add("--clip-norm", type=float, metavar="X", help="largest norm of a gradient")
    add(
        "--precision",
        choices=["auto", "fp32", "bf16"],
        default="auto",
        help="auto: bf16 on GPUs that have it",
    )
    add("--seed", type=int, default=0, metavar="N", help="of the weights, the order, and dropout")
    add("--checkpoint-every", type=_positive, metavar="N", help="save the run every N steps")
    add(
        "--evaluate-every",
        type=_positive,
        metavar="N",
        help="exact match on validation numbers every N steps",
    )


def _positive(text: str) -> int:
    number = int(text.replace("_", "").replace(",", ""))
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


# argparse names the type in its message: "invalid whole number value: 'x'".
_positive.__name__ = "whole number"


def _stdin_lines() -> Iterator[str]:
    if sys.stdin.isatty():
        print("One number a line; Ctrl-D ends.", file=sys.stderr)
    return iter(sys.stdin)


def _chunks(items: Iterator[Item], size: int) -> Iterator[list[Item]]:
    while chunk := list(islice(items, size)):
        yield chunk


def _count(model: "nn.Module") -> int:
    return sum(parameter.numel() for parameter in model.parameters())
