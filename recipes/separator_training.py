"""What ``train_separator.py`` runs: model, losses, curriculum, training, and the page."""

from __future__ import annotations

import argparse
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from speech_pool import RATE, Pool, Voices, fixed_references, load_voices, matched, split
from torch import Tensor, nn
from torchmetrics.functional.audio.pesq import perceptual_evaluation_speech_quality as pesq
from torchmetrics.functional.audio.stoi import short_time_objective_intelligibility as stoi
from tqdm import tqdm

import torch_mapss
from torch_mapss import MAPSS, DistortionBank, MAPSSLoss, audio
from torch_mapss.curriculum import FrameTrigger, Quantile, Trend

MEASURES = ("si_sdr", "si_sir", "si_sar", "stoi", "pesq", "clearance", "fidelity", "ps", "log_pm")
PACE = ("seconds", "preparing")
TEST_SEED = 1_000_003  # of held-out mixtures
COLUMNS = 3  # of plots in curves.png


class Block(nn.Module):
    """A dilated depthwise-separable convolution over time, residual."""

    def __init__(self, channels: int, hidden: int, dilation: int) -> None:
        super().__init__()
        depthwise = {"dilation": dilation, "padding": dilation, "groups": hidden}
        self.layers = nn.Sequential(
            *(nn.Conv1d(channels, hidden, 1), nn.PReLU(), nn.GroupNorm(1, hidden)),
            *(nn.Conv1d(hidden, hidden, 3, **depthwise), nn.PReLU(), nn.GroupNorm(1, hidden)),
            nn.Conv1d(hidden, channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


class Separator(nn.Module):
    """Two masks on the spectrogram of the mixture: (B, T) -> (B, 2, T), 0.4 million parameters."""

    def __init__(self, channels: int = 128, hidden: int = 256, blocks: int = 4) -> None:
        super().__init__()
        self.size, self.hop = 512, 256
        bins = self.size // 2 + 1
        self.register_buffer("window", torch.hann_window(self.size), persistent=False)
        self.enter = nn.Sequential(nn.GroupNorm(1, bins), nn.Conv1d(bins, channels, 1))
        self.body = nn.Sequential(*[Block(channels, hidden, 2**i) for i in range(blocks)])
        self.leave = nn.Conv1d(channels, 2 * bins, 1)

    def forward(self, mixture: Tensor) -> Tensor:
        stft = {"n_fft": self.size, "hop_length": self.hop, "window": self.window}
        spectrum = torch.stft(mixture, **stft, return_complex=True)
        features = (spectrum.abs() + 1e-4).log()
        masks = torch.sigmoid(self.leave(self.body(self.enter(features))))
        masked = masks.unflatten(1, (2, -1)) * spectrum.unsqueeze(1)
        waves = torch.istft(masked.flatten(0, 1), **stft, length=mixture.shape[-1])
        return waves.unflatten(0, (-1, 2))


def weights_of(name: str) -> dict[str, float]:
    """Weights of the terms beside -SI-SDR / 10 dB; "1:2" is clearance and twice fidelity."""
    if ":" in name:
        clearance, fidelity = map(float, name.split(":"))
        return {"clearance": clearance, "fidelity": fidelity}
    named = {"ps": {"separation": 1.0}, "ps+pm": {"separation": 1.0, "match": 0.1}}
    return named.get(name, {} if name == "si_sdr" else {name: 1.0})


def make_loss(name: str, options: argparse.Namespace) -> MAPSSLoss | None:
    """The loss of one arm, with -SI-SDR / 10 dB in it; None for SI-SDR alone."""
    if name == "si_sdr":
        return None
    kinds = ("separation", "match")
    banks = {f"{kind}_bank": DistortionBank(kind, size=options.bank_size) for kind in kinds}
    return MAPSSLoss(
        **{"separation": 0.0, "match": 0.0, **weights_of(name)},
        si_sdr=0.1,
        pit="si_sdr" if options.target is None else None,
        frames=options.frames,
        encoder=options.encoder,
        device=options.device,
        **banks,
    )


def prepares(loss: MAPSSLoss | None) -> bool:
    """Whether references are prepared ahead, which PS and PM need.

    Clearance and fidelity alone encode them anew at every step, on a grid of frames that the loss
    draws: that is cheap, and nothing can hide between the frames of one grid.
    """
    return loss is not None and not {"separation", "match"}.isdisjoint(loss.measures)


class HeldOut:
    """Fixed mixtures of utterances that are not trained on, and their prepared references."""

    def __init__(self, voices: Voices, options: argparse.Namespace) -> None:
        references = fixed_references(
            voices, options.test_mixtures, options.test_seconds, TEST_SEED, options.target
        )
        self.references = references.to(options.device)
        self.mixtures = self.references.sum(1)
        self.frames, self.target = options.test_frames, options.target
        measures = ("decomposition", "separation", "match")
        self.mapss = MAPSS(options.encoder, measures=measures, device=options.device)
        self.bank = self.mapss.prepare(self.references)

    @torch.no_grad()
    def results(self, separate: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """Means over all sources of all mixtures; NaN for what needs a package that is missing."""
        estimates = matched(separate(self.mixtures), self.references, self.target)
        scores = self.mapss(estimates, self.bank, frames=self.frames).utterance()
        waves = estimates.cpu(), self.references.cpu()
        values = scores._asdict() | {"si_sdr": audio.si_sdr(estimates, self.references)}
        values["stoi"] = if_installed(lambda: stoi(*waves, RATE))
        values["pesq"] = if_installed(lambda: pesq(*waves, RATE, "wb"))
        values["si_sir"] = if_installed(lambda: bss_eval(*waves)[1])
        values["si_sar"] = if_installed(lambda: bss_eval(*waves)[2])
        return {name: float(values[name].double().nanmean()) for name in MEASURES}


def bss_eval(estimates: Tensor, references: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """SI-SDR, interference and artefacts in dB; a mixture has no artefact: at most 60."""
    from fast_bss_eval import si_bss_eval_sources

    return si_bss_eval_sources(references, estimates, compute_permutation=False, clamp_db=60.0)


def if_installed(measure: Callable[[], Tensor]) -> Tensor:
    """A measure, or NaN where its package is not installed."""
    try:
        return measure()
    except ImportError:
        return torch.tensor(torch.nan)


class Curriculum:
    """Levels of the second source: fixed, or rising by 3 dB when the trigger fires.

    It fires when PS is above 0.6 in three frames of four, or has stopped rising, in two checks in a
    row, so that a single batch does not suffice.
    """

    def __init__(self, rising: bool) -> None:
        self.lowest, self.highest = (-18.0, -12.0) if rising else (-6.0, 0.0)
        better, flat = Quantile("ps", 0.25, above=0.6), Trend("ps", span=4, below=0.003)
        steadily = {"patience": 2, "hysteresis": 0.002, "smoothing": 0.5}
        self.trigger = FrameTrigger(better, flat, require="any", **steadily) if rising else None

    def check(self, scores: Any) -> str | None:
        """Raise the level if frame scores allow it; returns the reason, or None."""
        event = self.trigger.update(scores) if self.trigger is not None else None
        if event is None or self.highest >= 0.0:
            return None
        self.lowest, self.highest = self.lowest + 3.0, min(self.highest + 3.0, 0.0)
        return str(event)


# ------------------------------------------------------------------------- training


def train(
    name: str, seed: int, voices: Voices, held_out: HeldOut, options: argparse.Namespace
) -> tuple[Separator, list[dict[str, Any]]]:
    """Train with one loss and one seed; returns the model and the rows of the log."""
    torch.manual_seed(seed)
    model, loss, rows = Separator().to(options.device), make_loss(name, options), []
    optimizer = torch.optim.Adam(model.parameters(), options.rate)
    curriculum = Curriculum(options.curriculum)
    judge = MAPSS(options.encoder, measures="separation", device=options.device)
    seconds = preparing = 0.0
    step_start = time.perf_counter()
    pool = Pool(voices, options, seed, loss.prepare if prepares(loss) else None)
    bar = tqdm(range(1, options.steps + 1), desc=f"{name}, seed {seed}", mininterval=5.0)
    for step in bar:
        references, bank = pool.draw(curriculum.lowest, curriculum.highest)
        preparing += time.perf_counter() - step_start
        estimates = model(references.sum(1))
        if loss is None:
            estimates = matched(estimates, references, options.target)
            value = -audio.si_sdr(estimates, references).mean() / 10.0
        else:
            value = loss(estimates, references if bank is None else bank)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad()
        row = {"loss": name, "seed": seed, "step": step, "train_loss": float(value.detach())}
        row["interferer_level"] = curriculum.highest
        seconds += time.perf_counter() - step_start
        if curriculum.trigger is not None and step % options.check_every == 0:
            estimates = matched(estimates.detach(), references, options.target)
            reason = curriculum.check(judge(estimates, references, frames=options.frames))
            if reason is not None:
                bar.write(f"interferer up to {curriculum.highest:g} dB: {reason}")
        if step % options.test_every == 0 or step == options.steps:
            row |= held_out.results(model.eval())
            row |= {"seconds": seconds / step, "preparing": preparing / step}
            model.train()
            bar.write(", ".join(f"{measure} {row[measure]:.3f}" for measure in MEASURES))
        rows.append(row)
        level = f"{curriculum.highest:g} dB"
        bar.set_postfix(loss=row["train_loss"], interferer=level, refresh=False)
        step_start = time.perf_counter()
    return model, rows


# ------------------------------------------------------------------------- page


def page(rows: Sequence[dict[str, Any]], command: str) -> str:
    """The page: command and versions, means over seeds, differences within each seed."""
    tests = pd.DataFrame([row for row in rows if "stoi" in row])
    at_end = tests.groupby(["loss", "seed"], sort=False)[[*MEASURES, *PACE]].last()
    text = f"""    {command}

torch_mapss {torch_mapss.__version__}, commit {commit()}, torch {torch.__version__}.

Held out: mean over {at_end.index.get_level_values("seed").nunique()} seeds (least to greatest).
`seconds` is what a step takes, `preparing` what of it prepares references beforehand (PS and PM).

{table(at_end, "{:.3f}")}
"""
    arms = at_end.drop(["mixture", "si_sdr"], level="loss", errors="ignore")[list(MEASURES)]
    if "si_sdr" in at_end.index and len(arms):
        changes = arms.sub(at_end.loc["si_sdr", list(MEASURES)], level="seed")
        text += f"""
Difference from SI-SDR alone, seed by seed: they begin alike and see equal mixtures. **Bold**: all
seeds agree in sign.

{table(changes, "{:+.3f}")}
"""
    return text


def commit() -> str:
    """Commit of the checkout that this file is in; "unknown" outside of one."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def table(values: pd.DataFrame, form: str) -> str:
    """Mean, minimum and maximum over the seeds of every loss."""

    def cell(seeds: pd.Series) -> str:
        if seeds.isna().all():
            return ""
        text = form.format(seeds.mean())
        if len(seeds) > 1:
            text += f" ({form.format(seeds.min())} to {form.format(seeds.max())})"
        agree = "+" in form and len(seeds) > 2 and (seeds.min() > 0.0 or seeds.max() < 0.0)
        return f"**{text}**" if agree else text

    cells = values.groupby("loss", sort=False).agg(cell).reset_index()
    lines = [list(cells), ["---"] * len(cells.columns), *cells.to_numpy().tolist()]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def plot_curves(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Held-out measures over steps: the mean of each loss as a line, its seeds as a band."""
    from matplotlib.figure import Figure

    tests = pd.DataFrame([row for row in rows if "stoi" in row])
    measures = [name for name in MEASURES if tests[name].notna().any()]  # pesq may be missing
    lines = -(-len(measures) // COLUMNS)
    figure = Figure(figsize=(3.2 * COLUMNS, 3.0 * lines), layout="constrained")
    axes = figure.subplots(lines, COLUMNS, sharex=True, squeeze=False).flat
    # `axes` is an iterator: measures come first, so that `zip` takes no axis too many.
    for measure, axis in zip(measures, axes):
        for name, runs in tests.groupby("loss", sort=False):
            over_seeds = runs.groupby("step")[measure].agg(["mean", "min", "max"])
            # The unprocessed mixture is a single point.
            (line,) = axis.plot(over_seeds["mean"], marker=".", label=name)
            band = {"color": line.get_color(), "alpha": 0.2}
            ends = over_seeds["min"].to_numpy(float), over_seeds["max"].to_numpy(float)
            axis.fill_between(over_seeds.index.to_numpy(float), *ends, **band)
        axis.set(title=measure + (" [dB]" if measure.startswith("si_") else ""))
        axis.tick_params(labelbottom=True)
        axis.set_xlabel("step")
    for axis in axes:  # those without a measure
        axis.remove()
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    figure.savefig(path, dpi=80)


def train_all(options: argparse.Namespace, command: str) -> str:
    """Train every loss with every seed; returns the page, which is written after each run."""
    voices = load_voices(options.speech)
    if options.target not in (None, *voices):
        raise SystemExit(f"--target must be one of the talkers {sorted(voices)}.")
    training_voices, test_voices = split(voices, options.validate)
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    held_out = HeldOut(test_voices, options)
    untouched = held_out.results(lambda mix: mix.unsqueeze(1).expand(-1, 2, -1))
    rows, text = [{"loss": "mixture", "seed": 0, "step": 0, **untouched}], ""
    for seed in options.seeds:
        for name in options.losses:
            model, steps = train(name, seed, training_voices, held_out, options)
            torch.save(model.state_dict(), folder / f"{name.replace(':', '-')}-{seed}.pt")
            rows += steps
            pd.DataFrame(rows).to_csv(folder / "log.csv", index=False)
            text = page(rows, command)
            (folder / "training.md").write_text(text, encoding="utf-8")
        plot_curves(rows, folder / "curves.png")
    return text
