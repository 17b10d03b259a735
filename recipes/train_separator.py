"""Train a small mask-based separator with PS and PM in its loss, and see what they change.

    python recipes/train_separator.py --speech FOLDER --out runs/table            # 4 losses, 1 seed
    python recipes/train_separator.py --speech FOLDER --out runs/one --losses both --curriculum
    python recipes/train_separator.py --speech FOLDER --out runs/gpu --device cuda \
        --encoder wav2vec2-large --steps 20000

FOLDER holds speech in any format soundfile reads. Files in one subfolder, or with one name up to
the first "_", are one talker; ``--same en=es`` joins two names of one person. The last quarter of
each talker's files is held out; choose steps and rates with ``--validate``, which tests on others.
Mixtures of two talkers are drawn on the fly; references that PS and PM need distorted and encoded
are kept in a pool that is renewed pair by pair. Each source is distorted on its own and normalised,
so every first source of the pool can be mixed with every second one, at any level, without
preparing anything again.

By default any two talkers are mixed and trained with permutation invariance, which wants many
talkers and many steps. ``--target it`` mixes one known talker with the others instead, the target
always first: a task that few minutes of speech suffice for.

PS and PM are trained against small banks (``--bank-size``), which are cheap, and tested against
whole ones: a small bank is another measure, and only whole ones give numbers to compare. The
curriculum's trigger looks at what it trains on, so its levels belong to the small banks.

``--convention``, ``--leakage`` and ``--mode`` choose the PM of the loss. Leakage members hold the
other source of a mixture and so belong to it: the pool then gives its pairs as they were drawn, and
more of them are wanted (``--pool 128``). ``--pairs`` does so in any case, so that runs with and
without such members train on equal mixtures. Other modes have other slopes: give the PM term a
weight with ``--match`` (``benchmarks/training_losses.py`` measures them).

Progress is printed every ``--tell-every`` seconds, and after the first test what to expect: how
long all runs take, and how to read the measures. Writes into ``--out``: ``log.csv`` (and
TensorBoard events where tensorboard is installed), a table of held-out results after equal steps,
learning curves, and the weights.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torch_mapss import MAPSS, DistortionBank, MAPSSLoss, ReferenceBank, audio
from torch_mapss.training.curriculum import FrameTrigger, Quantile, Trend

RATE = 16000
SUFFIXES = (".wav", ".flac", ".ogg", ".mp3", ".aiff")
# What is added to -SI-SDR / 10 dB. The weights are the defaults of MAPSSLoss, under which the terms
# have gradients of one size (benchmarks/training_gradients.py).
LOSSES = {
    "si_sdr": {},
    "ps": {"separation": 1.0, "match": 0.0},
    "pm": {"separation": 0.0, "match": 0.1},
    "both": {"separation": 1.0, "match": 0.1},
}
# Held-out results. PS, PM and log PM are those of the paper convention, whatever the loss has.
MEASURES = ("si_sdr", "si_sdr_gain", "si_sir", "si_sar", "stoi")
MEASURES += ("ps", "pm", "log_pm", "pm_conformal", "pm_rank")
CLAMP = 60.0  # dB; a mixture has no artefact, and so an infinite SI-SAR


# ------------------------------------------------------------------------------------------------
# Speech
# ------------------------------------------------------------------------------------------------


def talker_of(path: Path, root: Path, same: dict[str, str]) -> str:
    """Name of the talker: the subfolder, or the file name up to the first underscore."""
    inside = path.relative_to(root)
    name = inside.parts[0] if len(inside.parts) > 1 else path.stem.split("_")[0]
    return same.get(name, name)


def load_voices(folder: str, same: dict[str, str]) -> dict[str, list[Tensor]]:
    """Talker -> utterances (T,) at 16 kHz, mono."""
    root = Path(folder)
    voices: dict[str, list[Tensor]] = {}
    for path in sorted(p for p in root.rglob("*") if p.suffix.lower() in SUFFIXES):
        wave, rate = audio.load_audio(path)
        wave = audio.resample(audio.to_mono(wave), rate, RATE)
        voices.setdefault(talker_of(path, root, same), []).append(wave)
    if len(voices) < 2:
        raise SystemExit(
            f"--speech must hold at least two talkers, found {sorted(voices)} in {folder}. Put "
            "each talker's files in a subfolder, or name them talker_1.wav, talker_2.wav, …"
        )
    return voices


def split(
    voices: dict[str, list[Tensor]], validate: bool = False
) -> tuple[dict[str, list[Tensor]], ...]:
    """The voices to train on, and the last quarter of each talker's utterances (at least one).

    With ``validate`` those are put away unheard, and the same is done with what is left.
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
            f"at least {2 + validate} utterances of each talker are needed; {few} have fewer."
        )
    return train, held


