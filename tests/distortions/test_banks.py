"""Banks: their members, seeds, choices and extensions, and what they refuse."""

from __future__ import annotations

import functools
import math
import pickle

import pytest
import torch
from paper_banks import TONES
from torch import Tensor
from waveforms import RATE, noise64, red_bursts, rms

from torch_mapss.distortions import FAMILIES, Distortion, DistortionBank
from torch_mapss.distortions.additive import add_noise

COUNTS = {"notch": 5, "comb": 6, "tremolo": 4, "noise": 21, "tone": 4, "reverb": 4, "gate": 4}
COUNTS |= {"pitch": 4, "lowpass": 4, "highpass": 4, "echo": 4, "clipping": 3, "vibrato": 3}


PARAMETERS = {
    "separation": {
        "comb/15ms": {"delay": 0.015, "gain": 0.9},
        "tremolo/2Hz": {"rate": 2, "depth": 0.3 + 0.7 / 3},
        "noise/brown/-15dB": {"snr": -15, "exponent": 2},
        "echo/20ms": {"delay": 0.02, "gain": 0.7},
        "reverb/5ms": {"length": 0.005, "decay": math.log(1000) / 0.3},
        "reverb/20ms": {"length": 0.02, "decay": math.log(1000) / 1.1},
        "vibrato/7Hz": {"rate": 7, "depth": 0.003},
        **{f"tone/{f}Hz": {"amplitude": a} for f, a in TONES.items()},
        **{key: {} for key in ("pitch/+4st", "noise/white/0dB", "lowpass/6000Hz", "gate/0.005")},
    },
    "match": {
        "comb/12.5ms": {"delay": 0.0125, "gain": 0.9},
        "reverb/400ms": {"length": 0.4, "decay": 15, "gain": 0.9},
        **{f"tremolo/{rate}Hz": {"depth": 1} for rate in (1, 2, 4, 6)},
        **{key: {} for key in ("notch/peak20", "lowpass/q95", "clipping/0.3xA95")},
    },
}


def test_the_banks_have_the_papers_members() -> None:
    bank, match = DistortionBank("separation"), DistortionBank("match")
    assert bank.families == COUNTS
    assert match.families == COUNTS | {"notch": 20, "comb": 5, "echo": 3}
    assert tuple(bank.families) == FAMILIES
    for made, count in ((bank, 70), (match, 83)):
        assert len(made) == len(set(made.names(RATE))) == count
        settings = {m.name: dict(m.parameters) for m in made.members}
        for name, expected in PARAMETERS[made.kind].items():
            assert {key: settings[name][key] for key in expected} == pytest.approx(expected), name


def test_members_that_need_a_higher_rate_are_absent() -> None:
    bank = DistortionBank()
    lost = set(bank.names()) - set(bank.names(8000))
    assert lost == {"notch/8000Hz", "tone/4000Hz"}
    made = bank(red_bursts(1, 800).float(), 8000)
    assert made.names == bank.names(8000)
    assert made.waveforms.shape == (1, 68, 800)
    # 4000 and 6000 Hz both become 0.45 f_s = 3600 Hz, which is one member
    dropped = [name for name, present in zip(made.names, made.mask[0]) if not present]
    assert dropped == ["lowpass/6000Hz"]


@pytest.mark.parametrize("kind", ["separation", "match"])
@pytest.mark.parametrize(
    ("rate", "length", "dtype"),
    [
        *((rate, 80, torch.float32) for rate in (8000, 16000, 24000, 44100, 48000)),
        (16000, 1, torch.float32),
        (16000, 3200, torch.float64),
        (44100, 3200, torch.float32),
    ],
)
def test_any_rate_and_length_also_silent_gives_finite_copies(
    kind: str, rate: int, length: int, dtype: torch.dtype
) -> None:
    bank = DistortionBank(kind)
    waves = red_bursts(2, length).to(dtype)
    waves[1] = 0
    made = bank(waves, rate)
    assert made.waveforms.shape == (2, len(made.names), length)
    assert made.mask.shape == (2, len(made.names))
    assert made.waveforms.dtype == dtype
    assert made.waveforms.isfinite().all()
    tones = torch.tensor([name.startswith("tone") for name in made.names])
    quiet = ~tones if kind == "separation" else torch.ones_like(tones)
    assert made.waveforms[1, quiet].abs().max() == 0


