"""Which PM to train with: the recipe's separator under losses of every convention.

    python benchmarks/training_losses.py weights --out OUT --data FOLDER_OF_SEPARATED
    python benchmarks/training_losses.py train --out OUT --speech FOLDER --validation RUN
    python benchmarks/training_losses.py page --out OUT

``weights`` measures how steep each form of PM is as a loss, beside 1 - PS. Slopes differ by orders
of magnitude, so that one weight for all would compare weights; each form is given the one under
which it pulls as hard as the default form does with its own. ``train`` runs
``recipes/train_separator.py`` for every arm and seed on equal mixtures (pairs as drawn, since
leakage members belong to one) and saves each result as it comes: a run that was stopped goes on
where it was. RUN is a run of the recipe with ``--validate``, which chooses the number of steps.
``page`` writes both tables into ``results/training.md``.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from bounds_page import table, write_section
from torch import Tensor
from training_gradients import read_all
from training_step import recipe

from torch_mapss import MAPSS, DistortionBank, MatchLoss, ReferenceBank, SeparationLoss

PAGE = Path(__file__).parent / "results" / "training.md"
LEAKAGE = 7
SEEDS = (0, 1, 2)
BANK = 16  # distortions of each bank in training
WEIGHT = 0.1  # of PM in MAPSSLoss, whose default form this is
STEEPEST = 1e3  # a form that needs a larger weight has no slope to speak of


class Form(NamedTuple):
    """A form of PM as a term of a loss."""

    convention: str = "paper"
    mode: str = "log1p"
    leakage: int = 0

    def __str__(self) -> str:
        added = f", {self.leakage} leakage members" if self.leakage else ""
        return f"{self.convention}, {self.mode}{added}"


FORMS = [
    Form(convention, mode, leakage)
    for convention in ("paper", "reference", "conformal")
    for mode in ("log1p", "log", "linear")
    for leakage in (0, LEAKAGE)
]


# ------------------------------------------------------------------------------------------------
# Weights
# ------------------------------------------------------------------------------------------------


def scorers(size: int | None, leakage: int) -> dict[str, MAPSS]:
    """A scorer of each convention on one bank: whole, or ``size`` distortions and the members."""
    match = DistortionBank("match", leakage=leakage)
    if size is not None:
        few = DistortionBank("match", size=size).names()
        only = [*few, *(["leakage"] if leakage else [])]
        match = DistortionBank("match", only=only, leakage=leakage)
    banks = {"separation_bank": DistortionBank(size=size), "match_bank": match}
    names = dict.fromkeys(form.convention for form in FORMS)
    return {name: MAPSS("mel", convention=name, **banks) for name in names}


def slope(loss: torch.nn.Module, outputs: Tensor, bank: ReferenceBank) -> float:
    """Relative norm of the gradient: what a relative change of the outputs does at most."""
    leaf = outputs.clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(leaf, bank), leaf)
    return float(found.norm() * outputs.norm())


def slopes(root: Path, size: int | None, seconds: float) -> dict[str, list[float]]:
    """Relative slopes of 1 - PS and of every form of PM on the outputs of all systems."""
    found: dict[str, list[float]] = {}
    for leakage in (0, LEAKAGE):
        mapss = scorers(size, leakage)
        forms = [form for form in FORMS if form.leakage == leakage]
        losses = {str(f): MatchLoss(mapss[f.convention], mode=f.mode, frames=40) for f in forms}
        if leakage == 0:
            losses["1 - PS"] = SeparationLoss(mapss["paper"], frames=40)
        for item in json.loads((root / "mapss.json").read_text(encoding="utf-8")):
            references = read_all(root, item["references"], seconds)
            bank = mapss["paper"].prepare(references)  # serves all conventions
            systems = [read_all(root, paths, seconds) for paths in item["systems"].values()]
            for outputs in (*systems, references.sum(1, keepdim=True).expand_as(references)):
                for name, loss in losses.items():
                    found.setdefault(name, []).append(slope(loss.eval(), outputs, bank))
    return found


def geometric(values: Sequence[float]) -> float:
    return math.exp(statistics.mean(math.log(max(value, 1e-300)) for value in values))


def rounded(weight: float) -> float:
    """To two significant digits."""
    return float(f"{weight:.1e}")


def weights(root: Path, out: Path, seconds: float, whole: bool) -> None:
    """Measure slopes with the banks of training, which give the weights, or with whole banks."""
    start, path = time.process_time(), out / "weights.json"
    out.mkdir(parents=True, exist_ok=True)
    record = read_json(path) if path.exists() else {"slopes": {}, "seconds": 0.0}
    name, size = ("whole", None) if whole else ("small", BANK)
    record["slopes"][name] = slopes(root, size, seconds)
    record["seconds"] += time.process_time() - start
    if not whole:
        means = {term: geometric(found) for term, found in record["slopes"]["small"].items()}
        usual = WEIGHT * means[str(Form())]
        record["weights"] = {str(form): rounded(usual / means[str(form)]) for form in FORMS}
    save(path, record)


def weights_section(out: Path) -> str:
    """Slopes and weights of every form."""
    record = read_json(out / "weights.json")
    found, chosen = record["slopes"], record["weights"]
    sizes = {"small": f"slope, {BANK} distortions", "whole": "slope, whole banks"}
    sizes = {size: title for size, title in sizes.items() if size in found}
    rows = []
    for name in ("1 - PS", *map(str, FORMS)):
        cells = []
        for size in sizes:
            values = found[size][name]
            cells.append(f"{geometric(values):.2g} ({min(values):.2g} to {max(values):.2g})")
        weight = chosen.get(name, 1.0)
        rows.append([name, *cells, f"{weight:g}" if weight < STEEPEST else "no slope left"])
    count = len(found["small"]["1 - PS"])
    header = ["term", *sizes.values(), "weight"]
    return f"""Relative slopes, ‖gradient‖ · ‖output‖, on {count} outputs of real separators and
