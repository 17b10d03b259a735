"""Train a small mask-based separator with perceptual terms in its loss, and see what they change.

    python recipes/train_separator.py --speech FOLDER --out runs/table            # all losses
    python recipes/train_separator.py --speech FOLDER --out runs/one --losses 1:2 --curriculum
    python recipes/train_separator.py --speech FOLDER --out runs/try --quick      # a minute

FOLDER holds speech in any format soundfile reads. Files in one subfolder, or with one name up to
the first "_", are one talker; ``--same en=es`` joins two names of one person. The last quarter of
each talker's files is held out; ``--validate`` tests on others, to choose steps and weights.
Any two talkers are mixed and trained with permutation invariance, which takes many talkers and
steps. ``--target it`` mixes one known talker with the others, the target always first: a task that
few minutes of speech suffice for.

Each source is distorted on its own and normalised, so every first source of a pool of prepared
pairs can be mixed with every second one, at any level, without preparing anything again
(``bank.recombined``). Training uses small banks (``--bank-size``), the test whole ones: small banks
are other measures. The curriculum's trigger looks at what it trains on.

Writes into ``--out``: ``log.csv``, ``training.md`` (held-out means over the seeds, and differences
from SI-SDR alone within each seed), ``curves.png`` and the weights.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor, nn
from tqdm import tqdm

import torch_mapss
from torch_mapss import MAPSS, DistortionBank, MAPSSLoss, ReferenceBank, audio
from torch_mapss.curriculum import FrameTrigger, Quantile, Trend

RATE = 16000
SUFFIXES = (".wav", ".flac", ".ogg", ".mp3", ".aiff")
LOSSES = ("si_sdr", "ps", "ps+pm", "clearance", "fidelity", "1:1", "1:2")
MEASURES = ("si_sdr", "si_sir", "si_sar", "stoi", "pesq", "clearance", "fidelity", "ps", "log_pm")
PACE = ("seconds", "preparing")
QUICK = {"steps": 20, "pool": 8, "test_mixtures": 4, "test_frames": 40, "test_every": 20}
Voices = dict[str, list[Tensor]]


# ------------------------------------------------------------------------- speech


def load_voices(folder: str, same: dict[str, str]) -> Voices:
    """Talker -> utterances (T,) at 16 kHz, mono."""
    root, voices = Path(folder), Voices()
    for path in sorted(p for p in root.rglob("*") if p.suffix.lower() in SUFFIXES):
        parts = path.relative_to(root).parts
        name = parts[0] if len(parts) > 1 else path.stem.split("_")[0]
        wave, rate = audio.load_audio(path)
        wave = audio.resample(audio.to_mono(wave), rate, RATE)
        voices.setdefault(same.get(name, name), []).append(wave)
    if len(voices) < 2:
        raise SystemExit(
            f"--speech must hold at least two talkers, found {sorted(voices)} in {folder}. Put "
            "each talker's files in a subfolder, or name them talker_1.wav, talker_2.wav, …"
        )
    return voices


def split(voices: Voices, validate: bool = False) -> tuple[Voices, Voices]:
    """To train on, and the last quarter of each talker's utterances (at least one).

    With ``validate`` those are put away, and the same is done with what is left.
    """
    train, held = {}, {}
    for name, waves in voices.items():
        out, rest = max(1, len(waves) // 4), waves
        for _ in range(1 + validate):
            rest, held[name] = rest[:-out], rest[-out:]
        train[name] = rest
    few = sorted(name for name, waves in train.items() if not waves)
    if few:
        raise SystemExit(
            f"at least {2 + validate} utterances a talker are needed; {few} have fewer."
        )
    return train, held


class Pair(NamedTuple):
    """Segments of two different talkers, the target first if there is one."""

    talkers: tuple[str, str]
    waves: Tensor  # (2, T)


def draw_pair(
    voices: Voices, samples: int, generator: torch.Generator, target: str | None = None
) -> Pair:
    """Two segments at RMS 0.05, each the loudest of three draws, so that it is no pause."""

    def integer(high: int) -> int:
        return int(torch.randint(max(high, 1), (1,), generator=generator))

    def segment(waves: Sequence[Tensor]) -> Tensor:
        draws = []
        for _ in range(3):
            wave = waves[integer(len(waves))]
            start = integer(len(wave) - samples)
            wave = nn.functional.pad(wave, (0, max(0, samples - len(wave))))
            draws.append(wave[start : start + samples])
        best = max(draws, key=lambda piece: float(piece.square().mean()))
        return 0.05 * best / best.square().mean().sqrt().clamp(min=1e-8)

    names = sorted(voices)
    first = target or names[integer(len(names))]
    names.remove(first)
    second = names[integer(len(names))]
    return Pair((first, second), torch.stack([segment(voices[first]), segment(voices[second])]))


def at_levels(pairs: Tensor, decibels: Tensor) -> Tensor:
    """(B, 2, T) with each pair's second source raised by its decibels (B,)."""
    gains = torch.stack([torch.zeros_like(decibels), decibels], -1)
    return pairs * 10.0 ** (gains.to(pairs) / 20.0).unsqueeze(-1)


