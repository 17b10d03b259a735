"""Scores of one output over time with several encoders, below spectrograms
[fig:spectro_wav_female].

    python recipes/experiments/overlays.py --encoders mel waveform wav2vec2-large \\
        --manifest FOLDER/mapss.json --mixtures 1 --out runs/overlay

At the top, the spectrograms of the reference and of the output; below, on the same time axis,
clearance, fidelity, PS and PM with every encoder. Frames that are not scored stay blank. The output
is the first of the first mixture, or the first of ``--system``; where a mixture lists no output,
half of the other sources leaks into the first one.
"""

from __future__ import annotations

from collections.abc import Sequence

import signals
import toolkit
import torch
from torch import Tensor

SHOWN = ("clearance", "fidelity", "ps", "pm")


@torch.no_grad()
def curves(
    options: object, encoder: str, mixture: toolkit.Mixture, output: Tensor, source: int
) -> dict[str, Tensor]:
    """Times and scores (F,) of every frame, by name; NaN where a score is undefined."""
    mapss = toolkit.scorer(options, encoder)
    scores = mapss(output[None, None], mixture.references[None], attributed=(source,))
    by_name = {"times": scores.times}
    for name in SHOWN:
        values, defined = getattr(scores, name), scores.defined(name)
        by_name[name] = torch.where(defined, values, torch.nan)[0, 0]
    return by_name


def spectrogram(wave: Tensor) -> Tensor:
    """dB relative to the loudest bin (frequencies, frames), in windows of 512 samples."""
    magnitude = torch.stft(wave, 512, 128, window=torch.hann_window(512), return_complex=True).abs()
    return 20 * (magnitude / magnitude.max().clamp(min=1e-10)).clamp(min=1e-4).log10()


def main(arguments: Sequence[str] | None = None) -> dict[str, dict[str, Tensor]]:
    parser = toolkit.parser(__doc__, without=("--sample-frames",))
    parser.add_argument("--system", help="whose output is shown (default: the first)")
    options = parser.parse_args(arguments)
    curves_by_encoder = {}
    for encoder in options.encoders:
        rate = toolkit.load(encoder).sample_rate
        mixture = next(toolkit.load_mixtures(options, rate, systems=True))
        leaking = signals.leakage(mixture.references, rate, 0.5)
        system, source, output = "half of the others", 0, leaking
        for listed in mixture.outputs():
            if options.system in (None, listed[0]):
                system, source, output = listed
                break
        curves_by_encoder[encoder] = curves(options, encoder, mixture, output, source)
    figure = toolkit.new_figure(7.0, 10.0)
    axes = figure.subplots(2 + len(SHOWN), 1, sharex=True)
    shown = {"reference": mixture.references[source], system: output}
    for axis, (title, wave) in zip(axes, shown.items()):
        box = (0.0, len(wave) / rate, 0.0, rate / 2000)
        axis.imshow(spectrogram(wave), origin="lower", aspect="auto", extent=box, cmap="magma")
        axis.set(title=f"{mixture.sources[source]}, {title}", ylabel="kHz")
    for axis, name in zip(axes[2:], SHOWN):
        for encoder, curve in curves_by_encoder.items():
            axis.plot(curve["times"], curve[name], linewidth=1.1, label=encoder)
        axis.set(ylim=(-0.02, 1.02), ylabel=toolkit.LABELS[name])
        axis.grid(alpha=0.3)
    axes[2].legend(fontsize=7)
    axes[-1].set_xlabel("seconds")
    toolkit.save_figure(figure, options.out / "overlay.png")
    lines = []
    for encoder, curve in curves_by_encoder.items():
        means = [float(curve[name].nanmean()) for name in SHOWN]
        lines.append([encoder, *map(toolkit.number, means)])
    about = f"{mixture.name}, {system}: means over the frames."
    head = toolkit.page_head("Encoders over one clip", __file__, arguments, about)
    table = toolkit.markdown(["encoder", *(toolkit.LABELS[name] for name in SHOWN)], lines)
    toolkit.finish(options, "overlay", [*head, "", table])
    return curves_by_encoder


if __name__ == "__main__":
    main()
