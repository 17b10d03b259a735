"""What other measures say of the same outputs: the rivals of [tab:correlations].

    python recipes/experiments/rivals.py --manifest FOLDER/mapss.json --out runs/rivals

Used by `listeners.py`.

Every output of every system, against the references of its mixture; each measure at the rate it is
made for. Nothing is written anew here: SI-SDR, SDR, STOI, ESTOI and PESQ are torchmetrics', SIR and
SAR fast_bss_eval's, CI-SDR is ci_sdr's, DNSMOS speechmos' (which ships the weights), ViSQOL that of
visqol-python. All but ViSQOL come with `pip install "torch_mapss[recipes]"`. MCD is written here:
mel-cepstral distortion is plain signal processing, see `mcd`.

What fails on an item is told, left empty there and counted. What the paper has and what cannot be
run without fetching weights or unkept code is listed by `--list`.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import toolkit
import torch
from torch import Tensor

from torch_mapss.audio import resample

LIMIT_DB = 40.0  # energy ratios of a perfect output are infinite
MISSING = {
    "SpeechBERTscore": "needs the weights of a speech model, which are fetched from a hub",
    "Sheet-SSQA": "weights are fetched from a hub",
    "UTMOS": "weights are fetched from a hub; the PyPI packages carry none",
    "NISQA": "torchmetrics fetches its weights; the PyPI package carries none and pins torch 2.2",
    "SCOREQ": "weights are fetched at first use",
    "NORESQA": "weights are fetched; no kept package",
    "VQScore": "weights are fetched; no kept package",
}


# ------------------------------------------------------------------------------------------------
# The measures: (estimate (T,), references (S, T) with the target first, rate) -> number
# ------------------------------------------------------------------------------------------------


def si_sdr(estimate: Tensor, references: Tensor, rate: int) -> float:
    from torchmetrics.audio import ScaleInvariantSignalDistortionRatio

    return _limited(ScaleInvariantSignalDistortionRatio()(estimate, references[0]))


def sdr(estimate: Tensor, references: Tensor, rate: int) -> float:
    """BSS Eval's, a filter of 512 taps allowed."""
    from torchmetrics.audio import SignalDistortionRatio

    return _limited(SignalDistortionRatio()(estimate.double(), references[0].double()))


def sir(estimate: Tensor, references: Tensor, rate: int) -> float:
    return _limited(_bss_eval(estimate, references)[1])


def sar(estimate: Tensor, references: Tensor, rate: int) -> float:
    return _limited(_bss_eval(estimate, references)[2])


def _bss_eval(estimate: Tensor, references: Tensor) -> tuple[Tensor, ...]:
    """SDR, SIR, SAR of one estimate; it takes as many estimates as references."""
    import fast_bss_eval

    estimates = estimate.double().expand(len(references), -1)
    found = fast_bss_eval.bss_eval_sources(
        references.double(), estimates, compute_permutation=False
    )
    return tuple(values[0] for values in found)


def ci_sdr(estimate: Tensor, references: Tensor, rate: int) -> float:
    import ci_sdr as package

    found = package.pt.ci_sdr(
        references[:1].double(), estimate[None].double(), compute_permutation=False
    )
    return _limited(found)


def stoi(estimate: Tensor, references: Tensor, rate: int) -> float:
    from torchmetrics.audio import ShortTimeObjectiveIntelligibility

    return float(ShortTimeObjectiveIntelligibility(rate)(estimate, references[0]))


def estoi(estimate: Tensor, references: Tensor, rate: int) -> float:
    from torchmetrics.audio import ShortTimeObjectiveIntelligibility

    return float(ShortTimeObjectiveIntelligibility(rate, extended=True)(estimate, references[0]))


def pesq(estimate: Tensor, references: Tensor, rate: int) -> float:
    """Wide band; ``references`` may be the target (T,) alone."""
    from torchmetrics.audio import PerceptualEvaluationSpeechQuality

    target = references if references.ndim == 1 else references[0]
    return float(PerceptualEvaluationSpeechQuality(rate, "wb")(estimate, target))


def dnsmos(estimate: Tensor, references: Tensor, rate: int) -> float:
    """DNSMOS-OVRL, of the estimate alone."""
    from speechmos import dnsmos as package

    wave = (estimate / estimate.abs().max().clamp(min=1.0)).numpy()  # it refuses samples beyond 1
    return float(package.run(wave, rate)["ovrl_mos"])


def mcd(estimate: Tensor, references: Tensor, rate: int) -> float:
    """Mel-cepstral distortion in dB, frame by frame without warping; lower is better, so negated.

    13 cepstra (without the 0th) of 80 mel bands in 25 ms frames; 10/ln 10 sqrt(2 sum d^2).
    """
    from torchaudio.transforms import MelSpectrogram

    mel = MelSpectrogram(rate, n_fft=512, win_length=400, hop_length=160, n_mels=80)
    logs = (mel(torch.stack([estimate, references[0]])) + 1e-5).log()
    basis = torch.arange(1, 14)[:, None] * math.pi * (torch.arange(80) + 0.5) / 80
    cepstra = math.sqrt(2.0 / 80) * basis.cos() @ logs
    distance = (cepstra[0] - cepstra[1]).square().sum(0)
    return -float(10.0 / math.log(10.0) * (2.0 * distance).sqrt().mean())