class Pool:
    """Prepared pairs, some renewed now and then, whose sources are mixed at random.

    Equal seeds give equal mixtures, whatever is prepared of them.
    """

    def __init__(
        self,
        voices: Voices,
        options: argparse.Namespace,
        seed: int,
        prepare: Callable[[Tensor], ReferenceBank] | None,
    ) -> None:
        self.voices, self.options, self.prepare = voices, options, prepare
        self.generator = torch.Generator("cpu").manual_seed(seed)
        self.pairs: list[Pair] = []
        self.banks: list[ReferenceBank] = []
        self.steps = 0
        for place in range(options.pool):
            self._renew(place)

    def _renew(self, place: int) -> None:
        samples = round(self.options.seconds * RATE)
        pair = draw_pair(self.voices, samples, self.generator, self.options.target)
        pair = pair._replace(waves=pair.waves.to(self.options.device))
        self.pairs[place : place + 1] = [pair]
        if self.prepare is not None:
            self.banks[place : place + 1] = [self.prepare(pair.waves.unsqueeze(0))]

    def draw(self, lowest: float, highest: float) -> tuple[Tensor, ReferenceBank | None]:
        """References (B, 2, T), the second between two levels (dB) of the first, and their bank."""
        options, self.steps = self.options, self.steps + 1
        if options.refresh and self.steps % options.refresh == 0:
            first = self.steps // options.refresh * options.batch
            for place in range(first, first + options.batch):
                self._renew(place % len(self.pairs))
        index = [self._mixture() for _ in range(options.batch)]
        levels = lowest + (highest - lowest) * torch.rand(len(index), generator=self.generator)
        pairs = [torch.stack([self.pairs[i].waves[0], self.pairs[j].waves[1]]) for i, j in index]
        bank = ReferenceBank.join(self.banks).recombined(index) if self.banks else None
        return at_levels(torch.stack(pairs), levels), bank

    def _mixture(self) -> tuple[int, int]:
        """Places of a first and a second source, of two talkers."""
        while True:
            i, j = torch.randint(len(self.pairs), (2,), generator=self.generator).tolist()
            if self.pairs[i].talkers[0] != self.pairs[j].talkers[1]:
                return i, j


# ------------------------------------------------------------------------- separator


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


def matched(estimates: Tensor, references: Tensor, target: str | None) -> Tensor:
    """Estimates in the order of their references, which a target has from the start."""
    if target is not None:
        return estimates
    back = audio.match_sources(estimates, references).argsort(-1)
    return estimates[torch.arange(len(back), device=back.device).unsqueeze(-1), back]


def weights_of(name: str) -> dict[str, float]:
    """Weights beside -SI-SDR / 10 dB; "1:2" is clearance and twice fidelity."""
    if ":" in name:
        clearance, fidelity = map(float, name.split(":"))
        return {"clearance": clearance, "fidelity": fidelity}
    named = {"ps": {"separation": 1.0}, "ps+pm": {"separation": 1.0, "match": 0.1}}
    return named.get(name, {} if name == "si_sdr" else {name: 1.0})