def draw_segment(waves: Sequence[Tensor], samples: int, generator: torch.Generator) -> Tensor:
    """(T,) of one utterance at RMS 0.05, the loudest of three draws, so that it is no pause."""

    def integer(high: int) -> int:
        return int(torch.randint(max(high, 1), (1,), generator=generator))

    draws = []
    for _ in range(3):
        wave = waves[integer(len(waves))]
        start = integer(len(wave) - samples)
        piece = nn.functional.pad(wave, (0, max(0, samples - len(wave))))[start : start + samples]
        draws.append(piece)
    best = max(draws, key=lambda piece: float(piece.square().mean()))
    return 0.05 * best / best.square().mean().sqrt().clamp(min=1e-8)


class Pair(NamedTuple):
    """Segments of two different talkers."""

    talkers: tuple[str, str]
    waves: Tensor  # (2, T)


def draw_pair(
    voices: dict[str, list[Tensor]],
    samples: int,
    generator: torch.Generator,
    target: str | None = None,
) -> Pair:
    """Segments of two different talkers, the target first if there is one."""
    names = sorted(voices, key=lambda name: (name != target, name))
    order = torch.randperm(len(names), generator=generator).tolist()
    if target is not None:
        order = [0, *(place for place in order if place > 0)]
    first, second = (names[place] for place in order[:2])
    waves = [draw_segment(voices[name], samples, generator) for name in (first, second)]
    return Pair((first, second), torch.stack(waves))


def at_levels(pairs: Tensor, decibels: Tensor) -> Tensor:
    """(B, 2, T) with each pair's second source raised by its decibels (B,)."""
    gains = torch.stack([torch.zeros_like(decibels), decibels], -1)
    return pairs * 10.0 ** (gains.to(pairs) / 20.0).unsqueeze(-1)


class Batch(NamedTuple):
    """What one step trains on."""

    references: Tensor  # (B, 2, T)
    bank: ReferenceBank | None  # of the same, where PS or PM are asked for


class Pool:
    """Segments in two slots, some renewed now and then, mixed at random across the slots.

    Or not mixed (``--pairs``, ``--leakage``): the pairs stay as they were drawn, as a bank with
    leakage members asks for (``bank.mixes``).

    Equal seeds give equal batches, with and without preparation; ``cache`` may be handed from run
    to run of one seed, so that each segment is prepared once. With a target the first slot is
    always the target's; without one, a draw of two segments of one talker is drawn again.
    """

    def __init__(
        self,
        voices: dict[str, list[Tensor]],
        options: argparse.Namespace,
        seed: int,
        mapss: MAPSS | None,
        cache: dict[int, ReferenceBank],
    ) -> None:
        self.voices, self.mapss, self.cache = voices, mapss, cache
        self.options, self.samples = options, round(options.seconds * RATE)
        self.whole = options.pairs or options.leakage > 0
        self.generator = torch.Generator("cpu").manual_seed(seed)
        self.pairs: list[Pair] = []
        self.names: list[int] = []  # which draw each pair was
        self.bank: ReferenceBank | None = None
        self.steps = self.drawn = 0
        for place in range(options.pool):
            self._renew(place)

    def _renew(self, place: int) -> None:
        pair = draw_pair(self.voices, self.samples, self.generator, self.options.target)
        self.pairs[place : place + 1] = [pair._replace(waves=pair.waves.to(self.options.device))]
        self.names[place : place + 1] = [self.drawn]
        self.drawn, self.bank = self.drawn + 1, None

    def draw(self, lowest: float, highest: float) -> Batch:
        """A batch, the second source between two levels (dB) of the first."""
        self.steps += 1
        if self.options.refresh and self.steps % self.options.refresh == 0:
            for _ in range(min(self.options.batch, len(self.pairs))):
                self._renew(self.drawn % len(self.pairs))
        index = torch.tensor([self._mixture() for _ in range(self.options.batch)])
        levels = lowest + (highest - lowest) * torch.rand(len(index), generator=self.generator)
        pairs = [torch.stack([self.pairs[i].waves[0], self.pairs[j].waves[1]]) for i, j in index]
        references = at_levels(torch.stack(pairs), levels)
        bank = None if self.mapss is None else self._prepared().recombined(index)
        return Batch(references, bank)

    def _mixture(self) -> tuple[int, int]:
        """Places of a first and a second source, of two talkers."""
        while True:
            i, j = torch.randint(len(self.pairs), (2,), generator=self.generator).tolist()
            if self.whole:
                return i, i
            if self.pairs[i].talkers[0] != self.pairs[j].talkers[1]:
                return i, j

    def _prepared(self) -> ReferenceBank:
        """The bank of the whole pool, joined again after a renewal."""
        if self.bank is None:
            self.bank = ReferenceBank.join(map(self._of_one, self.names, self.pairs))
        return self.bank

    def _of_one(self, name: int, pair: Pair) -> ReferenceBank:
        if name not in self.cache:
            assert self.mapss is not None
            self.cache[name] = self.mapss.prepare(pair.waves.unsqueeze(0))
        return self.cache[name]


