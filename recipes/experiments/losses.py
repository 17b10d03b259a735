"""Clearance and fidelity as a loss for a small separator, with different encoders.

    python recipes/experiments/losses.py --speech FOLDER --target carlo --out runs/losses \\
        --encoders mel whisper-tiny.en@2 whisper-tiny.en@3 --seeds 0 1 2

The separator, its mixtures and the held-out test are those of ``recipes/train_separator.py``
(FOLDER as there). The loss of every arm holds -SI-SDR / 10 dB and, but for the first arm, the pair
at 1:2 (clearance and twice fidelity) with one of the encoders. All arms start from the same weights
and see the same mixtures. On held-out mixtures these are measured: SI-SDR, SI-SIR, SI-SAR, STOI and
PESQ, which read no encoder, and clearance and fidelity with *every* encoder, which shows whether a
loss has improved the scores with its own encoder alone.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import toolkit
import torch
from torch import Tensor, nn
from tqdm import tqdm

from torch_mapss import MAPSS, MAPSSLoss, audio

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the training recipes

import separator_training as training
from speech_pool import RATE, Pool, Voices, fixed_references, load_voices, split

WAVEFORM_MEASURES = ("si_sdr", "si_sir", "si_sar", "stoi", "pesq")
PAIR = ("clearance", "fidelity")
SI_SDR_ALONE = "SI-SDR alone"
LEVELS = (-6.0, 0.0)  # of the second talker, dB
# The order of the talkers' names decides which mixtures are drawn.
LAYOUT = (
    "Files of a talker are in a subfolder of that name, or have names that begin with it up to the "
    "first `_`; the last quarter of each talker's files is held out. The page in "
    "`recipes/experiments/results` is of 20 utterances of 8 to 10 s: allison (4 in English, then 4 "
    "in Spanish), carlo (4 in Italian), ivr (4 in Russian), june (4 in French)."
)


def column(name: str, encoder: str) -> str:
    """Column of a score with an encoder."""
    return f"{name} {toolkit.shown(encoder)}"


class HeldOut:
    """Fixed mixtures of utterances that are not trained on, and their prepared references."""

    def __init__(self, voices: Voices, options: argparse.Namespace) -> None:
        self.references = fixed_references(
            voices, options.test_mixtures, options.test_seconds, training.TEST_SEED, options.target
        )
        self.mixtures = self.references.sum(1)
        self.pairs = {}
        for encoder in options.encoders:
            mapss = pair_scorer(encoder)
            self.pairs[encoder] = mapss, mapss.prepare(self.references)

    @torch.no_grad()
    def results(self, separate: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """Means over all sources of all mixtures."""
        estimates, references = separate(self.mixtures), self.references
        _, si_sir, si_sar = training.bss_eval(estimates, references)
        values = {
            "si_sdr": audio.si_sdr(estimates, references),
            "si_sir": si_sir,
            "si_sar": si_sar,
            "stoi": training.stoi(estimates, references, RATE),
            "pesq": training.if_installed(lambda: training.pesq(estimates, references, RATE, "wb")),
        }
        for encoder, (mapss, bank) in self.pairs.items():
            utterance = mapss(estimates, bank).utterance()
            values |= {column(name, encoder): getattr(utterance, name) for name in PAIR}
        return {name: float(value.double().nanmean()) for name, value in values.items()}


def pair_scorer(encoder: str) -> MAPSS:
    """A scorer of clearance and fidelity alone."""
    pair_encoder = toolkit.pair_encoder_of(encoder, toolkit.load(encoder))
    return MAPSS("mel", decomposition_encoder=pair_encoder, measures="decomposition")


def train(
    encoder: str | None, seed: int, voices: Voices, options: argparse.Namespace
) -> training.Separator:
    """A separator, trained with the pair with an encoder; None: with SI-SDR alone."""
    torch.manual_seed(seed)
    model = training.Separator()
    optimizer = torch.optim.Adam(model.parameters(), options.rate)
    loss = None
    if encoder is not None:
        loss = MAPSSLoss(
            pair_scorer(encoder),
            separation=0.0,
            match=0.0,
            clearance=1.0,
            fidelity=2.0,
            si_sdr=0.1,
            frames=options.frames,
        )
    pool = Pool(voices, options, seed, None if loss is None else loss.prepare)
    words = f"{toolkit.shown(encoder or SI_SDR_ALONE)}, seed {seed}"
    for _ in tqdm(range(options.steps), words, mininterval=20.0):
        references, bank = pool.draw(*LEVELS)
        estimates = model(references.sum(1))
        if loss is None:
            value = -audio.si_sdr(estimates, references).mean() / 10.0
        else:
            value = loss(estimates, bank)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def run(options: argparse.Namespace) -> toolkit.Rows:
    """Train and test every arm with every seed."""
    columns = []
    for encoder in options.encoders:
        columns += [column(name, encoder) for name in PAIR]
    settings = toolkit.settings_of(options, "seeds", "speech")
    rows = toolkit.Rows(options.out, ("arm", "seed"), (*WAVEFORM_MEASURES, *columns), settings)
    missing = []
    for seed, encoder in itertools.product(options.seeds, (None, *options.encoders)):
        if not rows.has(toolkit.shown(encoder or SI_SDR_ALONE), seed):
            missing.append((encoder, seed))
    if not missing:
        return rows
    training_voices, test_voices = split(load_voices(str(options.speech)))
    held_out = HeldOut(test_voices, options)
    if not rows.has("mixture", 0):
        rows.add("mixture", 0, **held_out.results(lambda mix: mix.unsqueeze(1).expand(-1, 2, -1)))
    for encoder, seed in missing:
        model = train(encoder, seed, training_voices, options)
        rows.add(toolkit.shown(encoder or SI_SDR_ALONE), seed, **held_out.results(model))
    return rows


def table_of(rows: toolkit.Rows) -> pd.DataFrame:
    """Numbers by arm and seed."""
    table = pd.DataFrame(rows.where()).rename(columns={"arm": "loss"})
    table = table.set_index(["loss", "seed"])
    return table.astype(float)


def page(
    options: argparse.Namespace, arguments: Sequence[str] | None, rows: toolkit.Rows
) -> list[str]:
    """Means over the seeds, and differences from SI-SDR alone and from the first encoder."""
    table = table_of(rows)
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "--seeds" not in words:
        words += ["--seeds", *map(str, options.seeds)]
    about = (
        f"{options.target} against the other talkers, {options.steps} steps of {options.batch} "
        f"mixtures of {options.seconds:g} s; {options.test_mixtures} held-out mixtures of "
        f"{options.test_seconds:g} s; {len(options.seeds)} seeds (least to greatest). Every arm "
        "but the first has the pair at 1:2 beside -SI-SDR / 10 dB, under the encoder that names "
        f"it.\n\n{LAYOUT}\n\n{other_task(options)}"
    )
    title = "The pair as a loss under several encoders"
    text = toolkit.page_head(title, __file__, words, about, options.seeds)
    text += ["", training.table(table, "{:.3f}")]
    for base in (SI_SDR_ALONE, toolkit.shown(options.encoders[0])):
        arms = table.drop(["mixture", base], level="loss")
        changes = arms.sub(table.loc[base], level="seed")
        text += ["", f"Less `{base}`, seed by seed. **Bold**: all seeds agree in sign.", ""]
        text += [training.table(changes, "{:+.3f}")]
    return text


def other_task(options: argparse.Namespace) -> str:
    """How the task differs from that of the page on training."""
    return (
        "`benchmarks/results/training.md` separates the voice of carlo (there `it`) in another "
        f"task: 200 steps (here {options.steps}), a pool of 64 pairs, some renewed every 50 steps "
        f"(here {options.pool} that stay), 40 held-out mixtures of 2.5 s (here "
        f"{options.test_mixtures} of {options.test_seconds:g} s), and the English and the "
        "Spanish voice, one person, as two talkers. Compare numbers within a page only."
    )


def main(arguments: Sequence[str] | None = None) -> toolkit.Rows:
    parser = toolkit.parser(__doc__, manifest=False, scoring=False)
    add = parser.add_argument
    add("--speech", type=Path, required=True, help="folder of speech files, see train_separator.py")
    add("--target", required=True, help="the talker to separate from the others")
    add(
        "--encoders",
        nargs="+",
        default=["mel"],
        metavar="NAME[@LAYER]",
        help="of the pair, an arm for each",
    )
    add("--seeds", nargs="+", type=int, default=[0, 1, 2], help="one run of each arm for each")
    add("--steps", type=int, default=200, help="of training")
    add("--batch", type=int, default=4, help="mixtures a step")
    add("--seconds", type=float, default=1.0, help="length of a training mixture")
    add("--rate", type=float, default=2e-3, help="learning rate")
    add("--frames", type=int, default=40, help="random frames a step that are scored")
    add("--pool", type=int, default=24, help="prepared pairs of segments to mix from")
    add("--test-mixtures", type=int, default=24, help="held out")
    add("--test-seconds", type=float, default=2.5, help="length of each")
    parser.set_defaults(device="cpu", refresh=0)
    options = parser.parse_args(arguments)
    rows = run(options)
    toolkit.finish(options, "losses", page(options, arguments, rows))
    return rows


if __name__ == "__main__":
    main()
