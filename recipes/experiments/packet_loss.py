"""PS and PM against PESQ where packets are lost [tab:pm_ps_vs_pesq_compact, packet loss].

    python recipes/experiments/packet_loss.py --manifest FOLDER/manifest.json --out runs/loss

The estimate is the first reference of a mixture with a share of its 20 ms frames deleted at random,
0 to 20 %, what is left coded by a real codec (`--codec opus`, `mp3` or `none`, through libsndfile)
and stretched back to the original length by resampling, as the paper describes it: no leakage, no
other distortion. PESQ is that of torchmetrics, wide band, at 16 kHz.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from pathlib import Path

import rivals
import toolkit
import torch
from torch import Tensor

from torch_mapss.audio import resample

FRAME = 0.020  # seconds
CODECS = {"opus": ("OGG", "OPUS"), "mp3": ("MP3", "MPEG_LAYER_III")}
SHOWN = ("ps", "pm", "log_pm", "log_foreign_distance", "pesq")


def drop(wave: Tensor, rate: int, share: float, seed: int = 0) -> Tensor:
    """(T',) what is left of (T,) after deleting ``share`` of its whole 20 ms frames.

    Which frames go is nested: those lost at 5 % are lost at 10 % as well, so that the rows of the
    table differ by how much is lost and by nothing else.
    """
    size = round(FRAME * rate)
    count = len(wave) // size
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    lost = torch.zeros(count, dtype=torch.bool)
    lost[order[: round(share * count)]] = True
    kept = wave[: count * size].reshape(count, size)[~lost].flatten()
    return torch.cat([kept, wave[count * size :]])


def coded(wave: Tensor, rate: int, codec: str) -> Tensor:
    """(T,) through the encoder and decoder of ``codec``, at the same rate and length."""
    if codec == "none":
        return wave
    import soundfile

    form, subtype = CODECS[codec]
    buffer = io.BytesIO()
    buffer.name = f"x.{form.lower()}"
    soundfile.write(buffer, wave.numpy(), rate, format=form, subtype=subtype)
    buffer.seek(0)
    decoded, back = soundfile.read(buffer, dtype="float32")
    found = resample(torch.from_numpy(decoded), back, rate)
    missing = len(wave) - len(found)
    return torch.nn.functional.pad(found, (0, missing)) if missing > 0 else found[: len(wave)]


def stretched(wave: Tensor, length: int) -> Tensor:
    """(length,) the same sound, slower: resampled from its own length to that one."""
    from scipy.signal import resample as fourier

    if len(wave) == length:
        return wave
    return torch.from_numpy(fourier(wave.double().numpy(), length)).to(wave)


def damaged(wave: Tensor, rate: int, share: float, codec: str) -> Tensor:
    """(T,) with losses; nothing is done where none are asked for."""
    if share == 0.0:
        return wave
    return stretched(coded(drop(wave, rate, share), rate, codec), len(wave))


def run(options: argparse.Namespace) -> toolkit.Rows:
    """Score every mixture at every loss."""
    keys = ("encoder", "scenario", "mixture", "loss")
    settings = toolkit.settings_of(options, "encoders", "mixtures")
    rows = toolkit.Rows(options.out, keys, (*toolkit.MEASURES, "frames", "pesq"), settings)
    shares = [0.2 * step / max(options.steps - 1, 1) for step in range(options.steps)]
    for encoder in options.encoders:
        mapss = toolkit.scorer(options, encoder)
        rate = mapss.sample_rate
        found = toolkit.load_mixtures(
            options.manifest, rate, seconds=options.seconds, limit=options.mixtures
        )
        for mixture in toolkit.progress(list(found), f"{encoder}, mixtures"):
            name = (encoder, mixture.scenario, mixture.name)
            wanted = [share for share in shares if not rows.has(*name, share)]
            if not wanted:
                continue
            bank = mapss.prepare(mixture.references[None])
            for share in wanted:
                target = mixture.references[0]
                estimate = damaged(target, rate, share, options.codec)
                scores = toolkit.target_scores(mapss, bank, estimate, every=options.every)
                pesq = rivals.quietly(rivals.pesq, estimate, target, rate)
                rows.add(**dict(zip(keys, (*name, share))), **scores, pesq=pesq)
    return rows


def table(rows: toolkit.Rows, encoder: str) -> tuple[list[str], list[list[str]]]:
    """One line per scenario and measure, one column per loss, as the paper prints it."""
    shares = sorted({float(share) for share in rows.distinct("loss")})
    lines = []
    for scenario in rows.distinct("scenario"):
        for measure in SHOWN:
            cells = [
                toolkit.number(rows.mean(measure, scenario=scenario, encoder=encoder, loss=share))
                for share in shares
            ]
            lines.append([scenario, toolkit.LABELS.get(measure, measure.upper()), *cells])
    return ["scenario", "measure", *(f"{100 * share:.1f} %" for share in shares)], lines


def draw(rows: toolkit.Rows, encoder: str, path: Path) -> None:
    """PS and PM on the left axis, PESQ on the right, over the loss."""
    shares = sorted({float(share) for share in rows.distinct("loss")})
    figure = toolkit.new_figure(6.4, 3.4)
    axis = figure.subplots()
    other = axis.twinx()
    styles = (("ps", axis, "#0b4f79"), ("pm", axis, "#e8871e"), ("pesq", other, "#555555"))
    for measure, where, colour in styles:
        values = [rows.mean(measure, encoder=encoder, loss=share) for share in shares]
        where.plot([100 * s for s in shares], values, "o-", color=colour, label=measure.upper())
    axis.set(xlabel="frames lost (%)", ylabel="PS, PM", ylim=(-0.02, 1.02))
    other.set(ylabel="PESQ", ylim=(1.0, 4.7))
    figure.legend(loc="outside upper center", ncols=3)
    axis.grid(alpha=0.3)
    toolkit.save_figure(figure, path)


def main(arguments: Sequence[str] | None = None) -> toolkit.Rows:
    parser = toolkit.parser(__doc__)
    parser.add_argument("--steps", type=int, default=10, help="losses from 0 to 20 %%")
    parser.add_argument("--codec", choices=("opus", "mp3", "none"), default="opus")
    toolkit.add_scoring(parser)
    options = parser.parse_args(arguments)
    rows = run(options)
    mixtures = len(rows.distinct("mixture"))
    text = [
        "# Packet loss",
        "",
        f"First source of {mixtures} mixtures of {options.manifest.parent.name}, 20 ms frames "
        f"deleted, codec {options.codec}, stretched back; `{options.convention}` convention, "
        + ("every frame." if options.every <= 1 else f"one frame in {options.every}."),
    ]
    for encoder in options.encoders:
        text += ["", f"## `{encoder}`", "", toolkit.markdown(*table(rows, encoder))]
    toolkit.write_page(options.out / "packet_loss.md", "\n".join(text))
    tex = toolkit.latex(*table(rows, options.encoders[0]))
    toolkit.write_page(options.out / "packet_loss.tex", tex)
    draw(rows, options.encoders[0], options.out / "packet_loss.png")
    print("\n".join(text))
    return rows


if __name__ == "__main__":
    main()
