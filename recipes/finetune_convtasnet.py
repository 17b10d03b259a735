"""Fine-tune torchaudio's Conv-TasNet with SI-SDR and the pair: clearance and fidelity.

    python recipes/finetune_convtasnet.py --speech FOLDER --out runs/finetune
    python recipes/finetune_convtasnet.py --speech FOLDER --out runs/mine --checkpoint model.pt
    python recipes/finetune_convtasnet.py --speech FOLDER --out runs/pipeline --pretrained

FOLDER holds one subfolder of recordings for each talker (or files named talker_1.wav, …). Weights
come from ``--checkpoint`` (a ``state_dict`` of ``torchaudio.models.ConvTasNet`` in the size of
``--size``) or from ``--pretrained`` (torchaudio's pipeline for Libri2Mix at 8 kHz, which is
downloaded). Without either, the network is first trained on FOLDER with SI-SDR alone
(``--warm-up``).

Every step draws new mixtures (dynamic mixing) without preparing anything: the segments of a pool
are distorted and encoded once, and ``bank.recombined`` joins the prepared sources of new mixtures.
The time of a step is printed, with and without that preparation. Validation before and after uses
torchmetrics. The plot and the weights are written to ``--out``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from command_line import Help

SIZES = {"base": (512, 128, 512, 8), "small": (128, 64, 128, 6), "tiny": (32, 16, 32, 2)}


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=Help)
    add = parser.add_argument
    add("--speech", required=True, help="folder of speech files")
    add("--out", required=True, help="folder for plot and weights")
    add("--checkpoint", help="state_dict of the network to start from")
    add("--pretrained", action="store_true", help="start from torchaudio's pipeline")
    add("--size", choices=list(SIZES), default="small", help="of the network; base is torchaudio's")
    add("--warm-up", type=int, default=300, help="steps with SI-SDR alone, if no weights are given")
    add("--steps", type=int, default=200, help="of fine-tuning")
    add("--batch", type=int, default=4, help="mixtures per step")
    add("--seconds", type=float, default=2.0, help="length of a mixture")
    add("--rate", type=float, default=3e-4, help="learning rate")
    add("--pool", type=int, default=32, help="prepared pairs of segments")
    add("--refresh", type=int, default=50, help="steps until a batch of them is renewed; 0: never")
    add("--test-mixtures", type=int, default=16, help="number of held-out mixtures")
    return argparse.Namespace(**vars(parser.parse_args(argv)), target=None, device="cpu")


if __name__ == "__main__":
    arguments()  # --help answers here, without the seconds that torch takes to load

import torch
import torchaudio
from speech_pool import RATE, Pool, fixed_references, load_voices, matched, split
from torch import Tensor, nn
from torchmetrics import MetricCollection
from torchmetrics.audio import PermutationInvariantTraining
from torchmetrics.functional.audio import scale_invariant_signal_distortion_ratio as si_sdr
from tqdm import tqdm

from torch_mapss import MAPSS, Clearance, DecompositionLoss, Fidelity, audio

WIDTHS = ("enc_num_feats", "msk_num_feats", "msk_num_hidden_feats", "msk_num_layers")


class Separator(nn.Module):
    """A Conv-TasNet at its own rate, for waveforms at 16 kHz: (B, T) -> (B, 2, T)."""

    def __init__(self, network: nn.Module, rate: int = RATE) -> None:
        super().__init__()
        self.network, self.rate = network, rate

    def forward(self, mixture: Tensor) -> Tensor:
        waves = self.network(audio.resample(mixture, RATE, self.rate).unsqueeze(1))
        waves = audio.resample(waves, self.rate, RATE)[..., : mixture.shape[-1]]
        return nn.functional.pad(waves, (0, mixture.shape[-1] - waves.shape[-1]))


def build(options: argparse.Namespace) -> Separator:
    """The network, with pretrained weights or those of a checkpoint if asked for."""
    if options.pretrained:
        pipeline = torchaudio.pipelines.CONVTASNET_BASE_LIBRI2MIX
        return Separator(pipeline.get_model(), pipeline.sample_rate)
    torch.manual_seed(0)
    widths = dict(zip(WIDTHS, SIZES[options.size]))
    model = Separator(torchaudio.models.ConvTasNet(num_sources=2, **widths))
    if options.checkpoint:
        model.network.load_state_dict(torch.load(options.checkpoint, weights_only=True))
    return model


def train(
    model: Separator, pool: Pool, loss: nn.Module | None, steps: int, title: str, rate: float
) -> tuple[list[float], float]:
    """Train; returns the loss of every step and the mean seconds of a step.

    Without ``loss``, SI-SDR alone is trained on.
    """
    optimizer = torch.optim.Adam(model.parameters(), rate)
    values, began = [], time.perf_counter()
    for _ in tqdm(range(steps), desc=title, mininterval=5.0):
        references, bank = pool.draw(-6.0, 6.0)
        estimates = model(references.sum(1))
        if loss is None:
            estimates = matched(estimates, references)
            value = -0.1 * audio.si_sdr(estimates, references).mean()
        else:
            value = loss(estimates, bank)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad()
        values.append(float(value.detach()))
    return values, (time.perf_counter() - began) / max(steps, 1)


class Validation:
    """Held-out mixtures, prepared once, and the metrics of torchmetrics."""

    def __init__(self, voices: dict[str, list[Tensor]], options: argparse.Namespace) -> None:
        self.references = fixed_references(voices, options.test_mixtures, options.seconds, seed=1)
        mapss = MAPSS("mel", measures="decomposition")
        self.bank = mapss.prepare(self.references)
        metrics = {"clearance": Clearance(mapss, pit="si_sdr")}
        metrics["fidelity"] = Fidelity(mapss, pit="si_sdr")
        self.metrics = MetricCollection(metrics)
        self.si_sdr = PermutationInvariantTraining(si_sdr)

    @torch.no_grad()
    def results(self, model: Separator) -> dict[str, float]:
        """SI-SDR in dB, clearance and fidelity."""
        estimates = model.eval()(self.references.sum(1))
        model.train()
        values = self.metrics(estimates, self.bank)
        values["si_sdr"] = self.si_sdr(estimates, self.references)
        self.metrics.reset()
        return {name: float(value) for name, value in values.items()}


def plot(losses: Sequence[float], results: dict[str, dict[str, float]], path: Path) -> None:
    """The training loss, and the validation results before and after."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.5), layout="constrained")
    axes = figure.subplots(1, 4, width_ratios=(3, 1, 1, 1))
    axes[0].plot(losses)
    axes[0].set(xlabel="step", ylabel="training loss")
    for axis, name in zip(axes[1:], ("si_sdr", "clearance", "fidelity")):
        axis.bar(list(results), [values[name] for values in results.values()], color=["0.6", "C0"])
        axis.set_title("SI-SDR [dB]" if name == "si_sdr" else name)
    figure.savefig(path, dpi=100)


