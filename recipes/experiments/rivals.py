"""Other measures of the same outputs: the rivals of [tab:correlations].

    python recipes/experiments/rivals.py --manifest FOLDER/mapss.json --out runs/rivals

Used by `listeners.py`.

Every output of every system is scored against the references of its mixture, by each measure at the
sampling rate that it is made for. The measures are those of published packages: SI-SDR, SDR, STOI,
ESTOI and PESQ of torchmetrics, SIR and SAR of fast_bss_eval, CI-SDR of ci_sdr, DNSMOS of speechmos
(which ships the weights), ViSQOL of visqol-python. All but ViSQOL come with
`pip install "torch_mapss[recipes]"`. Only MCD is written here, see `mcd`.

Where a measure fails on an output, the error is printed and its cell stays empty; the last lines
count the outputs of every measure. `--list` shows which measures run, and why others of the paper
do not: they need a download of weights, or code that is no longer maintained.
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
    "NORESQA": "weights are fetched; no maintained package",
    "VQScore": "weights are fetched; no maintained package",
}


# ------------------------------------------------------------------------------------------------
# The measures: (estimate (T,), references (S, T) with the target first, rate) -> number
# ------------------------------------------------------------------------------------------------


def si_sdr(estimate: Tensor, references: Tensor, rate: int) -> float:
    from torchmetrics.audio import ScaleInvariantSignalDistortionRatio

    return _limited(ScaleInvariantSignalDistortionRatio()(estimate, references[0]))


def sdr(estimate: Tensor, references: Tensor, rate: int) -> float:
    """BSS Eval's: a filter of 512 taps is allowed."""
    from torchmetrics.audio import SignalDistortionRatio

    return _limited(SignalDistortionRatio()(estimate.double(), references[0].double()))


def sir(estimate: Tensor, references: Tensor, rate: int) -> float:
    return _limited(_bss_eval(estimate, references)[1])


def sar(estimate: Tensor, references: Tensor, rate: int) -> float:
    return _limited(_bss_eval(estimate, references)[2])


def _bss_eval(estimate: Tensor, references: Tensor) -> tuple[Tensor, ...]:
    """SDR, SIR, SAR of one estimate, which is repeated: BSS Eval takes one for each reference."""
    import fast_bss_eval

    estimates = estimate.double().expand(len(references), -1)
    ratios = fast_bss_eval.bss_eval_sources(
        references.double(), estimates, compute_permutation=False
    )
    return tuple(of_estimates[0] for of_estimates in ratios)


def ci_sdr(estimate: Tensor, references: Tensor, rate: int) -> float:
    import ci_sdr as package

    ratio = package.pt.ci_sdr(
        references[:1].double(), estimate[None].double(), compute_permutation=False
    )
    return _limited(ratio)


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

    wave = (estimate / estimate.abs().max().clamp(min=1.0)).numpy()  # samples beyond 1 are refused
    return float(package.run(wave, rate)["ovrl_mos"])


def mcd(estimate: Tensor, references: Tensor, rate: int) -> float:
    """Mel-cepstral distortion in dB, negated, as lower is better; frame by frame, without warping.

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
    result = _visqol().measure_from_arrays(references[0].numpy(), estimate.numpy(), rate)
    return float(result.moslqo)


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
    package: str  # that is imported for it
    rate: int | None = None  # Hz that it is made for; None: any


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
    except Exception as error:  # every package has its own errors
        print(f"{score.__name__}: {type(error).__name__}: {error}", file=sys.stderr)
        return math.nan


# ------------------------------------------------------------------------------------------------
# A manifest
# ------------------------------------------------------------------------------------------------


def run(options: argparse.Namespace, rate: int = 16000) -> toolkit.Rows:
    """Score every output by the rivals, against all references of its mixture.

    Args:
        options: with ``manifest``, ``mixtures``, ``seconds``, ``out``, and ``rivals``, the names of
            those to run, None for all that are installed.
        rate: Hz, at which measures without a rate of their own are computed.
    """
    names = options.rivals or [*RIVALS]
    chosen = {name: rival for name, rival in available().items() if name in names}
    settings = {"manifest": str(options.manifest), "seconds": options.seconds, "rate": rate}
    settings["rivals"] = names
    rows = toolkit.Rows(options.out, ("mixture", "system", "source"), RIVALS, settings, "rivals")
    for mixture in toolkit.load_mixtures(options, rate, systems=True):
        for system, source_index, output in mixture.outputs():
            key = mixture.name, system, mixture.sources[source_index]
            if not rows.has(*key):
                rows.add(*key, **scored(chosen, output, mixture.references, source_index, rate))
    return rows


def scored(
    rivals: dict[str, Rival], output: Tensor, references: Tensor, source_index: int, rate: int
) -> dict[str, float]:
    """Scores by all rivals of one output (T,) of a source; references are (S, T)."""
    interferers = [index for index in range(len(references)) if index != source_index]
    target_first = references[[source_index, *interferers]]
    length = min(len(output), references.shape[-1])
    signals = torch.cat([output[None, :length], target_first[:, :length]])
    scores = {}
    for name, rival in rivals.items():
        rival_rate = rival.rate or rate
        resampled = resample(signals, rate, rival_rate)
        scores[name] = quietly(rival.score, resampled[0], resampled[1:], rival_rate)
    return scores


def add_option(parser: argparse.ArgumentParser) -> None:
    """The option that chooses rivals."""
    text = "other measures to run (default: all that are installed)"
    parser.add_argument("--rivals", nargs="+", choices=RIVALS, metavar="NAME", help=text)


def main(arguments: Sequence[str] | None = None) -> toolkit.Rows | None:
    parser = toolkit.parser(__doc__, scoring=False)
    add_option(parser)
    parser.add_argument(
        "--rate", type=int, default=16000, help="Hz, of energy ratios (default: 16000)"
    )
    parser.add_argument("--list", action="store_true", help="show what is run and what is not")
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