def make_loss(name: str, options: argparse.Namespace) -> MAPSSLoss | None:
    """The perceptual loss of one arm, with -SI-SDR / 10 dB in it; None: SI-SDR alone."""
    if name == "si_sdr":
        return None
    weights = {"separation": 0.0, "match": 0.0} | weights_of(name)
    banks = {k: DistortionBank(k, size=options.bank_size) for k in ("separation", "match")}
    return MAPSSLoss(
        **weights,
        si_sdr=0.1,
        pit="si_sdr" if options.target is None else None,
        frames=options.frames,
        encoder=options.encoder,
        device=options.device,
        **{f"{kind}_bank": bank for kind, bank in banks.items()},
    )


# ------------------------------------------------------------------------- held-out results


class HeldOut:
    """Fixed mixtures of utterances that are not trained on, and their prepared references."""

    def __init__(self, voices: Voices, options: argparse.Namespace) -> None:
        generator = torch.Generator("cpu").manual_seed(1_000_003)
        samples, target = round(options.test_seconds * RATE), options.target
        count = range(options.test_mixtures)
        pairs = [draw_pair(voices, samples, generator, target).waves for _ in count]
        levels = torch.linspace(-6.0, 0.0, len(pairs))
        self.references = at_levels(torch.stack(pairs), levels).to(options.device)
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
        values = scores._asdict() | self._bss_eval(estimates)
        values["si_sdr"] = audio.si_sdr(estimates, self.references)
        values |= {name: self._each(name, estimates) for name in ("stoi", "pesq")}
        return {name: float(values[name].double().nanmean()) for name in MEASURES}

    def _bss_eval(self, estimates: Tensor) -> dict[str, Tensor]:
        """Interference and artefacts apart, in dB."""
        try:
            from fast_bss_eval import si_bss_eval_sources
        except ImportError:
            return dict.fromkeys(("si_sir", "si_sar"), torch.tensor(torch.nan))
        # A mixture has no artefact, and so an infinite SI-SAR.
        settings = {"compute_permutation": False, "clamp_db": 60.0}
        _, sir, sar = si_bss_eval_sources(self.references, estimates, **settings)
        return {"si_sir": sir, "si_sar": sar}

    def _each(self, name: str, estimates: Tensor) -> Tensor:
        """STOI or wide-band PESQ of every source."""
        try:
            package = __import__("pystoi" if name == "stoi" else "pesq")
        except ImportError:
            return torch.tensor(torch.nan)
        found = []
        for r, e in zip(self.references.flatten(0, 1).cpu(), estimates.flatten(0, 1).cpu()):
            if name == "stoi":
                found.append(package.stoi(r.numpy(), e.numpy(), RATE))
            else:
                found.append(package.pesq(RATE, r.numpy(), e.numpy(), "wb"))
        return torch.tensor(found)


# ------------------------------------------------------------------------- curriculum


class Curriculum:
    """Levels of the second source: fixed, or rising by 3 dB when the trigger fires.

    Up when three frames in four are closer to their own source, or nothing more is gained; twice
    in a row, so that one lucky batch is not enough.
    """

    def __init__(self, rising: bool) -> None:
        self.lowest, self.highest, self.top = (-18.0, -12.0, 0.0) if rising else (-6.0, 0.0, 0.0)
        better, flat = Quantile("ps", 0.25, above=0.6), Trend("ps", span=4, below=0.003)
        steadily = {"patience": 2, "hysteresis": 0.002, "smoothing": 0.5}
        self.trigger = FrameTrigger(better, flat, require="any", **steadily) if rising else None

    def check(self, scores: Any) -> str | None:
        """Judge frame scores; says why, if the level has gone up."""
        event = self.trigger.update(scores) if self.trigger is not None else None
        if event is None or self.highest >= self.top:
            return None
        self.lowest, self.highest = self.lowest + 3.0, min(self.highest + 3.0, self.top)
        return str(event)