mixtures; geometric mean and range. The weight makes a form pull, with the banks of training, as
hard as {Form()} does with its {WEIGHT:g}. {record["seconds"]:.0f} s.

{table(header, rows)}
"""


# ------------------------------------------------------------------------------------------------
# Arms
# ------------------------------------------------------------------------------------------------


class Arm(NamedTuple):
    """One row of the table: a loss of the recipe, and which PM is in it."""

    loss: str
    form: Form = Form()

    def __str__(self) -> str:
        if self.loss == "si_sdr":
            return "SI-SDR alone"
        added = {"ps": "PS", "pm": f"PM ({self.form})", "both": f"PS and PM ({self.form})"}
        return f"+ {added[self.loss]}"

    @property
    def name(self) -> str:
        """For folders and the command line: loss-convention-mode-leakage."""
        parts = [self.loss] if self.loss in ("si_sdr", "ps") else [self.loss, *self.form]
        return "-".join(map(str, parts))

    def options(self, weights: dict[str, float]) -> list[str]:
        """The command line of the recipe."""
        convention, mode, leakage = self.form
        chosen = ["--losses", self.loss, "--convention", convention, "--mode", mode]
        return [*chosen, "--leakage", str(leakage), "--match", str(weights[str(self.form)])]


PAPER, CONFORMAL, REFERENCE = Form(), Form("conformal"), Form("reference")
LEAKY, CONFORMAL_LEAKY = Form(leakage=LEAKAGE), Form("conformal", leakage=LEAKAGE)
FIRST = [
    Arm("si_sdr"),
    *(Arm(loss, form) for form in (PAPER, LEAKY, CONFORMAL) for loss in ("pm", "both")),
    *(Arm("both", form) for form in (CONFORMAL_LEAKY, REFERENCE)),
]
LATER = [
    *(Arm(loss, Form("conformal", mode)) for loss in ("pm", "both") for mode in ("linear", "log")),
    *(Arm("pm", form) for form in (CONFORMAL_LEAKY, REFERENCE)),
    Arm("ps"),
]
# Of runs of one seed, which begin alike and see equal mixtures: what a choice changes.
CHANGES = [
    *((arm, FIRST[0]) for arm in (*FIRST[1:], *LATER)),
    *((Arm(x, f), Arm(x)) for f in (LEAKY, CONFORMAL, REFERENCE) for x in ("pm", "both")),
    *((Arm(x, CONFORMAL_LEAKY), Arm(x, CONFORMAL)) for x in ("pm", "both")),
    *((arm, Arm(arm.loss, CONFORMAL)) for arm in LATER if arm.form.mode != CONFORMAL.mode),
]


# ------------------------------------------------------------------------------------------------
# Training
# ------------------------------------------------------------------------------------------------

MODEL = ["--same", "en=es", "--target", "it", "--pairs", "--pool", "128", "--refresh", "40"]
MODEL += ["--seconds", "1", "--frames", "32", "--bank-size", str(BANK)]
MODEL += ["--test-mixtures", "8", "--test-seconds", "2.5", "--test-every", "100000"]
MODEL += ["--test-frames", "120"]
MEASURES = {  # title and digits
    "si_sdr": ("SI-SDR [dB]", 2),
    "si_sir": ("SI-SIR [dB]", 2),
    "si_sar": ("SI-SAR [dB]", 2),
    "stoi": ("STOI", 3),
    "ps": ("PS", 3),
    "pm": ("PM", 3),
    "log_pm": ("log PM", 0),
    "pm_leakage": (f"PM, {LEAKAGE} leakage members", 3),
    "pm_conformal": ("PM, conformal", 3),
    "pm_rank": ("PM, rank form", 3),
}


def best_step(log: Path, most: int) -> tuple[int, dict[int, float]]:
    """Mean SI-SDR over the seeds of a run of the recipe, and the best of the first steps."""
    with open(log, newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if row["stoi"] and int(row["step"])]
    steps = sorted({int(row["step"]) for row in rows})
    means = {
        step: statistics.mean(float(row["si_sdr"]) for row in rows if int(row["step"]) == step)
        for step in steps
    }
    return max((step for step in steps if step <= most), key=means.__getitem__), means


class Judge:
    """Held-out PM with leakage members, which the tests of the recipe do not have."""

    def __init__(self, held_out: Any) -> None:
        self.held_out, self.mapss = held_out, MAPSS("mel", leakage=LEAKAGE)
        self.bank = self.mapss.prepare(held_out.references, measures="match")

    @torch.no_grad()
    def __call__(self, separate: Any) -> dict[str, float]:
        held = self.held_out
        settings = {"frames": held.frames, "measures": "match"}
        pooled = self.mapss(separate(held.mixtures), self.bank, **settings).utterance()
        return {"pm_leakage": float(pooled.pm.nanmean())}


class Bench:
    """What all arms share: the recipe, its held-out mixtures and the weights."""

    def __init__(self, speech: Path, out: Path, validation: Path, most: int) -> None:
        self.script, self.out = recipe(), out
        self.weights = read_json(out / "weights.json")["weights"]
        self.steps, means = best_step(validation / "log.csv", most)
        self.common = ["--speech", str(speech), "--out", str(out), "--steps", str(self.steps)]
        self.stage = self.script.prepare(self.script.arguments([*self.common, *MODEL]))
        self.judge = Judge(self.stage.held_out)
        alone = self.judge(lambda mix: mix.unsqueeze(1).expand(-1, 2, -1))
        found = {"mixture": self.stage.untouched | alone, "steps": self.steps}
        found |= {"validated": means, "most": most}
        save(out / "shared.json", found)

    def run(self, arm: Arm, seed: int, cache: dict[int, ReferenceBank]) -> None:
        """Train, test and save, unless it has been."""
        folder = self.out / f"{arm.name}-{seed}"
        if (folder / "result.json").exists():
            return
        folder.mkdir(exist_ok=True)
        script, line = self.script, [*self.common, *MODEL, *arm.options(self.weights)]
        options = script.arguments(line)
        stage = self.stage._replace(
            options=options,
            mapss=script.small_scorer(options),
            log=script.Log(folder),
            pace=script.Pace.of(options),
        )
        start = time.process_time()
        model = script.train(stage, arm.loss, seed, cache)[0].eval()
        (last,) = script.last_results(stage.log.rows, arm.loss)
        found = {name: last[name] for name in script.MEASURES} | self.judge(model)
        save(folder / "result.json", {"found": found, "seconds": time.process_time() - start})


def train(speech: Path, out: Path, validation: Path, most: int, chosen: Sequence[str]) -> None:
    """Every arm and seed that has no result yet; segments of a seed are prepared once."""
    bench = Bench(speech, out, validation, most)
    for arms in (FIRST, LATER):
        for seed in SEEDS:
            caches: dict[int, dict[int, ReferenceBank]] = {0: {}, LEAKAGE: {}}
            for arm in arms:
                if not chosen or arm.name in chosen:
                    bench.run(arm, seed, caches[arm.form.leakage])


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def save(path: Path, record: dict[str, Any]) -> None:
    """Whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(record), encoding="utf-8")
    part.replace(path)


