"""The language model: against Llama, who reads whom, what is configured, what stays as it was."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from tiny_language_models import (
    ABSOLUTE,
    D_HEAD,
    D_MODEL,
    LLAMA_ROPE,
    N_HEADS,
    N_LAYERS,
    RELATIVE,
    SCHEMES,
    VARIANTS,
    VOCAB,
    build,
    draw,
    llama,
    llama_parameters,
    masked_pass,
)
from torch import nn

from tx_from_scratch.inspection import capture_attention
from tx_from_scratch.model import (
    FEEDFORWARDS,
    NORMALIZATIONS,
    POSITIONS,
    RESIDUALS,
    LanguageModel,
    ModelConfig,
)
from tx_from_scratch.positions import ALiBi, ShawRelativePositions
from tx_from_scratch.residuals import PostNorm, PreNorm


@pytest.fixture(autouse=True)
def _shapes_of_every_module(request):
    """Checking shapes takes most of the time: in TestPositions every scheme passes the checks once."""
    case = getattr(request.node, "callspec", None)
    if case is not None and case.params.get("scheme") in VARIANTS:
        request.getfixturevalue("without_shape_checks")


class TestLlama:
    @pytest.mark.parametrize("scheme", LLAMA_ROPE)
    def test_whole_model_equals_llama(self, scheme):
        """transformers' LlamaForCausalLM with our weights: logits, and the gradient of every layer."""
        ours, theirs = llama(scheme)
        tokens = draw(2, 11)
        logits, expected = ours(tokens), theirs(tokens).logits
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-5)
        direction = torch.randn_like(logits)
        logits.backward(direction)
        expected.backward(direction)
        for parameter, copied in llama_parameters(ours, theirs):
            torch.testing.assert_close(parameter.grad, copied.grad, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(
            ours.embedding.weight.grad,
            theirs.model.embed_tokens.weight.grad * math.sqrt(D_MODEL),
            atol=1e-3,
            rtol=1e-4,
        )

    def test_left_padding_equals_llama(self):
        ours, theirs = llama()
        tokens, real = draw(2, 9), torch.ones(2, 9, dtype=torch.bool)
        real[1, :4] = False
        expected = theirs(tokens, attention_mask=real.long()).logits
        torch.testing.assert_close(ours(tokens, real=real)[real], expected[real], atol=1e-4, rtol=1e-5)

    def test_it_counts_what_llama_counts(self):
        ours, theirs = llama()
        assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())


@pytest.mark.usefixtures("without_shape_checks")
class TestWhoReadsWhom:
    @pytest.mark.parametrize("scheme", SCHEMES)
    def test_no_token_reads_a_later_one(self, scheme):
        """Changing one token changes nothing before it, and everything from it on."""
        model, tokens = build(scheme), draw(2, 9)
        changed = tokens.clone()
        changed[:, 4] = (changed[:, 4] + 1) % VOCAB
        difference = (model(changed) - model(tokens)).abs().amax(dim=-1)
        assert difference[:, :4].max() == 0
        assert difference[:, 4:].min() > 1e-4

    @pytest.mark.parametrize("scheme", POSITIONS)
    def test_an_encoder_reads_in_both_directions(self, scheme):
        model, tokens = build(scheme, causal=False), draw(2, 9)
        changed = tokens.clone()
        changed[:, 4] = (changed[:, 4] + 1) % VOCAB
        assert (model(changed) - model(tokens)).abs().amax(dim=-1).min() > 1e-4

    @pytest.mark.parametrize("causal", [True, False])
    @pytest.mark.parametrize("scheme", SCHEMES)
    def test_rows_of_a_batch_do_not_mix(self, scheme, causal):
        """A09: each row as if it were alone; also where batch, length and heads are equal."""
        if scheme == "t5, shared buckets" and not causal:
            pytest.skip("made for the past alone")
        model = build(scheme, causal=causal)
        for tokens in (draw(2, 7), draw(3, 3)):
            together = model(tokens)
            alone = torch.cat([model(row[None]) for row in tokens])
            torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)
            torch.testing.assert_close(model(tokens.flip(0)), together.flip(0), atol=1e-5, rtol=0)

    @pytest.mark.parametrize("scheme", POSITIONS)
    def test_only_an_encoder_without_positions_ignores_the_order(self, scheme):
        """Permuted tokens give permuted logits; with positions, or a causal mask, they don't."""
        tokens, order = torch.arange(7)[None], torch.tensor([3, 0, 6, 1, 5, 2, 4])

        def change(model: LanguageModel) -> float:
            return (model(tokens[:, order]) - model(tokens)[:, order]).abs().max().item()

        if scheme == "none":
            assert change(build(scheme, causal=False).double()) < 1e-12
        else:
            assert change(build(scheme, causal=False)) > 1e-3
        assert change(build(scheme, causal=True)) > 1e-3

    @pytest.mark.parametrize("scheme", SCHEMES)
    def test_the_causal_rule_is_a_triangular_mask(self, scheme):
        """The fast path against the parts of the model, put together by hand with an explicit mask."""
        model, tokens = build(scheme), draw(2, 7)
        expected = masked_pass(model, tokens, torch.ones(7, 7).tril().bool())
        torch.testing.assert_close(model(tokens), expected, atol=1e-5, rtol=0)

    @pytest.mark.parametrize("scheme", SCHEMES)
    def test_looking_at_the_weights_changes_nothing(self, scheme):
        """The explicit path gives the same logits, and weights that sum to 1 over what may be read."""
        model, tokens = build(scheme), draw(2, 7)
        with capture_attention(model) as maps:
            logits = model(tokens)
        torch.testing.assert_close(logits, model(tokens), atol=1e-5, rtol=0)
        assert list(maps) == [f"blocks.{layer}.attention" for layer in range(N_LAYERS)]
        for [weights] in maps.values():
            assert not weights.triu(1).any()
            torch.testing.assert_close(weights.sum(dim=-1), torch.ones(2, N_HEADS, 7))