# ------------------------------------------------------------------------- training


def train(
    name: str, seed: int, voices: Voices, held_out: HeldOut, options: argparse.Namespace
) -> tuple[Separator, list[dict[str, Any]]]:
    """One run: a loss, a seed, a fixed number of steps; the model and rows of the log."""
    torch.manual_seed(seed)
    model, loss, rows = Separator().to(options.device), make_loss(name, options), []
    optimizer = torch.optim.Adam(model.parameters(), options.rate)
    curriculum = Curriculum(options.curriculum)
    judge = MAPSS(options.encoder, measures="separation", device=options.device)
    seconds = preparing = 0.0
    start = time.perf_counter()
    pool = Pool(voices, options, seed, None if loss is None else loss.prepare)
    bar = tqdm(range(1, options.steps + 1), desc=f"{name}, seed {seed}", mininterval=5.0)
    for step in bar:
        references, bank = pool.draw(curriculum.lowest, curriculum.highest)
        preparing += time.perf_counter() - start
        estimates = model(references.sum(1))
        if loss is None:
            estimates = matched(estimates, references, options.target)
            value = -audio.si_sdr(estimates, references).mean() / 10.0
        else:
            value = loss(estimates, bank)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad()
        row = {"loss": name, "seed": seed, "step": step, "train_loss": float(value.detach())}
        row["interferer_level"] = curriculum.highest
        seconds += time.perf_counter() - start
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
        bar.set_postfix(
            loss=row["train_loss"], interferer=f"{curriculum.highest:g} dB", refresh=False
        )
        start = time.perf_counter()
    return model, rows


# ------------------------------------------------------------------------- page


def page(rows: Sequence[dict[str, Any]], command: str) -> str:
    """Markdown: where it comes from, means over seeds, differences within each seed."""
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    tests = pd.DataFrame([row for row in rows if "stoi" in row])
    last = tests.groupby(["loss", "seed"], sort=False)[[*MEASURES, *PACE]].last()
    text = f"""    {command}

torch_mapss {torch_mapss.__version__}, commit {commit or "unknown"}, torch {torch.__version__}.

Held out: mean over {last.index.get_level_values("seed").nunique()} seeds (least to greatest).
`seconds` is what a step takes, `preparing` what of it prepares references.

{_table(last.groupby("loss", sort=False).agg(_spread))}
"""
    if "si_sdr" not in last.index:
        return text
    arms = last.drop(["mixture", "si_sdr"], level="loss")[list(MEASURES)]
    changes = arms.sub(last.loc["si_sdr", list(MEASURES)], level="seed")
    if not len(changes):
        return text
    return f"""{text}
Difference from SI-SDR alone, seed by seed: they begin alike and see equal mixtures. **Bold**: all
seeds agree in sign.

{_table(changes.groupby("loss", sort=False).agg(_change))}
"""


def _spread(values: pd.Series, form: str = "{:.3f}") -> str:
    if values.isna().all():
        return ""
    text = form.format(values.mean())
    if len(values) > 1:
        text += f" ({form.format(values.min())} to {form.format(values.max())})"
    return text


def _change(values: pd.Series) -> str:
    text = _spread(values, "{:+.3f}")
    agree = len(values) > 2 and (values.min() > 0.0 or values.max() < 0.0)
    return f"**{text}**" if agree else text


