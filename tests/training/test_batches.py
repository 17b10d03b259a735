"""Reference banks within the batches of a data loader: what frameworks make of them."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from small_scorers import small
from torch import Tensor
from torch.utils._pytree import tree_flatten
from waveforms import impaired, voices

from torch_mapss import DecompositionLoss
from torch_mapss.pipeline.bank import ReferenceBank

LENGTHS = ([4800] * 3, [4800, 3200])  # samples of the mixtures of two batches


def joined_bank(loss: DecompositionLoss, references: Tensor, lengths: list[int]) -> ReferenceBank:
    banks = [loss.prepare(waves[:, :n]) for waves, n in zip(references, lengths)]
    return ReferenceBank.join(banks)


@pytest.fixture(scope="module")
def loss() -> DecompositionLoss:
    return DecompositionLoss(small(size=6))


@pytest.fixture(scope="module")
def batches(loss: DecompositionLoss) -> list[dict[str, Any]]:
    """Three mixtures of one length, and two of two lengths, each as a bank and as waveforms."""
    made = []
    for seed, lengths in enumerate(LENGTHS):
        references = voices(len(lengths), 2, 4800, seed)
        made.append({"bank": joined_bank(loss, references, lengths), "references": references})
    return made


def reordered(batch: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: batch[name] for name in names}


ORDERS = [("bank", "references"), ("references", "bank"), ("bank",)]


@pytest.mark.parametrize("names", ORDERS, ids="-".join)
def test_lightning_finds_the_size_of_a_batch_wherever_the_bank_stands(batches, names):
    data = pytest.importorskip("lightning.pytorch.utilities.data")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data.warning_cache.clear()
        sizes = [data.extract_batch_size(reordered(batch, names)) for batch in batches]
    assert sizes == [3, 2]


@pytest.mark.parametrize("precision", ["32-true", "bf16-true"])
@pytest.mark.parametrize("names", ORDERS[:2], ids="-".join)
def test_a_logged_loss_is_the_mean_over_mixtures(loss, batches, names, precision):
    pl = pytest.importorskip("lightning.pytorch")

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.gain = torch.nn.Parameter(torch.ones(()))

        def validation_step(self, batch: Any, batch_index: int) -> None:
            estimates = impaired(batch["references"].float())
            self.log("loss", loss(estimates, batch["bank"]), on_epoch=True)

    ordered = [reordered(batch, names) for batch in batches]
    loader = torch.utils.data.DataLoader(ordered, batch_size=None)  # type: ignore[arg-type]
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        logger=False,
        precision=precision,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        (logged,) = trainer.validate(Model(), loader, verbose=False)
    assert not [w for w in caught if "batch_size" in str(w.message)]
    if precision == "32-true":
        means = [float(loss(impaired(b["references"]), b["bank"])) for b in batches]
        assert logged["loss"] == pytest.approx((3 * means[0] + 2 * means[1]) / 5, abs=1e-6)


def test_torch_takes_a_bank_as_one_leaf(batches):
    leaves, _ = tree_flatten(batches[0])
    assert [type(leaf) for leaf in leaves] == [ReferenceBank, Tensor]


def test_accelerate_moves_a_bank_as_it_moves_tensors(batches):
    operations = pytest.importorskip("accelerate.utils.operations")
    moved = operations.send_to_device(batches[1], torch.device("meta"))
    assert moved["bank"].device.type == "meta"
    assert moved["bank"].lengths == (4800, 3200)
    assert operations.find_batch_size(reordered(batches[1], ORDERS[1])) == 2