def test_families_change_the_reference_and_keep_its_level_sane() -> None:
    waves = red_bursts(1, RATE)
    for kind in ("separation", "match"):
        made = DistortionBank(kind, without=("gate", "clipping"))(waves, RATE)
        change = rms(made.waveforms - waves[:, None]) / rms(waves)
        assert (change[made.mask] > 1e-4).all()
        assert (change < 12).all()  # -15 dB of noise is a factor of 5.6


def test_seeds_give_equal_numbers_whatever_the_global_generator_did() -> None:
    waves = red_bursts(2, 1600)
    bank = DistortionBank()
    torch.manual_seed(1)
    state = torch.get_rng_state()
    earlier = bank(waves, RATE).waveforms
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert torch.equal(DistortionBank()(waves, RATE).waveforms, earlier)
    variant = DistortionBank(seed=1)(waves, RATE).waveforms
    random = torch.tensor([m.random for m in bank.members])
    assert torch.equal(variant[:, ~random], earlier[:, ~random])
    assert ((variant - earlier).abs().amax(-1)[:, random] > 1e-4).all()


def test_noise_differs_between_sources_and_members() -> None:
    waves = noise64(1, 4000).expand(3, -1)
    added = DistortionBank(only=("noise",))(waves, RATE).waveforms - waves[:, None]
    flat = added.flatten(0, 1)
    correlation = torch.corrcoef(flat)
    # 4000 samples: white rows correlate by 0.016 rms; brown ones have few degrees of freedom
    assert (correlation - torch.eye(63)).abs().max() < 0.95
    whites = added[:, :7].flatten(0, 1)
    assert (torch.corrcoef(whites) - torch.eye(21, dtype=torch.float64)).abs().max() < 0.1
    # That of a longer clip begins with that of a shorter one, but for its level.
    short = DistortionBank(only=("noise",))(waves[:, :1500], RATE).waveforms - waves[:, None, :1500]
    ratio = (added[..., :1500] * short).sum(-1, keepdim=True) / short.square().sum(-1, keepdim=True)
    assert float((added[..., :1500] - ratio * short).abs().max()) < 1e-9
    assert (ratio - 1).abs().max() > 1e-3


@pytest.mark.parametrize("kind", ["separation", "match"])
def test_an_item_is_distorted_alone_as_in_a_batch(kind: str) -> None:
    waves = red_bursts(4, 1600).reshape(2, 2, 1600)
    waves[1] *= 7
    bank = DistortionBank(kind)
    with torch.autocast("cpu", dtype=torch.bfloat16):  # which changes nothing
        batch = bank(waves, RATE)
    alone = bank(waves[1], RATE)
    assert torch.equal(batch.mask[1], alone.mask)
    torch.testing.assert_close(batch.waveforms[1], alone.waveforms, rtol=1e-9, atol=1e-12)
    second = bank(waves[1, 1:], RATE, sources=(1,))
    torch.testing.assert_close(second.waveforms[0], alone.waveforms[1], rtol=1e-9, atol=1e-12)
    as_first = bank(waves[1, 1:], RATE)
    assert not torch.allclose(as_first.waveforms[0], alone.waveforms[1])


