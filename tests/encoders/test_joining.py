"""Clips of several lengths in one batch: equal to single calls, and when they stay apart."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import FAMILIES, LAYERS, random_model, write_checkpoint, write_whisper
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from torch_mapss.encoders import Encoder, MelEncoder, WaveformEncoder, as_encoder, load_encoder
from torch_mapss.encoders.joining import MOST_PADDING, at_true_length, shared_batches

# The second gives an odd number of spectra, the last two equally many frames of unlike clips.
LENGTHS = (9600, 9271, 8080, 7423, 7400)
ATTENTION = ("eager", "sdpa", None)
# Architecture, and what its checkpoint says besides: all whose norms are over one frame.
FRAMEWISE = [
    ("wav2vec2", {}),
    ("hubert", {}),
    ("wavlm", {}),
    ("hubert", {"do_stable_layer_norm": False}),  # norms behind the blocks, as base models have
    ("wavlm", {"do_stable_layer_norm": False}),
    ("whisper", {}),
]
Folder = Callable[..., Path]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    written: dict[str, Path] = {}

    def get(family: str, large: bool = True, **options: Any) -> Path:
        key = f"{family}-{large}-{sorted(options.items())}"
        if key not in written:
            written[key] = tmp_path_factory.mktemp("checkpoint")
            if family == "whisper":
                write_whisper(written[key], **options)
            else:
                write_checkpoint(written[key], family, large, **options)
        return written[key]

    return get


def clips(lengths: Sequence[int] = LENGTHS, rows: int = 2, seed: int = 0) -> list[Tensor]:
    """Clips of unlike level and offset, which the input normalisation has to find at each."""
    generator = torch.Generator().manual_seed(seed)
    return [
        0.1 * (1 + k) * torch.randn(rows, length, generator=generator) + 0.05 * k
        for k, length in enumerate(lengths)
    ]


def counted(encoder: Encoder) -> list[tuple[int, ...]]:
    """Shapes of the batches that an encoder is given from now on."""
    shapes: list[tuple[int, ...]] = []
    encode = encoder._encode_checked

    def watched(flat: Tensor, how: Any) -> Tensor:
        shapes.append(tuple(flat.shape))
        return encode(flat, how)

    encoder._encode_checked = watched  # type: ignore[method-assign]
    return shapes


def relative_error(found: Tensor, expected: Tensor) -> float:
    found, expected = found.detach(), expected.detach()
    return float((found - expected).abs().max() / expected.abs().max())


def gradients(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Of a sum that weighs every value differently."""
    total = torch.zeros(())
    for x in outputs:
        total = total + (x * torch.linspace(-1.0, 2.0, x.numel()).view_as(x)).sum()
    return torch.autograd.grad(total, inputs)