# ------------------------------------------------------------------------------------------------
# Page
# ------------------------------------------------------------------------------------------------


def results(out: Path, arm: Arm) -> dict[int, dict[str, float]]:
    """Seed -> held-out results, of the seeds that are done."""
    paths = {seed: out / f"{arm.name}-{seed}" / "result.json" for seed in SEEDS}
    return {seed: read_json(path)["found"] for seed, path in paths.items() if path.exists()}


def spread(values: Sequence[float], digits: int, sign: str = "") -> str:
    """Mean, and range of several."""
    mean, low, high = (
        f"{x:{sign}.{digits}f}" for x in (statistics.mean(values), min(values), max(values))
    )
    return mean if len(values) < 2 else f"{mean} ({low} … {high})"


def results_rows(out: Path) -> list[list[str]]:
    """A row an arm; bold where the range lies apart from that of SI-SDR alone."""
    plain = results(out, Arm("si_sdr"))
    untouched = read_json(out / "shared.json")["mixture"]
    rows = [["mixture", "", *(f"{untouched[m]:.{d}f}" for m, (_, d) in MEASURES.items()), ""]]
    weights = read_json(out / "weights.json")["weights"]
    for arm in (*FIRST, *LATER):
        found = results(out, arm)
        if not found:
            continue
        cells = []
        for measure, (_, digits) in MEASURES.items():
            mine = [seed[measure] for seed in found.values()]
            other = [seed[measure] for seed in plain.values()]
            text = spread(mine, digits)
            apart = min(mine) > max(other) or max(mine) < min(other)
            cells.append(f"**{text}**" if apart else text)
        weight = f"{weights[str(arm.form)]:g}" if arm.loss in ("pm", "both") else ""
        rows.append([str(arm), weight, *cells, str(len(found))])
    return rows


