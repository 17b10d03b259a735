"""Metrics and curriculum inside Lightning."""

from __future__ import annotations

import csv
import importlib
import itertools
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from recipe_scripts import recipe
from stub_scorers import SAMPLES, leaking_pair, stub_scorer
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MetricCollection

pl = pytest.importorskip("lightning.pytorch")

from torch_mapss import FrameTrigger, PerceptualMatch, PerceptualSeparation, SourceScores  # noqa: E402
from torch_mapss.metrics import perceptual_match, perceptual_separation  # noqa: E402
from torch_mapss.training.curriculum import Fraction, Quantile  # noqa: E402
from torch_mapss.training.lightning import CurriculumCallback  # noqa: E402

QUIET = {"accelerator": "cpu", "devices": 1, "log_every_n_steps": 1}
QUIET |= {"enable_progress_bar": False, "enable_model_summary": False}
pytestmark = pytest.mark.filterwarnings("ignore")


def column(path: Path, name: str) -> list[float]:
    """The values logged under a name, in order."""
    with path.open(newline="") as file:
        return [float(row[name]) for row in csv.DictReader(file) if row.get(name)]


class Model(pl.LightningModule):
    """One gain, so that a fit is quick; keeps what it is told."""

    def __init__(self, mapss: Any, **returned: Any) -> None:
        super().__init__()
        self.mapss, self.returned = mapss, returned
        self.gain = torch.nn.Parameter(torch.ones(()))
        self.metrics = MetricCollection(
            {"ps": PerceptualSeparation(mapss), "pm": PerceptualMatch(mapss)}, prefix="val/"
        )
        self.single = torch.nn.ModuleDict({"ps": PerceptualSeparation(mapss)})
        self.stages: list[int] = []

    def training_step(self, batch: Any, index: int) -> Tensor:
        return (self.gain * batch[0] - batch[1]).square().mean()

    def validation_step(self, batch: Any, index: int) -> Any:
        preds, target = batch
        self.metrics.update(preds, target)
        self.single["ps"].update(preds, target)
        self.log_dict(self.metrics)
        self.log("single", self.single["ps"])
        return {"preds": preds, "target": target, **self.returned}

    def on_curriculum_stage(self, stage: int) -> None:
        self.stages.append(stage)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def loader(preds: Tensor, target: Tensor, batch: int = 2) -> DataLoader:
    return DataLoader(TensorDataset(preds, target), batch_size=batch)


def fit(
    model: Any,
    callback: Any,
    epochs: int = 2,
    data: Any = None,
    checkpoint: Path | None = None,
    **options: Any,
) -> Any:
    data = data or loader(*leaking_pair(3))
    options = {"logger": False, "enable_checkpointing": False, "num_sanity_val_steps": 1} | options
    trainer = pl.Trainer(max_epochs=epochs, callbacks=[callback], **QUIET, **options)
    trainer.fit(model, data, data, ckpt_path=checkpoint)
    return trainer


def trigger(level: float = 0.0, **options: Any) -> FrameTrigger:
    return FrameTrigger(Quantile("ps", 0.5, above=level), **options)


def test_logged_metric_objects_are_the_mean_over_all_items(tmp_path):
    mapss = stub_scorer()
    preds, target = leaking_pair(3)
    logger = pl.loggers.CSVLogger(tmp_path)
    rules = Quantile("ps", 0.5, above=1.0), Fraction("pm", 0.5, above=1.0)
    callback = CurriculumCallback(FrameTrigger(*rules))
    fit(Model(mapss), callback, data=loader(preds, target), logger=logger)
    log = Path(logger.log_dir) / "metrics.csv"
    for name, function in (("ps", perceptual_separation), ("pm", perceptual_match)):
        expected = float(function(preds, target, mapss).mean())
        assert column(log, f"val/{name}") == pytest.approx([expected] * 2, abs=1e-6)
    assert column(log, "single") == column(log, "val/ps")
    frames = mapss(preds, target)
    median = torch.quantile(frames.ps[frames.active], 0.5).item()
    assert column(log, "curriculum/50_quantile_of_PS") == pytest.approx([median] * 2)
    share = (frames.pm[frames.active] > 0.5).float().mean().item()
    assert column(log, "curriculum/share_of_frames_with_PM_0.5") == pytest.approx([share] * 2)
    assert column(log, "curriculum/stage") == [0.0, 0.0]