def test_a_members_copy_does_not_depend_on_the_rest_of_the_bank() -> None:
    waves = red_bursts(2, 1600)
    full = DistortionBank("match")(waves, RATE)
    small = DistortionBank("match").subset(17)(waves, RATE)
    places = [full.names.index(name) for name in small.names]
    joint = small.mask & full.mask[:, places]  # an equal cut-off may be masked only in the whole
    assert joint.sum() >= 30
    expected = full.waveforms[:, places][joint]
    torch.testing.assert_close(small.waveforms[joint], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["separation", "match"])
def test_float32_and_float64_agree(kind: str) -> None:
    waves = red_bursts(1, RATE // 2)
    # the vocoder restarts at thresholds and the gate opens at one: rounding can move those
    bank = DistortionBank(kind, without=("pitch", "gate"))
    single, double = (bank(w, RATE) for w in (waves.float(), waves))
    assert torch.equal(single.mask, double.mask)
    assert (rms(single.waveforms - double.waveforms) / rms(waves)).max() < 1e-4


def test_chunks_equal_the_full_bank() -> None:
    waves = red_bursts(2, 1600).requires_grad_()
    before = waves.detach().clone()
    bank = DistortionBank("match")
    made = bank(waves, RATE)
    covered: list[int] = []
    for piece, copies, mask in bank.chunks(waves, RATE, chunk=20):
        assert copies.shape[1] <= 20
        torch.testing.assert_close(copies, made.waveforms[:, piece], rtol=1e-9, atol=1e-12)
        assert torch.equal(mask, made.mask[:, piece])
        covered += range(piece.start, piece.stop)
        assert torch.is_grad_enabled()
        assert not copies.requires_grad
        copies.zero_()  # the references are not written to
    assert covered == list(range(83))
    assert torch.equal(waves, before)


def test_families_and_members_can_be_dropped_or_kept() -> None:
    bank = DistortionBank(without=("noise", "pitch/+4st"))
    assert "noise" not in bank.families
    assert bank.families["pitch"] == 3
    assert len(bank) == 48
    assert DistortionBank(only=("echo", "comb/5ms")).families == {"comb": 1, "echo": 4}
    assert DistortionBank(only="echo").families == {"echo": 4}
    assert len(DistortionBank(only=("echo",), without=("echo/5ms",))) == 3


def halve(waveform: Tensor, sample_rate: int, *, factor: float) -> Tensor:
    return factor * waveform


def test_own_distortions_are_appended_and_called_with_their_parameters() -> None:
    custom = Distortion("gain/half", "gain", halve, {"factor": 0.5})
    settings = {"snr": -20, "exponent": 0}
    loud = Distortion("noise/white/-20dB", "noise", add_noise, settings, random=True)
    bank = DistortionBank(extra=(custom, loud))
    assert bank.families["gain"] == 1
    assert bank.families["noise"] == 22
    waves = noise64(2, RATE)
    made = bank(waves, RATE)
    assert made.names[-2:] == ("gain/half", "noise/white/-20dB")
    assert torch.equal(made.waveforms[:, -2], 0.5 * waves)
    added = made.waveforms[:, -1] - waves
    assert float(added.square().mean() / waves.square().mean()) == pytest.approx(100, rel=0.02)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda wave, rate: wave.mul_(0.5), "in place"),
        (lambda wave, rate: wave[..., 1:], "shape"),
        (lambda wave, rate: wave / 0, "finite"),
        (lambda wave, rate: float(wave.sum()), "float"),
        (3, "callable"),
    ],
)
def test_own_distortions_are_checked(function: object, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        DistortionBank(extra=(Distortion("mine", "own", function),))(noise64(1, 100), RATE)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="non-empty"):
        Distortion("", "b", halve)