def change_rows(out: Path) -> list[list[str]]:
    """Differences of pairs of arms within each seed; bold where all seeds agree in sign."""
    rows = []
    for arm, other in CHANGES:
        left, right = results(out, arm), results(out, other)
        seeds = sorted(left.keys() & right.keys())
        if not seeds:
            continue
        cells = []
        for measure, (_, digits) in MEASURES.items():
            values = [left[seed][measure] - right[seed][measure] for seed in seeds]
            text = spread(values, digits, "+")
            agree = len(seeds) > 1 and (min(values) > 0.0 or max(values) < 0.0)
            cells.append(f"**{text}**" if agree else text)
        rows.append([f"{arm}, less {other}", *cells])
    return rows


def page(out: Path) -> None:
    """Both sections in their place on the page."""
    write_section("training_losses.py weights", weights_section(out), PAGE)
    shared = read_json(out / "shared.json")
    names = [title for title, _ in MEASURES.values()]
    seconds = [read_json(path)["seconds"] for path in sorted(out.glob("*/result.json"))]
    steps, means = shared["steps"], shared["validated"]
    highest = max(means, key=means.__getitem__)
    text = f"""{steps} steps: of the first {shared["most"]}, SI-SDR alone had its highest mean over
the seeds on the validation utterances there ({means[str(steps)]:.2f} dB; {means[highest]:.2f} at
{highest}, the highest of {max(map(int, means))}). Means over the seeds
{", ".join(map(str, SEEDS))} and ranges. **Bold**: the range lies apart from that of SI-SDR alone.

{table(["added to -SI-SDR / 10 dB", "weight of PM", *names, "seeds"], results_rows(out))}

Within a seed, runs begin alike and see equal mixtures. Differences of such pairs, mean and range;
**bold**: all seeds agree in sign (of three seeds without any effect one measure in four does).

{table(["difference", *names], change_rows(out))}

{sum(seconds):.0f} s of processor time for {len(seconds)} runs.
"""
    write_section("training_losses.py", text, PAGE)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["weights", "train", "page"])
    parser.add_argument("--out", type=Path, required=True, help="folder of results")
    parser.add_argument("--data", type=Path, help="outputs of separators, for weights")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each of those")
    parser.add_argument("--speech", type=Path, help="what to train on")
    parser.add_argument("--validation", type=Path, help="folder of the run that chose the steps")
    parser.add_argument("--most-steps", type=int, default=400, help="that can be chosen")
    parser.add_argument("--whole", action="store_true", help="slopes with whole banks")
    parser.add_argument("--arms", nargs="*", default=[], help=" ".join(a.name for a in FIRST))
    options = parser.parse_args()
    if options.what == "weights":
        weights(options.data, options.out, options.seconds, options.whole)
    elif options.what == "train":
        given = options.speech, options.out, options.validation, options.most_steps
        train(*given, options.arms)
    else:
        page(options.out)


if __name__ == "__main__":
    main()