def _table(cells: pd.DataFrame) -> str:
    lines = [["loss", *cells.columns], ["---"] * (len(cells.columns) + 1)]
    lines += [[name, *row] for name, row in zip(cells.index, cells.to_numpy())]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def plot_curves(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Held-out measures over steps: the mean of each loss, its seeds as a band."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no learning curves: pip install matplotlib")
        return
    figure = Figure(figsize=(16, 6), layout="constrained")
    tests = pd.DataFrame([row for row in rows if "stoi" in row])
    for axis, measure in zip(figure.subplots(2, 5).flat, MEASURES):
        for place, (name, runs) in enumerate(tests.groupby("loss", sort=False)):
            found = runs.groupby("step")[measure].agg(["mean", "min", "max"])
            if name == "mixture":
                axis.axhline(found["mean"].iloc[0], color="0.5", ls="--", label=name)
                continue
            axis.plot(found["mean"], color=f"C{place}", label=name)
            axis.fill_between(found.index, found["min"], found["max"], color=f"C{place}", alpha=0.2)
        axis.set(title=measure + (" [dB]" if measure.startswith("si_") else ""), xlabel="step")
    figure.axes[0].legend()
    figure.savefig(path, dpi=80)


# ------------------------------------------------------------------------- command line


class Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Defaults beside the options, the description as it is written."""


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help)
    add = parser.add_argument
    add("--speech", required=True, help="folder of speech files")
    add("--out", required=True, help="folder for log, page, curves and weights")
    add("--losses", nargs="+", default=LOSSES, help="beside SI-SDR; C:F weighs the pair")
    add("--seeds", nargs="+", type=int, default=[0], help="one run of each loss for each")
    add("--quick", action="store_true", help="few steps and mixtures: to see that it runs")
    add("--target", help="a talker to separate from the others; any two talkers by default")
    add("--same", nargs="*", default=[], metavar="NAME=OTHER", help="two names of one talker")
    add("--validate", action="store_true", help="test on the second last quarter of utterances")
    add("--curriculum", action="store_true", help="raise the interferer as scores allow")
    add("--encoder", default="mel", help="of PS and PM; wav2vec2-large needs a GPU")
    add("--device", default="cpu", help="of model and scores")
    add("--steps", type=int, default=1500, help="of each run")
    add("--batch", type=int, default=4, help="mixtures per step")
    add("--seconds", type=float, default=2.0, help="length of a training mixture")
    add("--rate", type=float, default=2e-3, help="learning rate")
    add("--frames", type=int, default=60, help="random frames per step that are scored")
    add("--bank-size", type=int, default=24, help="distortions per source in training")
    add("--pool", type=int, default=64, help="pairs kept prepared")
    add(
        "--refresh",
        type=int,
        default=50,
        help="renew a batch of them every so many steps; 0: never",
    )
    add("--test-mixtures", type=int, default=40, help="held out")
    add("--test-seconds", type=float, default=3.0, help="length of each")
    add("--test-frames", type=int, default=240, help="random frames of all, with whole banks")
    add("--test-every", type=int, default=500, help="steps between tests")
    add("--check-every", type=int, default=20, help="steps between looks of the trigger")
    options = parser.parse_args(argv)
    return argparse.Namespace(**vars(options) | (QUICK if options.quick else {}))


def main(argv: Sequence[str] | None = None) -> str:
    """Train all runs asked for; returns the page."""
    options = arguments(argv)
    voices = load_voices(options.speech, dict(p.split("=")[::-1] for p in options.same))
    if options.target not in (None, *voices):
        raise SystemExit(f"--target must be one of the talkers {sorted(voices)}.")
    voices, held = split(voices, options.validate)
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    command = " ".join(["python recipes/train_separator.py", *(argv or sys.argv[1:])])
    command = command.replace(options.speech, "FOLDER").replace(options.out, "OUT")
    held_out = HeldOut(held, options)
    untouched = held_out.results(lambda mix: mix.unsqueeze(1).expand(-1, 2, -1))
    rows, text = [{"loss": "mixture", "seed": 0, "step": 0, **untouched}], ""
    for seed in options.seeds:
        for name in options.losses:
            model, more = train(name, seed, voices, held_out, options)
            torch.save(model.state_dict(), folder / f"{name.replace(':', '-')}-{seed}.pt")
            rows += more
            pd.DataFrame(rows).to_csv(folder / "log.csv", index=False)
            text = page(rows, command)
            (folder / "training.md").write_text(text, encoding="utf-8")
            plot_curves(rows, folder / "curves.png")
    print(text)
    return text


if __name__ == "__main__":
    main()