@pytest.mark.parametrize("kind", ["separation", "match"])
def test_subset_spreads_over_families(kind: str) -> None:
    bank = DistortionBank(kind)
    for size in (1, 5, 13, 30, 60, 70):
        small = bank.subset(size)
        assert len(small) == size
        assert small == DistortionBank(kind, size=size)
        assert list(small.names()) == [n for n in bank.names() if n in small.names()]
        if size >= 13:
            assert len(small.families) == 13
            full = bank.families
            open_counts = [c for f, c in small.families.items() if c < full[f]]
            assert not open_counts or max(open_counts) - min(open_counts) <= 1
    assert "noise/pink/0dB" in DistortionBank(size=13).names()  # the middle, the strongest peaks
    assert {"notch/peak01", "notch/peak02"} <= set(DistortionBank("match", size=26).names())


def test_banks_compare_hash_print_and_pickle_by_their_settings() -> None:
    bank, same = (DistortionBank("match", without=("noise",), seed=3) for _ in range(2))
    copy = pickle.loads(pickle.dumps(bank))
    assert bank == same == copy
    assert {bank: 1}[copy] == {bank: 1}[same] == 1
    variants = [{"kind": "separation", "without": ("noise",)}, {"seed": 3}, {"without": ("noise",)}]
    assert all(bank != DistortionBank(**{"kind": "match", **variant}) for variant in variants)
    waves = red_bursts(1, 800)
    assert torch.equal(copy(waves, RATE).waveforms, bank(waves, RATE).waveforms)
    assert repr(bank) == "DistortionBank('match', size=62, seed=3)"


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"without": ("nosie",)}, ValueError, r"'nosie'.*bank of PS .*Families: notch, comb"),
        ({"only": ("hum",)}, ValueError, "only names"),
        ({"kind": "ps"}, ValueError, "'separation', 'match'"),
        ({"size": 71}, ValueError, r"between 1 and 70 for the bank of PS \('separation'\)"),
        ({"kind": "match", "size": 0}, ValueError, r"bank of PM \('match'\)"),
        ({"without": FAMILIES}, ValueError, "no members left"),
        ({"extra": (Distortion("echo/5ms", "echo", halve),)}, ValueError, "unique"),
        ({"extra": (halve,)}, TypeError, "Distortion"),
        ({"seed": 0.5}, TypeError, "seed"),
    ],
)
def test_errors_name_a_remedy(options: dict, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        DistortionBank(**options)


@pytest.mark.parametrize(
    ("wave", "rate", "options", "error", "words"),
    [
        (noise64(2, 100).half(), RATE, {}, TypeError, "float32 or float64"),
        ([[0.0]], RATE, {}, TypeError, "float32 or float64"),
        (torch.zeros(100), RATE, {}, ValueError, "shape"),
        (torch.zeros(0, 100), RATE, {}, ValueError, "shape"),
        (torch.zeros(2, 0), RATE, {}, ValueError, "shape"),
        (torch.full((1, 10), torch.nan), RATE, {}, ValueError, "finite"),
        (noise64(1, 100), 16, {}, ValueError, "at least 4000, got 16"),
        (noise64(1, 100), 16000.5, {}, TypeError, "sample_rate"),
        (noise64(2, 100), RATE, {"sources": (0,)}, ValueError, "one index per reference"),
        (noise64(2, 100), RATE, {"chunk": 0}, ValueError, "chunk"),
    ],
)
def test_bad_references_are_refused(
    wave: Tensor, rate: int, options: dict, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        next(DistortionBank().chunks(wave, rate, **options))


def test_members_are_described_by_content() -> None:
    def member(**parameters: object) -> Distortion:
        return Distortion("a", "a", halve, parameters)

    ones = torch.ones(5)
    assert member(x=ones) == member(x=torch.ones(5))
    assert hash(member(x=ones)) == hash(member(x=torch.ones(5)))
    variants = [
        ones.bfloat16(),
        ones.double(),
        2 * ones,
        ones.numpy(),
        torch.ones(1, 5),
        [1.0],
        1.0,
    ]
    texts = {member(x=x).description for x in [*variants, {"y": ones}, functools.partial(halve, 1)]}
    assert len(texts) == len(variants) + 2
    assert all(member(x=ones) != member(x=x) for x in variants)