# ------------------------------------------------------------------------------------------------
# Separator
# ------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """A dilated depthwise-separable convolution over time, residual."""

    def __init__(self, channels: int, hidden: int, dilation: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(channels, hidden, 1),
            nn.PReLU(),
            nn.GroupNorm(1, hidden),
            nn.Conv1d(hidden, hidden, 3, dilation=dilation, padding=dilation, groups=hidden),
            nn.PReLU(),
            nn.GroupNorm(1, hidden),
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


def new_separator(seed: int) -> Separator:
    """Initialised from its seed; the global generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Separator()


# ------------------------------------------------------------------------------------------------
# Losses
# ------------------------------------------------------------------------------------------------


def matched(estimates: Tensor, references: Tensor, target: str | None) -> Tensor:
    """Estimates in the order of their references, which a target has from the start."""
    if target is not None:
        return estimates
    back = audio.match_sources(estimates, references).argsort(-1)
    return estimates[torch.arange(len(back), device=back.device).unsqueeze(-1), back]


def make_loss(
    name: str, mapss: MAPSS, options: argparse.Namespace
) -> Callable[[Tensor, Batch], Tensor]:
    """The loss of one row of the table."""
    if name == "si_sdr":  # -SI-SDR / 10 dB, mean over estimates

        def plain(estimates: Tensor, batch: Batch) -> Tensor:
            estimates = matched(estimates, batch.references, options.target)
            return -audio.si_sdr(estimates, batch.references).mean() / 10.0

        return plain
    pit = "si_sdr" if options.target is None else None
    settings = {"si_sdr": 0.1, "pit": pit, "frames": options.frames, "match_mode": options.mode}
    weights = LOSSES[name] | ({"match": options.match} if LOSSES[name]["match"] else {})
    module = MAPSSLoss(mapss, **weights, **settings)
    return lambda estimates, batch: module(estimates, batch.bank)


# ------------------------------------------------------------------------------------------------
# Held-out results
# ------------------------------------------------------------------------------------------------


class HeldOut:
    """Fixed mixtures of utterances that are not trained on, and their prepared references."""

    def __init__(
        self, voices: dict[str, list[Tensor]], mapss: MAPSS, options: argparse.Namespace
    ) -> None:
        generator = torch.Generator("cpu").manual_seed(1_000_003)
        samples = round(options.test_seconds * RATE)
        pairs = [
            draw_pair(voices, samples, generator, options.target).waves
            for _ in range(options.test_mixtures)
        ]
        levels = torch.linspace(-6.0, 0.0, len(pairs))
        self.references = at_levels(torch.stack(pairs), levels).to(options.device)
        self.mixtures = self.references.sum(1)
        self.mapss, self.frames, self.target = mapss, options.test_frames, options.target
        self.bank = mapss.prepare(self.references)
        # A bank serves all conventions: the distortions are the same.
        self.conformal = MAPSS(mapss.encoder, convention="conformal")

    @torch.no_grad()
    def results(self, separate: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """Means over all sources of all mixtures."""
        estimates = matched(separate(self.mixtures), self.references, self.target)
        pooled = self.mapss(estimates, self.bank, frames=self.frames).utterance()
        reached = audio.si_sdr(estimates, self.references)
        start = audio.si_sdr(self.mixtures.unsqueeze(1).expand_as(estimates), self.references)
        interference, artefacts = self._sir_sar(estimates)
        values = {"si_sdr": reached, "si_sdr_gain": reached - start, "stoi": self._stoi(estimates)}
        values |= {"si_sir": interference, "si_sar": artefacts}
        values |= {"ps": pooled.ps, "pm": pooled.pm, "log_pm": pooled.log_pm}
        settings = {"frames": self.frames, "measures": "match"}
        pooled = self.conformal(estimates, self.bank, **settings).utterance()
        values |= {"pm_conformal": pooled.pm, "pm_rank": pooled.pm_rank}
        return {name: float(values[name].nanmean()) for name in MEASURES}

    def _sir_sar(self, estimates: Tensor) -> tuple[Tensor, Tensor]:
        """Interference and artefacts apart [dB], NaN without the fast_bss_eval package."""
        try:
            from fast_bss_eval import si_bss_eval_sources
        except ImportError:
            return (torch.tensor(float("nan")),) * 2
        settings = {"compute_permutation": False, "clamp_db": CLAMP}
        _, sir, sar = si_bss_eval_sources(self.references, estimates, **settings)
        return sir, sar

    def _stoi(self, estimates: Tensor) -> Tensor:
        """Short-time objective intelligibility, NaN without the pystoi package."""
        try:
            from pystoi import stoi
        except ImportError:
            return torch.tensor(float("nan"))
        pairs = zip(self.references.flatten(0, 1).cpu(), estimates.flatten(0, 1).cpu())
        return torch.tensor([stoi(r.numpy(), e.numpy(), RATE) for r, e in pairs])


# ------------------------------------------------------------------------------------------------
# Logs
# ------------------------------------------------------------------------------------------------


@dataclass
class Log:
    """Rows to a CSV file, numbers to TensorBoard where it is installed."""

    folder: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    writers: dict[str, Any] = field(default_factory=dict)

    def add(self, loss: str, seed: int, step: int, **values: float) -> None:
        self.rows.append({"loss": loss, "seed": seed, "step": step, **values})
        writer = self._writer(f"{loss}-{seed}")
        for name, value in values.items() if writer is not None else ():
            writer.add_scalar(name, value, step)

    def _writer(self, run: str) -> Any:
        if run not in self.writers:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                self.writers[run] = None
            else:
                self.writers[run] = SummaryWriter(str(self.folder / "tensorboard" / run))
        return self.writers[run]

    def save(self) -> None:
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        with open(self.folder / "log.csv", "w", newline="", encoding="utf-8") as stream:
            table = csv.DictWriter(stream, names)
            table.writeheader()
            table.writerows(self.rows)


def last_results(rows: Sequence[dict[str, Any]], loss: str) -> list[dict[str, Any]]:
    """The last held-out row of every seed of a loss."""
    last: dict[int, dict[str, Any]] = {}
    for row in rows:
        if row["loss"] == loss and "stoi" in row:
            last[row["seed"]] = row
    return list(last.values())


def results_table(rows: Sequence[dict[str, Any]]) -> str:
    """Markdown: mean and range over seeds of the last held-out results of every loss."""
    lines = [
        "| loss | " + " | ".join(MEASURES) + " | s/step |",
        "|---" * (len(MEASURES) + 2) + "|",
    ]
    for loss in dict.fromkeys(row["loss"] for row in rows):
        last = last_results(rows, loss)
        cells = [_cell([row[name] for row in last]) for name in MEASURES]
        pace = [row["seconds_per_step"] for row in last if "seconds_per_step" in row]
        cells.append(f"{statistics.mean(pace):.2f}" if pace else "")
        lines.append(f"| {loss} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(values: Sequence[float]) -> str:
    mean = f"{statistics.mean(values):.3f}"
    return mean if len(values) < 2 else f"{mean} ({min(values):.3f}–{max(values):.3f})"


def plot_curves(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Held-out measures over steps, one line per loss, seeds as a band."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        print("no learning curves: pip install matplotlib")
        return
    figure = Figure(figsize=(15, 6), layout="constrained")
    FigureCanvasAgg(figure)
    for axis, measure in zip(figure.subplots(2, 5).flat, MEASURES):
        for place, loss in enumerate(dict.fromkeys(row["loss"] for row in rows)):
            _plot_loss(axis, [r for r in rows if r["loss"] == loss], measure, place)
        axis.set_title(measure + (" [dB]" if measure.startswith("si_") else ""))
        axis.set_xlabel("step")
        axis.grid(alpha=0.3)
    figure.axes[0].legend()
    figure.savefig(path, dpi=80)


def _plot_loss(axis: Any, rows: Sequence[dict[str, Any]], measure: str, place: int) -> None:
    found: dict[int, list[float]] = {}
    for row in rows:
        if measure in row:
            found.setdefault(row["step"], []).append(row[measure])
    steps = sorted(found)
    if not steps:
        return
    means = [statistics.mean(found[step]) for step in steps]
    if len(steps) == 1:
        axis.axhline(means[0], color="0.5", ls="--", label=rows[0]["loss"])
        return
    axis.plot(steps, means, color=f"C{place}", label=rows[0]["loss"])
    low, high = [min(found[s]) for s in steps], [max(found[s]) for s in steps]
    axis.fill_between(steps, low, high, color=f"C{place}", alpha=0.15, lw=0)


# ------------------------------------------------------------------------------------------------
# Progress
# ------------------------------------------------------------------------------------------------


def spoken(seconds: float) -> str:
    """A duration as people say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


@dataclass
class Pace:
    """Steps and tests of all runs, counted against the clock."""

    steps: int  # of all runs
    tests: int
    every: float  # seconds between two lines
    clock: Callable[[], float] = time.monotonic
    done: int = 0
    tested: int = 0
    stepping: float = 0.0  # seconds spent in steps, preparation included
    testing: float = 0.0

    def __post_init__(self) -> None:
        self._mark = self._said = self.clock()

    @staticmethod
    def of(options: argparse.Namespace) -> Pace:
        """Of all runs that are asked for."""
        runs = len(options.losses) * len(options.seeds)
        tests = -(-options.steps // options.test_every)
        return Pace(runs * options.steps, runs * tests, options.tell_every)

    def _lap(self) -> float:
        before, self._mark = self._mark, self.clock()
        return self._mark - before

    def step(self) -> None:
        """A step has ended."""
        self.stepping, self.done = self.stepping + self._lap(), self.done + 1

    def test(self) -> None:
        """A test has ended."""
        self.testing, self.tested = self.testing + self._lap(), self.tested + 1

    def left(self) -> float:
        """Seconds that the rest should take at the pace so far."""
        each = self.stepping / max(self.done, 1), self.testing / max(self.tested, 1)
        return (self.steps - self.done) * each[0] + (self.tests - self.tested) * each[1]

    def is_due(self) -> bool:
        """Whether a line is due; then none is until as much time has passed again."""
        if self._mark - self._said < self.every:
            return False
        self._said = self._mark
        return True

    def __str__(self) -> str:
        each = self.stepping / max(self.done, 1)
        return (
            f"{self.done} of all {self.steps} steps, {each:.2f} s each, "
            f"about {spoken(self.left())} left"
        )


def expectation(pace: Pace, first: dict[str, float], untouched: dict[str, float]) -> str:
    """What to expect, said after the first test."""
    total = pace.stepping + pace.testing + pace.left()
    start = ", ".join(f"{name} {untouched[name]:.3f}" for name in MEASURES)
    return (
        f"What to expect: {pace.steps} steps and {pace.tests} tests take about {spoken(total)} "
        f"in all ({pace.stepping / max(pace.done, 1):.2f} s a step, "
        f"{pace.testing / max(pace.tested, 1):.1f} s a test).\n"
        f"  The mixture itself has {start}: a separator is worth what it gains over that.\n"
        f"  SI-SDR moves first (now {first['si_sdr_gain']:+.2f} dB) and PS with it. Mean PM stays "
        "near 0 for long, as most frames are beyond it: watch log PM, which is noisy and at first "
        "often falls below the mixture's. Steps are few in this recipe's defaults: a dB or two of "
        "SI-SDR is what minutes of speech give."
    )


# ------------------------------------------------------------------------------------------------
# Curriculum
# ------------------------------------------------------------------------------------------------


@dataclass
class Curriculum:
    """Levels of the second source: fixed range, or rising by 3 dB when the trigger fires."""

    trigger: FrameTrigger | None
    lowest: float = -6.0
    highest: float = 0.0
    top: float = 0.0

    @staticmethod
    def rising() -> Curriculum:
        """From a faint interferer up to an equal one.

        A step up when three frames in four are closer to their own source, or nothing more is
        gained; twice in a row, so that one lucky batch is not enough.
        """
        trigger = FrameTrigger(
            Quantile("ps", 0.25, above=0.6),
            Trend("ps", span=4, below=0.003),
            require="any",
            patience=2,
            hysteresis=0.002,
            smoothing=0.5,
        )
        return Curriculum(trigger, lowest=-18.0, highest=-12.0)

    def check(self, scores: Any) -> str | None:
        """Judge frame scores; says why, if the level has gone up."""
        event = self.trigger.update(scores) if self.trigger is not None else None
        if event is None or self.highest >= self.top:
            return None
        self.lowest, self.highest = self.lowest + 3.0, min(self.highest + 3.0, self.top)
        return str(event)


# ------------------------------------------------------------------------------------------------
# Training
# ------------------------------------------------------------------------------------------------


class Stage(NamedTuple):
    """What all runs share."""

    options: argparse.Namespace
    voices: dict[str, list[Tensor]]
    mapss: MAPSS  # of training, with small banks
    held_out: HeldOut  # scored with whole banks
    untouched: dict[str, float]  # held-out results of the mixtures themselves
    log: Log
    pace: Pace


def train(
    stage: Stage, loss: str, seed: int, cache: dict[int, ReferenceBank]
) -> tuple[Separator, Curriculum]:
    """One run: a loss, a seed, a fixed number of steps."""
    options = stage.options
    model = new_separator(seed).to(options.device)
    optimizer = torch.optim.Adam(model.parameters(), options.rate)
    needs = loss != "si_sdr" or options.curriculum
    pool = Pool(stage.voices, options, seed, stage.mapss if needs else None, cache)
    measure = make_loss(loss, stage.mapss, options)
    curriculum = Curriculum.rising() if options.curriculum else Curriculum(None)
    spent = 0.0
    for step in range(1, options.steps + 1):
        batch = pool.draw(curriculum.lowest, curriculum.highest)
        start = time.perf_counter()
        value = measure(model(batch.references.sum(1)), batch)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad()
        spent += time.perf_counter() - start
        stage.pace.step()
        report(stage, model, loss, seed, step, {"train": value.detach(), "seconds": spent})
        if options.curriculum and step % options.check_every == 0:
            judge(stage, model, pool, curriculum, (loss, seed, step))
    return model, curriculum


def report(
    stage: Stage, model: Separator, loss: str, seed: int, step: int, state: dict[str, Any]
) -> None:
    """Log the training loss, say how far it is, and the held-out results now and then."""
    options, pace = stage.options, stage.pace
    if step % options.log_every == 0:
        stage.log.add(loss, seed, step, train_loss=float(state["train"]))
    if pace.is_due():
        shown = f"loss {float(state['train']):.3f}; {pace}"
        print(f"{loss} seed {seed} step {step}: {shown}", flush=True)
    if step % options.test_every == 0 or step == options.steps:
        found = stage.held_out.results(model.eval())
        model.train()
        pace.test()
        stage.log.add(loss, seed, step, **found, seconds_per_step=state["seconds"] / step)
        stage.log.save()
        shown = ", ".join(f"{name} {value:.3f}" for name, value in found.items())
        print(f"{loss} seed {seed} step {step}: {shown}", flush=True)
        if pace.tested == 1:
            print(expectation(pace, found, stage.untouched), flush=True)


@torch.no_grad()
def judge(
    stage: Stage, model: Separator, pool: Pool, curriculum: Curriculum, where: tuple[str, int, int]
) -> None:
    """Show the trigger frame scores at the present level."""
    batch = pool.draw(curriculum.lowest, curriculum.highest)
    estimates = matched(model(batch.references.sum(1)), batch.references, stage.options.target)
    assert batch.bank is not None
    scores = stage.mapss(estimates, batch.bank, frames=stage.options.frames)
    reason = curriculum.check(scores)
    stage.log.add(*where, interferer_level=curriculum.highest)
    if reason is not None:
        print(f"interferer up to {curriculum.highest:g} dB: {reason}", flush=True)


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--speech", required=True, help="folder of speech files")
    add("--out", required=True, help="folder for logs, table, curves and weights")
    add("--losses", nargs="+", choices=list(LOSSES), default=list(LOSSES))
    add("--seeds", nargs="+", type=int, default=[0])
    add("--steps", type=int, default=1500)
    add("--target", help="a talker to separate from the others; any two talkers by default")
    add("--curriculum", action="store_true", help="raise the interferer as scores allow")
    add("--encoder", default="mel", help="of MAPSS; wav2vec2-large wants a GPU")
    add("--device", default="cpu")
    add("--batch", type=int, default=4, help="mixtures per step")
    add("--seconds", type=float, default=2.0, help="length of a training mixture")
    add("--rate", type=float, default=2e-3, help="learning rate")
    add("--frames", type=int, default=60, help="random frames per step that PS and PM see")
    add("--bank-size", type=int, default=24, help="distortions per source in training")
    add(
        "--convention",
        choices=["paper", "reference", "conformal"],
        default="paper",
        help='of the loss; "conformal" is one of PM, the tests show the others besides',
    )
    add("--leakage", type=int, default=0, help="leakage members of PM in training, beside those")
    add("--mode", choices=["linear", "log", "log1p"], default="log1p", help="of the PM term")
    add("--match", type=float, default=0.1, help="weight of the PM term")
    add("--pairs", action="store_true", help="keep pairs as drawn, as --leakage does")
    add("--pool", type=int, default=64, help="segments kept prepared in each of two slots")
    add("--refresh", type=int, default=50, help="renew a few every so many steps; 0: never")
    add(
        "--validate",
        action="store_true",
        help="test on a second quarter of the utterances instead of the last, which is left out "
        "altogether: to choose a number of steps or a rate without a look at the test",
    )
    add("--test-mixtures", type=int, default=12)
    add("--test-seconds", type=float, default=3.0)
    add("--test-frames", type=int, default=240, help="random frames of all held-out mixtures")
    add("--test-every", type=int, default=100, help="steps")
    add("--check-every", type=int, default=20, help="steps between looks of the trigger")
    add("--log-every", type=int, default=10)
    add("--tell-every", type=float, default=30.0, help="seconds between two lines of progress")
    add("--same", nargs="*", default=[], metavar="NAME=OTHER", help="two names of one talker")
    return parser.parse_args(argv)


def small_scorer(options: argparse.Namespace) -> MAPSS:
    """The scorer of training: the encoder of the test, smaller banks."""
    separation, match = (
        DistortionBank(kind, size=options.bank_size) for kind in ("separation", "match")
    )
    if options.leakage:  # all of these, beside the few of the paper's
        kept = [*match.names(), "leakage"]
        match = DistortionBank("match", only=kept, leakage=options.leakage)
    return MAPSS(
        options.encoder,
        device=options.device,
        convention=options.convention,
        separation_bank=separation,
        match_bank=match,
    )


def prepare(options: argparse.Namespace) -> Stage:
    """Load everything that the runs share."""
    same = {right: left for left, right in (pair.split("=") for pair in options.same)}
    voices = load_voices(options.speech, same)
    if options.target not in (None, *voices):
        raise SystemExit(f"--target must be one of the talkers {sorted(voices)}.")
    train_voices, held_voices = split(voices, options.validate)
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    whole = MAPSS(options.encoder, device=options.device)
    print("preparing the held-out mixtures ...", flush=True)
    held_out = HeldOut(held_voices, whole, options)
    untouched = held_out.results(lambda mix: mix.unsqueeze(1).expand(-1, 2, -1))
    scorer, log, pace = small_scorer(options), Log(folder), Pace.of(options)
    return Stage(options, train_voices, scorer, held_out, untouched, log, pace)


def runs(stage: Stage) -> Iterator[tuple[str, int, Separator]]:
    """All seeds of all losses, seed by seed, so that equal pairs are prepared once."""
    for seed in stage.options.seeds:
        cache: dict[int, ReferenceBank] = {}
        for loss in stage.options.losses:
            yield loss, seed, train(stage, loss, seed, cache)[0]


def main(argv: Sequence[str] | None = None) -> str:
    """Train all runs asked for; returns the table."""
    stage = prepare(arguments(argv))
    folder, log = stage.log.folder, stage.log
    log.add("mixture", 0, 0, **stage.untouched)
    for loss, seed, model in runs(stage):
        torch.save(model.state_dict(), folder / f"{loss}-{seed}.pt")
        table = results_table(log.rows)
        (folder / "table.md").write_text(table, encoding="utf-8")
        plot_curves(log.rows, folder / "curves.png")
    print(table)
    return table


if __name__ == "__main__":
    main()