def test_all_scores_of_a_pass_are_logged_from_one_metric(tmp_path):
    class Logging(Model):
        def __init__(self, mapss: Any) -> None:
            super().__init__(mapss)
            self.scores = SourceScores(mapss)

        def validation_step(self, batch: Any, index: int) -> None:
            self.scores.update(*batch)

        def on_validation_epoch_end(self) -> None:
            means = self.scores.compute()
            self.log_dict({f"val/{name}": value for name, value in means.items()})
            self.scores.reset()

    mapss = stub_scorer()
    preds, target = leaking_pair(3)
    logger = pl.loggers.CSVLogger(tmp_path)
    fit(Logging(mapss), pl.Callback(), data=loader(preds, target), logger=logger)
    log = Path(logger.log_dir) / "metrics.csv"
    for name, value in SourceScores(mapss)(preds, target).items():
        if name != "bleed_db":  # no source pauses
            assert column(log, f"val/{name}") == pytest.approx([float(value)] * 2, rel=1e-5)


def test_the_curriculum_fires_and_sets_the_stage():
    model = Model(stub_scorer())
    callback = CurriculumCallback(trigger(patience=2))
    trainer = fit(model, callback, epochs=4)
    trainer.validate(model, loader(*leaking_pair(2)), verbose=False)  # which is no epoch
    assert callback.trigger.epoch == 4
    assert [event.epoch for event in callback.events] == [2, 4]
    assert callback.stage == 2
    assert [stage for stage, _ in itertools.groupby(model.stages)] == [0, 1, 2]


def test_an_undefined_epoch_is_logged_and_ignored(tmp_path):
    preds, target = leaking_pair(2)
    logger = pl.loggers.CSVLogger(tmp_path)
    callback = CurriculumCallback(trigger())
    fit(Model(stub_scorer()), callback, 1, loader(preds, 0.0 * target), logger=logger)
    log = Path(logger.log_dir) / "metrics.csv"
    for name in ("val/ps", "val/pm", "curriculum/50_quantile_of_PS"):
        (value,) = column(log, name)
        assert math.isnan(value)
    assert callback.stage == 0


def test_resuming_with_another_level_names_the_difference_and_remedy(tmp_path):
    checkpoint = tmp_path / "first.ckpt"
    trainer = fit(Model(stub_scorer()), CurriculumCallback(trigger(0.1)))
    trainer.save_checkpoint(checkpoint)
    stricter = CurriculumCallback(trigger(0.97))
    with pytest.raises(ValueError, match=r"above=0\.1.*above=0\.97.*prefix=") as refusal:
        fit(Model(stub_scorer()), stricter, 3, checkpoint=checkpoint)
    assert "patience" not in str(refusal.value)
    anew = CurriculumCallback(trigger(0.97), prefix="curriculum_2/")
    trainer = fit(Model(stub_scorer()), anew, 3, checkpoint=checkpoint)
    assert (anew.stage, anew.trigger.epoch) == (0, 1)  # of the third epoch alone
    assert trainer.current_epoch == 3


@pytest.mark.skipif(not torch.distributed.is_available(), reason="no torch.distributed")
def test_no_warning_about_values_equal_on_all_processes(monkeypatch):
    result = importlib.import_module("lightning.pytorch.trainer.connectors.logger_connector.result")
    messages = []
    monkeypatch.setattr(result.warning_cache, "warn", lambda text, **_: messages.append(text))
    try:
        fit(Model(stub_scorer()), CurriculumCallback(trigger()), 1, strategy="ddp")
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    assert not [text for text in messages if "curriculum" in text]


def test_lengths_any_order_all_measures_and_a_hook_of_your_own():
    seen, mapss = [], stub_scorer()
    preds, target = leaking_pair(2)
    target[:, 0, 2000:] = 0.0
    levels = {"ps": 0.0, "clearance": 0.0, "fidelity": 0.0, "bleed_db": -200.0}
    rule = FrameTrigger(*[Quantile(name, 0.5, above=level) for name, level in levels.items()])
    options = {"pit": "si_sdr", "on_stage": lambda module, stage: seen.append(stage)}
    callback = CurriculumCallback(rule, mapss, **options)
    model = Model(mapss, lengths=torch.tensor([SAMPLES, 2400]))
    model.mapss = None
    fit(model, callback, 1, loader(preds.flip(1), target))
    assert (seen[0], seen[-1]) == (0, 1)
    scores = mapss(preds, target, lengths=[SAMPLES, 2400])
    counts = {name: int(scores.defined(name).sum()) for name in levels}
    assert callback.events[0].frames == counts
    assert min(counts.values()) > 0
    median = torch.quantile(scores.ps[scores.active], 0.5)
    assert callback.events[0].statistics["50 % quantile of PS"] == pytest.approx(float(median))