def main(argv: Sequence[str] | None = None) -> dict[str, dict[str, float]]:
    """Fine-tune; returns validation results before and after."""
    options = arguments(argv)
    voices, test_voices = split(load_voices(options.speech))
    model, validation = build(options), Validation(test_voices, options)
    if not (options.checkpoint or options.pretrained):
        pool = Pool(voices, options, 0, None)
        train(model, pool, None, options.warm_up, "warm-up, SI-SDR", 3 * options.rate)
    results = {"before": validation.results(model)}
    loss = DecompositionLoss(encoder="mel", si_sdr=0.1, pit="si_sdr")
    began = time.perf_counter()
    pool = Pool(voices, options, 1, loss.prepare)
    preparing = time.perf_counter() - began
    losses, seconds = train(model, pool, loss, options.steps, "fine-tuning", options.rate)
    results["after"] = validation.results(model)
    print(
        f"{seconds:.2f} s a step, with renewals of the pool; preparing the pool beforehand took "
        f"{preparing:.1f} s, which is {preparing / max(options.steps, 1):.3f} s for each of "
        f"{options.steps} steps."
    )
    for name, values in results.items():
        print(f"{name}: " + ", ".join(f"{key} {value:.3f}" for key, value in values.items()))
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    plot(losses, results, folder / "finetuning.png")
    torch.save(model.network.state_dict(), folder / "convtasnet.pt")
    return results


if __name__ == "__main__":
    main()