class TestPositions:
    @pytest.mark.parametrize("scheme", RELATIVE)
    def test_relative_schemes_know_no_beginning(self, scheme):
        """All positions shifted by 11: the same logits."""
        model, tokens = build(scheme), draw(2, 9)
        shifted = model(tokens, positions=torch.arange(11, 20)[None], longest=9)
        torch.testing.assert_close(shifted, model(tokens), atol=1e-4, rtol=0)

    @pytest.mark.parametrize("scheme", ABSOLUTE)
    def test_absolute_schemes_know_the_beginning(self, scheme):
        model, tokens = build(scheme), draw(2, 9)
        shifted = model(tokens, positions=torch.arange(11, 20)[None])
        assert (shifted - model(tokens)).abs().max() > 1e-2

    @pytest.mark.parametrize("scheme", SCHEMES)
    def test_written_positions_equal_counted_ones(self, scheme):
        """Also where a scheme takes another path for positions that it can't know to be consecutive."""
        model, tokens = build(scheme), draw(2, 9)
        for positions in (torch.arange(9)[None], torch.arange(9).expand(2, -1)):
            torch.testing.assert_close(model(tokens, positions=positions), model(tokens), atol=1e-5, rtol=0)

    @pytest.mark.parametrize("scheme", [scheme for scheme in SCHEMES if scheme != "none"])
    def test_every_row_has_its_own_positions(self, scheme):
        """A batch whose rows stand at different places, with gaps: each row as if it were alone."""
        model, tokens = build(scheme), draw(2, 6)
        positions = torch.tensor([[0, 1, 2, 5, 6, 9], [3, 4, 7, 8, 15, 16]])
        longest = torch.tensor([10, 17])
        together = model(tokens, positions=positions, longest=longest)
        for row in range(2):
            alone = model(
                tokens[row : row + 1], positions=positions[row : row + 1], longest=longest[row].item()
            )
            torch.testing.assert_close(together[row : row + 1], alone, atol=1e-5, rtol=0)
        assert (together - model(tokens, longest=longest)).abs().max() > 1e-3

    def test_a_configured_scheme_is_copied(self):
        """Two models of one configuration don't share it, and training them leaves it as it was."""
        scheme = ShawRelativePositions(N_LAYERS, D_HEAD)
        before = scheme.keys.detach().clone()
        one, other = build(positions=scheme), build(positions=scheme)
        assert one.positions is not scheme
        assert one.positions.keys is not other.positions.keys
        assert torch.equal(scheme.keys, before)
        assert not torch.equal(one.positions.keys, other.positions.keys)

    def test_other_weights_do_not_depend_on_the_scheme(self):
        """Of one seed: so a comparison of schemes compares nothing else."""
        models = {}
        for scheme in POSITIONS:
            torch.manual_seed(3)
            models[scheme] = LanguageModel(ModelConfig(vocab_size=VOCAB, d_model=D_MODEL, positions=scheme))
        expected = dict(models["none"].named_parameters())
        for model in models.values():
            for name, parameter in model.named_parameters():
                assert name.startswith("positions.") or torch.equal(parameter, expected[name])

    def test_stored_weights_are_those_that_are_learned(self):
        """Computed tables are in no state dict."""
        learned = {
            scheme: [name for name, _ in build(scheme).positions.named_parameters()] for scheme in SCHEMES
        }
        for scheme, names in learned.items():
            assert list(build(scheme).positions.state_dict()) == names
            assert bool(names) == scheme.startswith(("learned", "shaw", "transformer_xl", "t5")), scheme