def alone_and_together(encoder: Encoder) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Clips of several lengths that want a gradient; encoded one by one; and in one batch."""
    waves = [wave.requires_grad_() for wave in clips()]
    alone = [encoder(wave) for wave in waves]
    shapes = counted(encoder)
    found = encoder.together(waves)
    assert shapes == [(10, 9600)]
    return waves, alone, found


# --- Equal to single calls ----------------------------------------------------------------------


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize(("family", "options"), FRAMEWISE)
def test_transformers_with_layer_norms(
    folder: Folder, family: str, options: dict[str, Any], attention: str | None
) -> None:
    for layer in (0, 2, LAYERS):
        path = folder(family, **options)
        try:
            encoder = load_encoder(path, layer=layer, attention=attention)
        except ValueError:  # WavLM nowhere, the others not in every version of transformers
            assert attention == "sdpa"
            pytest.skip("the architecture has no such attention here")
        waves, alone, found = alone_and_together(encoder)
        for one, expected in zip(found, alone):
            assert one.shape == expected.shape
            assert relative_error(one, expected) < 1e-5
        for one, expected in zip(gradients(found, waves), gradients(alone, waves)):
            assert relative_error(one, expected) < 1e-5


@pytest.mark.parametrize("family", ["wav2vec2", "hubert", "wavlm"])
def test_equal_to_the_full_models_of_transformers(folder: Folder, family: str) -> None:
    encoder = load_encoder(folder(family, do_normalize=False), layer=2)
    model = random_model(family, True)
    with torch.no_grad():
        for found, wave in zip(encoder.together(clips()), clips()):
            expected = model(wave, output_hidden_states=True).hidden_states[2]
            assert relative_error(found, expected) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions(folder: Folder, dtype: torch.dtype) -> None:
    digits = {torch.float64: 1e-12, torch.bfloat16: 0.05}[dtype]
    for family in ("wav2vec2", "wavlm", "whisper"):
        encoder = load_encoder(folder(family), layer=2, dtype=dtype)
        waves = [wave.double() for wave in clips()]
        for found, wave in zip(encoder.together(waves), waves):
            assert found.dtype == torch.promote_types(dtype, torch.float32)
            assert relative_error(found, encoder(wave)) < digits


def test_silence_and_a_clip_of_one_frame(folder: Folder) -> None:
    for family in ("wav2vec2", "wavlm", "whisper"):
        encoder = load_encoder(folder(family), layer=2)
        waves = [*clips(), torch.zeros(1, 9000), *clips([400], seed=1)]
        for found, wave in zip(encoder.together(waves), waves):
            assert relative_error(found, encoder(wave)) < 1e-5


def test_wavlm_is_no_longer_warned_of_by_torch(folder: Folder) -> None:
    encoder = load_encoder(folder("wavlm"), layer=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoder.together(clips())


@pytest.mark.parametrize("context", [0, 2])
def test_mel_frames_do_not_see_the_padding(context: int) -> None:
    encoder = MelEncoder(context=context)
    waves, alone, found = alone_and_together(encoder)
    for one, expected in zip(found, alone):
        torch.testing.assert_close(one, expected, rtol=1e-6, atol=1e-6)
    for one, expected in zip(gradients(found, waves), gradients(alone, waves)):
        assert relative_error(one, expected) < 1e-6


def test_waveform_frames_stay_views() -> None:
    encoder, waves = WaveformEncoder(), clips()
    assert encoder.local
    assert not encoder.joins
    for found, wave in zip(encoder.together(waves), waves):
        assert torch.equal(found, encoder(wave))
        assert found.untyped_storage().data_ptr() == wave.untyped_storage().data_ptr()


class Own:
    """Frames of 400 samples, hop 320; counts the waveforms of its calls."""

    sample_rate, hop, receptive_field = 16_000, 320, 400

    def __init__(self, local: bool) -> None:
        self.local = local
        self.calls: list[tuple[int, ...]] = []

    def __call__(self, waveform: Tensor) -> Tensor:
        self.calls.append(tuple(waveform.shape))
        frames = waveform.unfold(-1, 400, 320)
        # What reaches over the clip must not be joined.
        return frames if self.local else frames / waveform.std(-1, keepdim=True).unsqueeze(-1)


def test_ones_own_encoder_is_joined_only_where_it_says_that_it_is_local() -> None:
    own = Own(local=True)
    for found, wave in zip(as_encoder(own).together(clips()), clips()):
        assert torch.equal(found, wave.unfold(-1, 400, 320))
    assert own.calls == [(10, 9600)]
    own = Own(local=False)
    for found, wave in zip(as_encoder(own).together(clips()), clips()):
        assert torch.equal(found, own(wave))
    assert own.calls[:5] == [(2, length) for length in LENGTHS]


# --- What stays apart ---------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_group_norms_are_never_joined(folder: Folder, family: str) -> None:
    encoder = load_encoder(folder(family, large=False), layer=2)
    assert not encoder.joins
    shapes = counted(encoder)
    found = encoder.together(clips())
    assert shapes == [(2, length) for length in LENGTHS]
    assert all(torch.equal(x, encoder(wave)) for x, wave in zip(found, clips()))
    # The reason: their statistics would take the padding in.
    padded = encoder._encode_padded(torch.nn.functional.pad(clips()[4], (0, 2200)), (7400, 7400))
    assert relative_error(padded[:, : found[4].shape[1]], found[4]) > 0.01


def test_a_norm_over_the_batch_in_front_of_the_positions_is_not_joined(folder: Folder) -> None:
    encoder = load_encoder(folder("hubert", conv_pos_batch_norm=True), layer=1)
    assert not encoder.joins


def test_clips_of_very_unlike_length_do_not_share_a_batch() -> None:
    encoder = MelEncoder()
    shapes = counted(encoder)
    encoder.together(clips([16_000, 4_000, 15_000, 3_500], rows=1))
    assert shapes == [(2, 16_000), (2, 4_000)]


def test_batches_keep_within_the_memory() -> None:
    encoder = MelEncoder()
    encoder.memory_budget = 7 * encoder._item_bytes(9600)  # 7 of the longest
    shapes = counted(encoder)
    found = encoder.together(clips(rows=9))  # more than fit, of every length
    assert sum(rows for rows, _ in shapes) == 45
    for rows, samples in shapes:
        assert rows * encoder._item_bytes(samples) <= encoder.memory_budget
    for one, wave in zip(found, clips(rows=9)):
        torch.testing.assert_close(one, encoder(wave), rtol=1e-6, atol=1e-6)


def test_recomputed_batches_have_the_same_gradient(folder: Folder) -> None:
    found = []
    for again in (False, True):
        encoder = load_encoder(folder("wav2vec2"), layer=2, activation_checkpointing=again)
        encoder.memory_budget = 4 * encoder._item_bytes(9600)
        waves = [wave.requires_grad_() for wave in clips()]
        shapes = counted(encoder)
        outputs = encoder.together(waves)
        # All at once where the graph keeps it anyway.
        assert [rows for rows, _ in shapes] == ([4, 4, 2] if again else [10])
        found.append((outputs, gradients(outputs, waves)))
        assert len(shapes) == (6 if again else 1)
    for one, other in zip(*found):
        assert all(relative_error(x, y) < 1e-5 for x, y in zip(one, other))


rows_of_lengths = st.lists(
    st.tuples(st.integers(1, 30), st.integers(400, 40_000)), min_size=1, max_size=8
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(rows_of_lengths, st.one_of(st.none(), st.integers(1, 600_000)))
def test_every_row_once_within_memory_and_little_padding(
    rows: list[tuple[int, int]], memory: int | None
) -> None:
    counts, lengths = [n for n, _ in rows], [length for _, length in rows]
    fitting = None if memory is None else (lambda samples: max(1, memory // samples))
    batches = shared_batches(counts, lengths, fitting)
    for place, count in enumerate(counts):
        pieces = [p for batch in batches for p in batch if p.place == place]
        assert [row for p in pieces for row in range(p.start, p.stop)] == list(range(count))
    alone = sum(1 if fitting is None else -(-n // fitting(length)) for n, length in rows)
    assert len(batches) <= alone
    for pieces in batches:
        inside = [lengths[p.place] for p in pieces for _ in range(p.stop - p.start)]
        assert inside == sorted(inside, reverse=True)
        assert fitting is None or len(inside) <= fitting(inside[0])
        padded = len(inside) * inside[0]
        assert padded - sum(inside) <= MOST_PADDING * padded


# --- Manners ------------------------------------------------------------------------------------


def test_shapes_and_batches_without_rows() -> None:
    encoder = MelEncoder()
    one, two, none = clips()[0][0], clips()[1].view(1, 2, -1), torch.empty(0, 3, 8000)
    found = encoder.together([one, none, two])
    assert [tuple(x.shape) for x in found] == [(29, 80), (0, 3, 24, 80), (1, 2, 28, 80)]
    torch.testing.assert_close(found[0], encoder(one))
    assert encoder.together([]) == []


def test_results_keep_neither_padding_nor_each_other_alive() -> None:
    found = MelEncoder().together(clips())
    assert all(x.untyped_storage().nbytes() == x.numel() * 4 for x in found)


def test_what_cannot_be_encoded_is_refused(folder: Folder) -> None:
    encoder = load_encoder(folder("wav2vec2"), layer=1)
    with pytest.raises(ValueError, match="80 samples"):
        encoder.together([*clips(), torch.zeros(1, 80)])
    with pytest.raises(ValueError, match="waveform is on meta"):
        encoder.together([*clips(), torch.empty(1, 8000, device="meta")])
    with pytest.raises(TypeError, match="floating point"):
        MelEncoder().together([*clips(), torch.zeros(1, 8000, dtype=torch.int64)])


def test_padding_is_left_out_and_put_back() -> None:
    flat = torch.arange(12.0).view(3, 4)
    found = at_true_length(lambda x: x - x.mean(-1, keepdim=True), flat, (4, 2, 2))
    assert found.tolist() == [[-1.5, -0.5, 0.5, 1.5], [-0.5, 0.5, 0, 0], [-0.5, 0.5, 0, 0]]
