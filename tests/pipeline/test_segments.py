"""Long clips in segments score as the whole does, in one pass for all systems."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import small_scorers
import torch
from checkpoints import write_checkpoint, write_whisper
from torch import Tensor
from waveforms import RATE, bursts, impaired

from torch_mapss import MAPSS, DistortionBank, ReferenceBank, Scores
from torch_mapss.audio.loudness import Meter, at_loudness, metered
from torch_mapss.encoders import Encoder, MelEncoder
from torch_mapss.evaluation import demo
from torch_mapss.pipeline import segments
from torch_mapss.pipeline.bank import LongClip
from torch_mapss.pipeline.copies import CopyPlan

small = functools.partial(small_scorers.small, size=6)
NAMES = ("ps", "pm", "log_pm", "attributed_distance", "foreign_distance")


def assert_alike(a: object, b: object) -> None:
    """Equal frames, and equal scores in nearly all of them."""
    active = a.active  # type: ignore[attr-defined]
    assert torch.equal(active, b.active)  # type: ignore[attr-defined]
    assert active.any()
    for name in NAMES:
        actual, expected = getattr(a, name), getattr(b, name)
        assert torch.equal(actual == 0, expected == 0)
        error = (actual - expected).abs()[active]
        if name not in ("ps", "pm"):
            error = error / actual.abs()[active].clamp(min=1e-3)
        assert (error < 1e-3).double().mean() >= 0.99, name


@pytest.mark.parametrize("encoder", ["mel", "waveform"])
def test_segments_score_as_the_whole(encoder):
    references = bursts(2.9)
    estimates = impaired(references)
    in_one_piece = small(encoder)(estimates, references, frames=24)
    segmented = small(encoder, segment=1.2)
    bank = segmented.prepare(references)
    assert isinstance(bank.groups[0], LongClip)
    assert_alike(in_one_piece, segmented(estimates, bank, frames=24))
    assert bank.nbytes < small(encoder).prepare(references).nbytes / 4


def test_bounds_attribution_and_polarity_in_segments():
    references = bursts(3.2, sources=3)
    estimates = -impaired(references)[[2, 0]]
    options = {"align_polarity": True}
    kept = {"attributed": (2, 0), "frames": 16}
    bounds = small(**options).bounds(estimates, references, **kept)
    segmented = small(segment=1.2, **options).bounds(estimates, references, **kept)
    assert_alike(bounds.scores, segmented.scores)
    double = small(segment=1.2, **options)(estimates.double(), references, **kept)
    torch.testing.assert_close(double.ps.float(), segmented.scores.ps, rtol=1e-3, atol=1e-3)
    for measure in ("ps", "pm"):
        for bound, segmented_bound in zip(getattr(bounds, measure), getattr(segmented, measure)):
            close = (bound - segmented_bound).abs() <= 1e-3 * (1 + bound.abs())
            assert close.double().mean() >= 0.99


def test_long_and_short_clips_of_a_batch_at_another_rate():
    references = torch.stack([bursts(1.7, seed=s, rate=24000) for s in range(3)])
    estimates = impaired(references)
    lengths = (36017, 23000, 36017)
    options = {"sample_rate": 24000, "size": 6}
    in_one_piece = small(**options)(estimates, references, lengths=lengths)
    mapss = small(segment=1.1, **options)
    bank = mapss.prepare(references, lengths)
    assert [isinstance(clips, LongClip) for clips in bank.groups] == [True, False, True]
    assert_alike(in_one_piece, mapss(estimates, bank))


def test_one_measure_alone_and_drawn_frames():
    references = bursts(2.4)
    mapss = small(segment=1.0)
    bank = mapss.prepare(references)
    paper = ("separation", "match")  # neither scores pauses, so both draw of the same frames
    of_both = mapss(impaired(references), bank, measures=paper, frames=30)
    ps = mapss(impaired(references), references, measures="separation", frames=30)
    torch.testing.assert_close(ps.ps, of_both.ps)
    assert ps.pm is None
    seeds = [torch.Generator().manual_seed(seed) for seed in (1, 1, 2)]
    drawn = [mapss(impaired(references), bank, frames=9, generator=seed) for seed in seeds]
    assert torch.equal(drawn[0].active, drawn[1].active)
    assert not torch.equal(drawn[0].active, drawn[2].active)
    assert int((drawn[0].active | drawn[0].defined("clearance")).any(1).sum()) == 9


class Counting:
    """Features of the waveform and of its mean over all that the encoder receives."""

    sample_rate, hop, receptive_field = RATE, 320, 400

    def __init__(self, spoil: float | None = None) -> None:
        self.shapes: list[tuple[int, int]] = []
        self.spoil = spoil

    def __call__(self, waves: Tensor) -> Tensor:
        self.shapes.append((len(waves), waves.shape[-1]))
        frames = waves.unfold(-1, 400, 320)[..., ::16].clone()
        frames[..., 0] = waves.mean(-1, keepdim=True)
        if self.spoil is not None:  # frames that are loud
            frames[frames.abs().amax(-1) > self.spoil] = torch.nan
        return frames


def test_systems_share_one_pass():
    references = bursts(2.4)
    systems = [impaired(references), references + 0.1 * bursts(2.4, seed=3)]
    encoder = Counting()
    mapss = small(encoder, segment=1.0)
    bank = mapss.prepare(references)
    alone = [mapss(system, bank) for system in systems]
    encoder.shapes.clear()
    mapss(systems[0], bank)
    once = sum(rows for rows, _ in encoder.shapes)
    encoder.shapes.clear()
    told: list[tuple[int, int]] = []
    together = mapss.score_systems(systems, bank, on_segment=lambda k, n: told.append((k, n)))
    rows = sum(rows for rows, _ in encoder.shapes)
    # The second system's two estimates, once a segment for all measures, and nothing else.
    assert rows - once == 2 * (len(told) - 1)
    assert told == [(k, len(told) - 1) for k in range(len(told))]
    for scores_alone, scores_together in zip(alone, together):
        for name in NAMES:
            assert torch.equal(getattr(scores_alone, name), getattr(scores_together, name))


def test_an_encoder_with_attention_receives_a_segment_and_a_second():
    encoder = Counting()
    references = bursts(5.0)
    tight = small(encoder, segment=1.5, memory=2**24)(impaired(references), references, frames=20)
    longest = max(length for _, length in encoder.shapes)
    assert 2.9 * RATE < longest <= 3.5 * RATE + 400
    # The blocks of a segment are cut out of one and the same: memory changes no context.
    roomy = small(Counting(), segment=1.5)(impaired(references), references, frames=20)
    torch.testing.assert_close(roomy.ps, tight.ps, rtol=1e-4, atol=1e-5)


class Limited(Encoder):
    """Projections of frames, from an encoder that accepts clips of 3 s at most."""

    def __init__(self, seconds: float = 3.0) -> None:
        super().__init__(
            name="limited",
            sample_rate=RATE,
            hop=320,
            receptive_field=400,
            feature_size=8,
            maximum_samples=round(seconds * RATE),
        )
        generator = torch.Generator().manual_seed(0)
        self.register_buffer("weights", 0.05 * torch.randn(400, 8, generator=generator))

    def _encode(self, flat: Tensor) -> Tensor:
        return flat.unfold(-1, 400, 320) @ self.weights


def limited(**options: Any) -> MAPSS:
    bank = DistortionBank("separation", only=["tone"])
    options = {"segment": "auto", **options}
    return MAPSS(Limited(), measures="separation", separation_bank=bank, **options)


@pytest.mark.parametrize("frames", [148, 149, 150, 151, 200])
@pytest.mark.parametrize("segment", ["auto", 1.0])
def test_the_longest_segment_fits_the_encoder_with_its_context(frames, segment):
    """Of 50 frames a segment, where the middle ones have a second on each side."""
    references = bursts(frames * 320 / RATE + 0.015)
    scores = limited(segment=segment)(impaired(references), references, frames=30)
    assert scores.ps.shape[-1] == frames
    assert scores.active.any()


@pytest.mark.parametrize("segment", ["auto", None])
def test_excerpts_longer_than_an_encoder_accepts_are_split(segment):
    references = bursts(8.0)
    scorer = limited(segment=segment)
    bank = scorer.prepare(references, excerpts=[(16_000, 96_000)])
    done: list[tuple[int, int]] = []
    (scores,) = scorer.score_systems(
        [impaired(references)], bank, on_segment=lambda *progress: done.append(progress)
    )
    inside = (scores.times > 1.1) & (scores.times < 5.9)
    complete = limited()(impaired(references), references)
    assert torch.equal(scores.active[..., inside], complete.active[..., inside])
    assert done[-1] == (6, 6)


def test_error_for_long_clips_names_a_remedy_that_works():
    references = bursts(4.0)
    with pytest.raises(ValueError, match=r"accepts at most 3 s.*segment=\"auto\"") as refusal:
        limited(segment=None)(references, references)
    with pytest.raises(ValueError, match="accepts at most 3 s") as refusal_of_encoder:
        Limited()(references)
    assert str(refusal.value).split("has")[1] == str(refusal_of_encoder.value).split("has")[1]
    assert limited()(impaired(references), references).active.any()


def test_encoders_that_are_too_short_for_segments_score_whole_clips():
    references = bursts(1.5)
    whole = MAPSS(Limited(2.0), measures="separation", segment="auto")
    assert whole.config.segment == float("inf")
    with pytest.raises(ValueError, match=r"segment must be None .*at most 2 s"):
        MAPSS(Limited(2.0), measures="separation", segment=1.0)
    with torch.no_grad():
        assert whole(impaired(references), references, frames=3).active.any()


@pytest.mark.parametrize("scale", [1.0, 1e18])
def test_embeddings_of_any_scale_are_scored_in_segments_as_whole(scale):
    class Scaled(Counting):
        local = True

        def __call__(self, waves: Tensor) -> Tensor:
            return scale * waves.unfold(-1, 400, 320)[..., ::16]

    references = bursts(2.4)
    estimates = impaired(references)
    scores = [
        small(Scaled(), decomposition_encoder=Scaled(), segment=segment)(estimates, references)
        for segment in (None, 1.0)
    ]
    assert scores[0].active.any()
    assert torch.equal(scores[0].active, scores[1].active)
    torch.testing.assert_close(scores[0].clearance, scores[1].clearance, rtol=1e-4, atol=1e-5)


def test_frames_with_bad_embeddings_are_left_out_alone():
    references = bursts(2.4)
    references[0, 30000:30100] = 3.0  # after normalisation still far above the rest
    fine = small(Counting(), segment=1.0)(impaired(references), references)
    bad = small(Counting(spoil=0.6), segment=1.0)(impaired(references), references)
    lost = (fine.active & ~bad.active)[0].any(0).nonzero().flatten().tolist()
    assert lost
    assert all(30000 - 400 < 320 * frame < 30100 for frame in lost)
    assert not bad.ps[~bad.active].any()
    kept = bad.active
    torch.testing.assert_close(bad.ps[kept], fine.ps[kept])


def test_a_deferred_bank_is_moved_joined_saved_and_loaded(tmp_path):
    mapss = small(segment=1.0)
    references = torch.stack([bursts(2.2, seed=s) for s in range(2)])
    estimates = impaired(references)
    banks = [mapss.prepare(x) for x in references]
    joined = ReferenceBank.join(banks)
    assert [group.items for group in joined.groups] == [(0,), (1,)]
    expected = mapss(estimates, references, frames=12)
    joined.to("cpu").save(tmp_path / "bank.pt")
    reloaded = ReferenceBank.load(tmp_path / "bank.pt")
    scores_joined, scores_reloaded = (
        mapss(estimates, bank, frames=12) for bank in (joined, reloaded)
    )
    for name in NAMES:
        torch.testing.assert_close(getattr(scores_joined, name), getattr(expected, name))
        assert torch.equal(getattr(scores_joined, name), getattr(scores_reloaded, name))
    with pytest.raises(ValueError, match="other settings"):
        small(segment=1.5)(estimates, joined)
    bleeding = [mapss.prepare(x, measures="bleed") for x in references]  # which encodes nothing
    alone = ReferenceBank.join(bleeding)
    assert [group.items for group in alone.groups] == [(0,), (1,)]
    bleed = mapss(estimates, alone, measures="bleed").bleed_db
    torch.testing.assert_close(bleed, expected.bleed_db, equal_nan=True)
    for bank in (banks[0], bleeding[0]):
        with pytest.raises(ValueError, match="segment=None"):
            bank.recombined([[0, 0]])


def test_segments_are_refused_where_impossible(monkeypatch):
    references = bursts(3.0)
    mapss = small(segment=1.5)
    with monkeypatch.context() as patch:  # before anything is prepared
        patch.setattr(DistortionBank, "measure", None)
        with pytest.raises(ValueError, match="no gradient"):
            mapss(impaired(references).requires_grad_(), references)
    with torch.no_grad():
        assert mapss(impaired(references).requires_grad_(), references).active.any()
    short = impaired(references[:, :20000]).requires_grad_()
    mapss(short, references[:, :20000]).ps.sum().backward()  # a clip within one segment
    assert short.grad.abs().sum() > 0
    for wrong, error in (("long", TypeError), (0, ValueError), (0.2, ValueError), (-3, ValueError)):
        with pytest.raises(error, match="segment"):
            small(segment=wrong)
    limited = MelEncoder()
    limited.maximum_samples = 10 * RATE
    with pytest.raises(ValueError, match="at most 8 s"):
        small(limited, segment=20.0)


@pytest.mark.parametrize("level", [1.0, 1e-5, 30.0])
@pytest.mark.parametrize("samples", [16000 * 3, 16000 * 3 + 517, 5000, 1600, 90])
def test_loudness_in_pieces_equals_the_whole(samples, level):
    waves = level * bursts(samples / RATE, sources=3)[:, :samples]
    waves[1] = 0
    waves[2, samples // 3] = 20 * level  # a peak that limits
    expected = at_loudness(waves, RATE, -23.0)
    gain = metered(waves, RATE, at_once=3 * 8000).gain(-23.0)
    torch.testing.assert_close(waves * gain.unsqueeze(-1), expected, rtol=2e-5, atol=1e-7)
    assert float(gain[1]) == 1


def test_the_meter_takes_rows_in_any_order():
    waves = bursts(2.0, sources=4)
    meter = Meter((2, 2), waves.shape[-1], RATE, waves)
    for source in (1, 0):
        for block_begin in (16000, 0):
            lead = meter.lead if block_begin else 0
            rows = torch.tensor([source, source]), torch.tensor([0, 1])
            meter.add(
                rows,
                waves[2 * source : 2 * source + 2, block_begin - lead : block_begin + 16000],
                block_begin,
            )
    torch.testing.assert_close(meter.gain(-23.0).flatten(), metered(waves, RATE, 10**9).gain(-23.0))


def test_segments_are_even_and_cover_all_frames():
    for frames in (1, 7, 100, 3001):
        for longest in (1, 3, 50, 5000):
            spans = list(segments.segments(10, 10 + frames, longest))
            assert [f for a, b in spans for f in range(a, b)] == list(range(10, 10 + frames))
            sizes = [b - a for a, b in spans]
            assert max(sizes) <= longest
            assert max(sizes) - min(sizes) <= 1


# Long clips of real voices: what segments and memory change of their scores.
BANKS: dict[str, Any] = {
    f"{kind}_bank": DistortionBank(kind, size=20)  # type: ignore[arg-type]
    for kind in ("separation", "match")
}
DIMENSIONS = {"ps": "separation_dimension", "pm": "match_dimension", "log_pm": "match_dimension"}


def recording(seconds: float) -> tuple[Tensor, Tensor]:
    """Estimates and references (2, T): the two voices, taking turns in being whose, separated."""
    voices, rate = demo.voices()
    assert rate == 16000
    turns = [voices.flip(0) if k % 2 else voices.roll(997 * k, -1) for k in range(6)]
    references = torch.cat(turns, -1)[:, : round(seconds * rate)]
    return demo.separated(references, demo.GRADES[1]), references


def assert_nearly_alike(actual: Scores, expected: Scores, tolerance: float = 1e-3) -> None:
    """Nearly all frames keep as many dimensions and score alike, none far off; so do the means."""
    active = actual.active
    assert torch.equal(active, expected.active)
    assert active.double().mean() > 0.3
    for name, dimension in DIMENSIONS.items():
        same = getattr(actual, dimension) == getattr(expected, dimension)
        same = same.unsqueeze(1).expand_as(active)[active]
        a, b = (getattr(scores, name)[active].double() for scores in (actual, expected))
        scale = a.abs().clamp(min=1e-3) if name == "log_pm" else torch.ones_like(a)
        error = (a - b).abs() / scale
        digits = 1e-3 if name == "log_pm" else tolerance
        assert (same & (error <= digits)).double().mean() >= 0.99, name
        assert float(error[same].max()) <= 1e-2, name  # of a graph that magnifies rounding
        a, b = (getattr(scores.utterance(), name) for scores in (actual, expected))
        torch.testing.assert_close(a, b, rtol=1e-3 if name == "log_pm" else 0.0, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ["mel", "waveform"])
def test_full_banks_and_all_frames_of_real_voices(encoder):
    estimates, references = recording(7.0)
    in_one_piece = MAPSS(encoder)(estimates, references)
    assert_nearly_alike(in_one_piece, MAPSS(encoder, segment=1.5)(estimates, references))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mel", "wav2vec2"])
def test_memory_changes_no_score_of_a_long_clip(family, tmp_path, monkeypatch):
    encoder = family
    if family == "wav2vec2":  # wide, so that a block of frames is less than a segment
        encoder = str(tmp_path / "checkpoint")
        write_checkpoint(Path(encoder), family, large=True, hidden_size=768)
    # The least memory makes copies of five seconds of an encoder with a receptive field.
    segment = 7.5 if family == "mel" else 2.0
    estimates, references = recording(2 * segment)
    blocks, scores = [], []
    original = CopyPlan.embed

    def counted(*arguments: Any, **options: Any) -> Any:
        blocks.append(arguments)
        return original(*arguments, **options)

    monkeypatch.setattr(CopyPlan, "embed", counted)
    counts = []
    for memory in ("16MiB", "256MiB", "auto"):
        blocks.clear()
        mapss = MAPSS(encoder, segment=segment, memory=memory, **BANKS)
        scores.append(mapss(estimates, references))
        counts.append(len(blocks))
    assert counts[0] >= counts[1] >= counts[2] == 4
    assert counts[0] > 4
    for tight in scores[:2]:
        assert_nearly_alike(scores[2], tight, tolerance=1e-4)


@pytest.mark.slow
def test_a_transformer_receives_the_segment_and_describes_it(tmp_path):
    write_checkpoint(tmp_path / "checkpoint", "wav2vec2", large=True)
    estimates, references = recording(6.0)
    scorers = [
        MAPSS(str(tmp_path / "checkpoint"), segment=segment, **BANKS)
        for segment in (None, 3.0, 1.5)
    ]
    assert [scorer.describe()["segment"] for scorer in scorers] == [None, 3.0, 1.5]
    assert len({scorer.key for scorer in scorers}) == 3
    in_one_piece, *segmented = (scorer(estimates, references) for scorer in scorers)
    for scores in segmented:
        assert torch.equal(scores.active, in_one_piece.active)
        assert float((scores.ps - in_one_piece.ps).abs().max()) > 1e-3  # it is another score


@pytest.mark.slow
def test_clips_longer_than_whispers_positions_are_scored_in_segments(tmp_path):
    # Positions for 3.2 s: a segment of 1 s with a second on each side fits in.
    write_whisper(tmp_path, max_source_positions=160)
    estimates, references = recording(4.2)
    with pytest.raises(ValueError, match=r"accepts at most 3.2 s.*segment"):
        MAPSS(tmp_path, **BANKS)(estimates, references)
    with pytest.raises(ValueError, match=r"segment must be at most 1\.2 s"):
        MAPSS(tmp_path, **BANKS, segment=2.0)(estimates, references)
    with torch.no_grad():
        scores = MAPSS(tmp_path, **BANKS, segment=1.0)(estimates, references)
    assert scores.ps.shape == (1, 2, (67_200 - 400) // 320 + 1)
    assert scores.active.any(-1).all()
    assert 0.5 < float(scores.ps[scores.active].mean()) < 1.0


def test_excerpts_of_references_that_are_no_tensor_are_refused():
    with pytest.raises(TypeError, match="references must be"):
        MAPSS("mel").prepare([[0.0] * 8000] * 2, excerpts=[(0, 8000)])