def visqol(estimate: Tensor, references: Tensor, rate: int) -> float:
    """In audio mode, at 48 kHz."""
    found = _visqol().measure_from_arrays(references[0].numpy(), estimate.numpy(), rate)
    return float(found.moslqo)


@functools.cache
def _visqol() -> Any:
    from visqol import VisqolApi

    api = VisqolApi()
    api.create(mode="audio")
    return api


def _limited(value: Tensor) -> float:
    """A ratio in dB within ±LIMIT_DB; NaN stays NaN, which min and max would hide."""
    number = float(value)
    return number if math.isnan(number) else min(max(number, -LIMIT_DB), LIMIT_DB)


class Rival(NamedTuple):
    """One other measure."""

    label: str
    score: Callable[[Tensor, Tensor, int], float]
    package: str  # it comes from
    rate: int | None = None  # Hz it is made for; None: any


RIVALS = {
    "stoi": Rival("STOI", stoi, "pystoi", 10000),
    "estoi": Rival("eSTOI", estoi, "pystoi", 10000),
    "pesq": Rival("PESQ", pesq, "pesq", 16000),
    "si_sdr": Rival("SI-SDR", si_sdr, "torchmetrics"),
    "sdr": Rival("SDR", sdr, "torchmetrics"),
    "sir": Rival("SIR", sir, "fast_bss_eval"),
    "sar": Rival("SAR", sar, "fast_bss_eval"),
    "ci_sdr": Rival("CI-SDR", ci_sdr, "ci_sdr"),
    "mcd": Rival("-MCD", mcd, "torchaudio", 16000),
    "dnsmos": Rival("DNSMOS-OVRL", dnsmos, "speechmos", 16000),
    "visqol": Rival("ViSQOL", visqol, "visqol", 48000),
}


def available() -> dict[str, Rival]:
    """The rivals whose packages are installed."""
    return {
        name: rival
        for name, rival in RIVALS.items()
        if importlib.util.find_spec(rival.package) is not None
    }


def not_run() -> dict[str, str]:
    """The paper's measures that are not run here, with the reason."""
    absent = {
        rival.label: f"{rival.package} is not installed"
        for name, rival in RIVALS.items()
        if name not in available()
    }
    return {**absent, **MISSING}


def quietly(score: Callable[..., float], *arguments: Any) -> float:
    """The score, or NaN with a line on the error stream."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return score(*arguments)
    except Exception as error:  # each package raises what it likes
        print(f"{score.__name__}: {type(error).__name__}: {error}", file=sys.stderr)
        return math.nan


# ------------------------------------------------------------------------------------------------
# A manifest
# ------------------------------------------------------------------------------------------------


def run(options: argparse.Namespace, rate: int = 16000) -> toolkit.Rows:
    """Score every output by the rivals, against all references of its mixture.

    Args:
        options: ``manifest``, ``mixtures``, ``seconds``, ``out``, and ``rivals``: names of those
            to run; None for all that are installed.
        rate: Hz, of the energy ratios.
    """
    names = options.rivals or [*RIVALS]
    chosen = {name: rival for name, rival in available().items() if name in names}
    settings = {"manifest": str(options.manifest), "seconds": options.seconds, "rate": rate}
    settings["rivals"] = names
    rows = toolkit.Rows(options.out, ("mixture", "system", "source"), RIVALS, settings, "rivals")
    for mixture in toolkit.load_mixtures(options, rate, systems=True):
        for system, place, output in mixture.outputs():
            key = mixture.name, system, mixture.sources[place]
            if not rows.has(*key):
                rows.add(*key, **scored(chosen, output, mixture.references, place, rate))
    return rows


def scored(
    rivals: dict[str, Rival], output: Tensor, references: Tensor, place: int, rate: int
) -> dict[str, float]:
    """All rivals of one output (T,); references (S, T), of which ``place`` is its own."""
    order = [place, *(k for k in range(len(references)) if k != place)]
    length = min(len(output), references.shape[-1])
    signals = torch.cat([output[None, :length], references[order][:, :length]])
    found = {}
    for name, rival in rivals.items():
        own = rival.rate or rate
        at = resample(signals, rate, own)
        found[name] = quietly(rival.score, at[0], at[1:], own)
    return found


def add_option(parser: argparse.ArgumentParser) -> None:
    """Which rivals are run."""
    text = "default: all that are installed"
    parser.add_argument("--rivals", nargs="+", choices=RIVALS, metavar="NAME", help=text)


def main(arguments: Sequence[str] | None = None) -> toolkit.Rows | None:
    parser = toolkit.parser(__doc__, scoring=False)
    add_option(parser)
    parser.add_argument("--rate", type=int, default=16000, help="Hz, of energy ratios")
    parser.add_argument("--list", action="store_true", help="say what is run and what is not")
    options = parser.parse_args(arguments)
    if options.list:
        lines = [[rival.label, rival.package, "run"] for rival in available().values()]
        lines += [[label, "–", reason] for label, reason in not_run().items()]
        print(toolkit.markdown(["measure", "package", "here"], lines))
        return None
    rows = run(options, options.rate)
    for name, rival in available().items():
        print(f"{rival.label}: {len(rows.numbers(name))} of {len(rows)} outputs")
    return rows


if __name__ == "__main__":
    main()