@pytest.mark.parametrize(
    ("rule", "options", "message"),
    [
        (
            trigger(),
            {"attributed": (0, 1), "pit": "si_sdr"},
            "pit='si_sdr' searches for the source",
        ),
        ("ps", {}, "FrameTrigger, got str"),
        (trigger(), {"mapss": "mel"}, "mapss must be"),
        (trigger(), {"attributed": "ab"}, "attributed must be"),
    ],
)
def test_settings_that_make_no_sense(rule, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        CurriculumCallback(rule, **options)


@pytest.mark.parametrize("missing", ["outputs", "mapss", "hook"])
def test_missing_parts_of_a_module_are_named(missing):
    model, callback = Model(stub_scorer()), CurriculumCallback(trigger())
    step = lambda batch, batch_idx: batch[0].mean()  # noqa: E731
    name, value, expected = {
        "outputs": ("validation_step", step, "with 'preds' and 'tar"),
        "mapss": ("mapss", None, r"Model\.mapss should be a torch_mapss\.MAPSS, got NoneType"),
        "hook": ("on_curriculum_stage", None, r"Model has no method on_curriculum_stage\(stage\)"),
    }[missing]
    setattr(model, name, value)
    with pytest.raises(TypeError, match=expected):
        fit(model, callback, 1)
    assert missing == "hook" or model.stages == [0]  # not an epoch has been trained


def test_lightning_missing_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    for name in ("torch_mapss.lightning", "torch_mapss.training.lightning"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ImportError, match="pip install lightning"):
        importlib.import_module("torch_mapss.lightning")


SIZES = {"items": 4, "batch": 2, "seconds": 0.4, "level": 0, "patience": 2}
SMALL = [text for name, value in SIZES.items() for text in (f"--{name}", str(value))]


@pytest.mark.slow
def test_recipe_logs_fires_and_resumes(tmp_path):
    module = recipe("lightning_separation")
    trainer = module.main([*SMALL, "--epochs", "2", "--out", str(tmp_path / "a")])
    log = tmp_path / "a/log/version_0/metrics.csv"
    for name in ("clearance", "fidelity", "ps", "pm", "log_pm"):
        low, high = (-math.inf, 0.0) if name == "log_pm" else (0.0, 1.0)
        values = column(log, f"val/{name}")
        assert len(values) == 2
        assert all(low <= value <= high for value in values)
    assert column(log, "curriculum/stage") == [0.0, 1.0]
    assert column(log, "curriculum/held") == [1.0, 0.0]
    assert trainer.model.train_set.stage == 1
    assert trainer.model.loss.mapss is trainer.model.mapss
    # In the middle: one epoch has held, one more is needed. A fresh trigger would need two.
    options = [*SMALL, "--out", str(tmp_path / "b"), "--resume"]
    resumed = module.main([*options, str(tmp_path / "a/epoch=0.ckpt"), "--epochs", "2"])
    log = tmp_path / "b/log/version_0/metrics.csv"
    assert column(log, "curriculum/stage") == [1.0]
    assert [event.epoch for event in resumed.callbacks[0].events] == [2]
    # After a firing: the stage is set before the first step.
    later = module.main([*options, str(tmp_path / "a/epoch=1.ckpt"), "--epochs", "2"])
    assert later.model.train_set.stage == 1
    assert [event.epoch for event in later.callbacks[0].events] == [2]
    weights = torch.load(tmp_path / "a/last.ckpt", weights_only=True)["state_dict"]
    assert all(name.startswith("network.") for name in weights)


@pytest.mark.parametrize("precision", ["bf16-true", "bf16-mixed"])
def test_half_precision_rounds_no_monitored_score(precision):
    """Lightning rounds what comes in; what comes out is the score of that, to the last bit."""
    mapss, (preds, target) = stub_scorer(), leaking_pair(4)
    if precision == "bf16-true":
        preds, target = preds.bfloat16(), target.bfloat16()
    expected = float(PerceptualSeparation(mapss)(preds, target))
    callback, model = CurriculumCallback(trigger(), mapss), Model(mapss)
    trainer = fit(model, callback, 1, loader(preds, target, batch=4), precision=precision)
    for name in ("val/ps", "single"):
        value = trainer.callback_metrics[name]
        assert (float(value), value.dtype) == (expected, torch.float32)
    assert expected != float(torch.tensor(expected).bfloat16())
    assert model.single["ps"].item_sum.dtype == torch.float64