@pytest.mark.usefixtures("without_shape_checks")
class TestParts:
    def test_every_name_makes_its_part(self):
        for name, part in FEEDFORWARDS.items():
            assert isinstance(build(feedforward=name).blocks[1].feedforward, part)
        for name, part in NORMALIZATIONS.items():
            model = build(normalization=name)
            assert isinstance(model.norm, part)
            assert isinstance(model.blocks[0].feedforward_connection.norm, part)
        for name, part in RESIDUALS.items():
            assert isinstance(build(residual=name).blocks[0].attention_connection, part)

    def test_the_last_norm_stands_where_the_stream_is_not_normalized(self):
        assert isinstance(build(residual="pre_norm").norm, nn.LayerNorm)
        assert isinstance(build(residual="post_norm").norm, nn.Identity)

    def test_head_width_and_scale_are_free(self):
        model = build(d_head=10, attention_scale=0.5)
        assert model.blocks[0].attention.project_query.weight.shape == (30, D_MODEL)
        tokens = draw(2, 7)
        with capture_attention(model) as maps:
            model(tokens)
        half = build(d_head=10, attention_scale=0.25)
        half.load_state_dict(model.state_dict())
        with capture_attention(half) as halved:
            half(tokens)
        first = "blocks.0.attention"
        seen = torch.ones(7, 7).tril().bool()
        ratio = (
            maps[first][0].log().diff(dim=-1)[..., 1:, 0] / halved[first][0].log().diff(dim=-1)[..., 1:, 0]
        )
        assert seen[1:, 1].all()
        torch.testing.assert_close(ratio, torch.full_like(ratio, 2.0), atol=2e-3, rtol=0)

    def test_matrices_start_at_their_size(self):
        """1 / sqrt(columns); where a sublayer writes to the stream, over sqrt(2 · n_layers). Biases 0."""
        for feedforward in FEEDFORWARDS:
            config = ModelConfig(vocab_size=9, d_model=256, n_layers=8, feedforward=feedforward)
            model = LanguageModel(config)
            linears = {name: part for name, part in model.named_modules() if isinstance(part, nn.Linear)}
            assert len(linears) == 8 * (4 + (2 if feedforward == "relu" else 3))
            for name, linear in linears.items():
                writes = name.rsplit(".", 1)[1] in {"project_out", "narrow", "down"}
                expected = linear.in_features**-0.5 / (4.0 if writes else 1.0)
                assert linear.weight.std().item() == pytest.approx(expected, rel=0.02)
                assert linear.bias is None or not linear.bias.any()

    def test_dropout_falls_on_embeddings_and_sublayers(self):
        model = build(dropout=0.3).train()
        names = {name for name, part in model.named_modules() if isinstance(part, nn.Dropout)}
        connections = {name for name, part in model.named_modules() if isinstance(part, PreNorm | PostNorm)}
        assert len(connections) == 2 * N_LAYERS
        assert names == {"dropout"} | {f"{name}.dropout" for name in connections}
        tokens = draw(2, 7)
        assert not torch.equal(model(tokens), model(tokens))
        assert torch.equal(model.eval()(tokens), model(tokens))


