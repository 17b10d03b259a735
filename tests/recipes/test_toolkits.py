"""The scoring recipe for ESPnet's lists and SpeechBrain's tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from recipe_scripts import recipe
from separations import small_mapss, write_all
from waveforms import leaky, tones

from torch_mapss import evaluate
from torch_mapss.evaluation.records import rows_of
from torch_mapss.evaluation.results import load_results

scoring = recipe("toolkit_scoring")


def test_speechbrain_batches():
    mapss = small_mapss()
    targets = torch.stack([tones(2, 0.3, seed=k) for k in range(2)])
    made = torch.stack([leaky(truth, 0.3) for truth in targets])
    rows = scoring.speechbrain_scores(made.mT.requires_grad_(), targets.mT, 16_000, mapss)
    for row, estimate, truth in zip(rows, made, targets):
        report = evaluate(estimates=estimate.detach(), references=truth, mapss=mapss)
        assert row["mapss_ps"] == report.means()["ps"]


def lists(folder: Path, kind: str, waves: dict[str, torch.Tensor]) -> list[str]:
    """Kaldi lists, one per speaker."""
    paths = [folder / f"{kind}{speaker}.scp" for speaker in (0, 1)]
    for key, pair in waves.items():
        for scp, path in zip(paths, write_all(folder / kind / key, pair)):
            with scp.open("a", encoding="utf-8") as file:
                file.write(f"{key} {path}\n")
    return [str(path) for path in paths]


def test_espnet_lists(tmp_path):
    truth = {f"utt{k}": tones(2, 0.3, seed=k) for k in range(2)}
    made = {key: leaky(waves, 0.2) for key, waves in truth.items()}
    made["utt1"] = made["utt1"].flip(0)  # comes in the other order
    arguments = ["--ref-scp", *lists(tmp_path, "ref", truth)]
    arguments += ["--inf-scp", *lists(tmp_path, "inf", made)]
    arguments += ["--out", str(tmp_path / "out"), "--encoder", "mel", "--system", "net"]
    assert scoring.main([*arguments, "--bank-size", "5", "--quiet"]) == 0
    results = load_results(tmp_path / "out")
    assert results.systems == ("net",)
    assert [row["source_index"] for row in rows_of(results.scores)] == [0, 1, 1, 0]
    assert results.audio("utt0").sources == ("speaker 1", "speaker 2")
    assert min(row["ps"] for row in rows_of(results.scores)) > 0.7  # attributed rightly


def test_lists_that_do_not_fit(tmp_path):
    path = tmp_path / "a.scp"
    path.write_text("u1 sox in.wav -t wav - |\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="expected KEY PATH"):
        scoring.read_scp(path)
    with pytest.raises(SystemExit, match=r"lacks 1 of the keys, e\.g\. 'u2'"):
        scoring.manifest_of([{"u1": "a", "u2": "b"}, {"u1": "a"}], [{}, {}], "x")
