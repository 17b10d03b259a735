"""Encoders of equal settings share frozen weights; copies, pickles and devices."""

from __future__ import annotations

import copy
import gc
import json
import os
import pickle
import shutil
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from checkpoints import edit_weights, first_weight
from torch import nn
from waveforms import noise

from torch_mapss.encoders import (
    MelEncoder,
    WaveformEncoder,
    clear_encoder_cache,
    load_encoder,
)

SAMPLES = 4000


def test_equal_settings_share_weights_that_go_with_the_last_encoder(folder):
    left, two = (load_encoder(folder("hubert", seed=5), layer=2) for _ in range(2))
    assert left is not two
    assert first_weight(left) is first_weight(two)
    for variant in ({"layer": 1}, {"layer": 2, "dtype": "float64"}):
        assert load_encoder(folder("hubert", seed=5), **variant).model is not left.model
    weights = weakref.ref(left.model)
    del left
    gc.collect()
    assert weights() is two.model
    clear_encoder_cache()
    assert load_encoder(folder("hubert", seed=5), layer=2).model is not two.model
    del two
    gc.collect()
    assert weights() is None


def test_other_weights_or_settings_are_another_model(own_folder):
    path = own_folder("hubert")
    variant = path.with_name("other")
    shutil.copytree(path, variant, copy_function=os.symlink)
    config = json.loads((path / "config.json").read_text())
    (variant / "config.json").unlink()
    (variant / "config.json").write_text(json.dumps({**config, "num_attention_heads": 1}))
    left, two = load_encoder(path, layer=2), load_encoder(variant, layer=2)
    assert left.model is not two.model
    assert not torch.equal(left(noise(1, SAMPLES)), two(noise(1, SAMPLES)))
    edit_weights(path, lambda t: t["feature_projection.projection.weight"].mul_(2))
    assert load_encoder(path, layer=2).model is not left.model


def test_moving_or_casting_one_encoder_leaves_the_others_alone(folder):
    left, two, three = (load_encoder(folder(), layer=2) for _ in range(3))
    expected = two(noise(1, SAMPLES))
    nn.ModuleList([left]).to("meta")
    assert (left.device.type, first_weight(left).device.type) == ("meta", "meta")
    assert (two.device.type, first_weight(two).device.type) == ("cpu", "cpu")
    nn.ModuleList([three]).half().to(torch.bfloat16).double()  # precision is a setting
    assert first_weight(three).dtype == torch.float32
    assert torch.equal(three(noise(1, SAMPLES)), expected)
    assert load_encoder(folder(), layer=2).to("meta").model is left.model


def test_state_dict_holds_no_frozen_weights(folder):
    class Model(nn.Module):
        def __init__(self, path: Path) -> None:
            super().__init__()
            self.head = nn.Linear(2, 2)
            self.encoder = load_encoder(path, layer=2)

    model, variant = Model(folder()), Model(folder("hubert", seed=7))
    expected = variant.encoder(noise(1, SAMPLES))
    assert set(model.state_dict()) == {"head.weight", "head.bias"}
    variant.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(variant.head.weight, model.head.weight)
    foreign = {f"encoder.model.{k}": v for k, v in model.encoder.model.state_dict().items()}
    variant.load_state_dict({**model.state_dict(), **foreign}, strict=True)
    assert torch.equal(variant.encoder(noise(1, SAMPLES)), expected)


def test_copies_share_and_pickles_reload(folder):
    encoder = load_encoder(folder(), layer=1)
    encoder.memory_budget = 12_345
    encoder(noise(1, SAMPLES).requires_grad_())
    clone = copy.deepcopy(nn.ModuleList([encoder]))[0]
    content = pickle.dumps(encoder)
    assert len(content) < 3000
    for variant in (clone, copy.copy(encoder), pickle.loads(content)):
        assert first_weight(variant) is first_weight(encoder)
        assert (variant.layer, variant.memory_budget) == (1, 12_345)
    clone.to("meta")
    assert encoder.device.type == "cpu"
    for encoder in (MelEncoder(40, context=1).half(), WaveformEncoder().half()):
        expected = encoder(noise(1, SAMPLES))
        for variant in (copy.deepcopy(encoder), pickle.loads(pickle.dumps(encoder))):
            assert torch.equal(variant(noise(1, SAMPLES)), expected)


@pytest.mark.slow
def test_a_pickle_works_in_a_new_process(folder, tmp_path):
    encoder, wave = load_encoder(folder(), layer=1), noise(1, SAMPLES)
    (tmp_path / "all").write_bytes(pickle.dumps((encoder, wave, encoder(wave))))
    code = f"""
import pickle
encoder, wave, expected = pickle.load(open({str(tmp_path / "all")!r}, "rb"))
assert (encoder(wave) - expected).abs().max() < 1e-5
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