@pytest.mark.usefixtures("without_shape_checks")
class TestErrors:
    @pytest.mark.parametrize("field", ["positions", "feedforward", "normalization", "residual"])
    def test_unknown_names_list_the_known_ones(self, field):
        names = {
            "positions": POSITIONS,
            "feedforward": FEEDFORWARDS,
            "normalization": NORMALIZATIONS,
            "residual": RESIDUALS,
        }[field]
        with pytest.raises(ValueError, match=f"{field} must be one of {', '.join(names)}; got 'rotary'"):
            ModelConfig(vocab_size=9, **{field: "rotary"})
        with pytest.raises(TypeError, match=f"{field} must be one of .*; got 3"):
            ModelConfig(vocab_size=9, **{field: 3})

    def test_a_class_is_no_scheme(self):
        with pytest.raises(TypeError, match="positions must be one of the names"):
            ModelConfig(vocab_size=9, positions=ALiBi)

    @pytest.mark.parametrize(
        ("sizes", "shown"),
        [
            ({"d_model": 1600, "n_heads": 48}, "d_model=1600, n_heads=48; nearest that do: 32, 40, 50"),
            ({"d_model": 10, "n_heads": 3}, "d_model=10, n_heads=3; nearest that do: 1, 2, 5"),
            ({"n_heads": 0}, "n_heads=0"),
            ({"n_heads": -2}, "n_heads=-2"),
            ({"vocab_size": 0}, "vocab_size must be positive, got 0"),
            ({"n_layers": 0}, "n_layers must be positive, got 0"),
            ({"d_ff": -4}, "d_ff must be positive, got -4"),
            ({"max_length": 0}, "max_length must be positive, got 0"),
            ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
            ({"attention_scale": -1.0}, "scale must be a finite positive number"),
        ],
    )
    def test_sizes_that_do_not_fit(self, sizes, shown):
        """A07: at construction, with both values and what would do."""
        with pytest.raises(ValueError) as error:  # noqa: PT011
            ModelConfig(**{"vocab_size": 9, **sizes})
        assert shown in str(error.value)

    @pytest.mark.parametrize("size", ["vocab_size", "n_layers", "d_model", "max_length", "d_ff"])
    def test_sizes_are_integers(self, size):
        with pytest.raises(TypeError, match=size):
            ModelConfig(**{"vocab_size": 9, size: 64.0})

    def test_a_changed_configuration_is_checked_too(self):
        with pytest.raises(ValueError, match="positions must be one of"):
            dataclasses.replace(ModelConfig(vocab_size=9), positions="relative")

    @pytest.mark.parametrize(("bad", "shown"), [(VOCAB, "got 13"), (-1, "got -1"), (40_000, "got 40000")])
    def test_tokens_outside_the_vocabulary(self, bad, shown):
        """A08: before a kernel crashes on them; the model is usable afterwards."""
        model, tokens = build(), draw(2, 7)
        given = tokens.clone()
        given[1, 2] = bad
        with pytest.raises(
            ValueError, match=rf"tokens must hold ids from 0 to 12 \(vocab_size=13\), {shown}"
        ):
            model(given)
        assert model(tokens).isfinite().all()

    @pytest.mark.parametrize("length", [17, 40])
    def test_a_learned_table_ends(self, length):
        """A08: named before anything is computed; the last row itself is fine."""
        model = build("learned", max_length=16)
        with pytest.raises(ValueError, match=rf"0 to 15 \(max_length=16\), got {length - 1}"):
            model(draw(2, length))
        assert model(draw(2, 16)).isfinite().all()

    @pytest.mark.parametrize("scheme", [scheme for scheme in SCHEMES if scheme != "learned"])
    def test_no_other_scheme_ends(self, scheme):
        assert build(scheme, max_length=16)(draw(1, 200)).isfinite().all()

    @pytest.mark.parametrize(
        ("arguments", "kind", "shown"),
        [
            ({"real": torch.ones(2, 7)}, TypeError, "real must be a Boolean tensor"),
            ({"real": torch.ones(2, 6, dtype=torch.bool)}, ValueError, "real must have the shape of tokens"),
            ({"positions": torch.ones(2, 7)}, TypeError, "positions must be integers"),
            ({"positions": torch.ones(7, dtype=torch.int64)}, ValueError, "positions must have shape"),
            ({"positions": torch.ones(3, 7, dtype=torch.int64)}, ValueError, "positions must have shape"),
            ({"longest": torch.ones(3, dtype=torch.int64)}, ValueError, "longest must be an integer, or one"),
            ({"longest": 0}, ValueError, "longest must be positive, got 0"),
        ],
    )
    def test_shapes_and_types(self, arguments, kind, shown):
        with pytest.raises(kind, match=shown):
            build()(draw(2, 7), **arguments)

    @pytest.mark.parametrize("tokens", [torch.zeros(2, 7), torch.zeros(7, dtype=torch.int64)])
    def test_tokens_are_rows_of_integers(self, tokens):
        with pytest.raises((TypeError, ValueError), match=r"tokens must (hold int64|have shape)"):
            build()(tokens)

    def test_lists_and_empty_rows_are_no_tokens(self):
        with pytest.raises(TypeError, match="tokens must be a tensor of token ids, got list"):
            build()([[1, 2]])
        with pytest.raises(ValueError, match="tokens must hold at least one token"):
            build()(draw(2, 7)[:, :0])

    def test_variants_are_schemes_of_their_own(self):
        """What the tests above vary: no two compute the same."""
        tokens, seen = draw(1, 9), []
        for scheme in ("rope", *VARIANTS):
            torch.manual_seed(1)
            model = build("rope")
            model.positions = VARIANTS[scheme]() if scheme in VARIANTS else model.positions
            seen.append(model(tokens))
        for index, logits in enumerate(seen):
            assert all((logits - other).abs().max() > 1e-4 for other in seen[:index])
