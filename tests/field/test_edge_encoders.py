"""Encoders that are missing, broken, cut off, padded, shared.

Loading by the first rank, checkpoints as pickles, both kinds of attention, and hub names that are
not cached have their full tests in test_encoders.
"""

from __future__ import annotations

import gc
import socket
from pathlib import Path

import pytest
import torch
from checkpoints import LAYERS, random_model, write_checkpoint
from edge import Stub, leaky, scores_of, small, voices
from torch import nn

from torch_mapss import (
    MAPSS,
    MAPSSLoss,
    PerceptualMatch,
    PerceptualSeparation,
    SeparationLoss,
    load_encoder,
)
from torch_mapss.encoders import clear_encoder_cache, rank_zero_first

near = torch.testing.assert_close
pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small random checkpoints: group norm without, layer norm with input normalisation."""
    made = {}
    for name, (family, large) in {
        "group": ("hubert", False),
        "layer": ("wav2vec2", True),
        "wavlm": ("wavlm", False),
    }.items():
        made[name] = tmp_path_factory.mktemp(name)
        write_checkpoint(made[name], family, large)
    return made


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def blocked(*args, **kwargs):
        raise OSError("network is unreachable")

    monkeypatch.setattr(socket, "getaddrinfo", blocked)
    monkeypatch.setattr(socket.socket, "connect", blocked)


# --------------------------------------------------------------------------------- lengths


@pytest.mark.parametrize("kind", ["group", "layer", "mel", "waveform"])
def test_padded_items_score_as_if_alone(folders, kind):
    mapss = small(str(folders.get(kind, kind)))
    references = voices(2, seconds=0.4)
    estimates = leaky(references)
    lengths = [6400, 4100]
    for x in (references, estimates):
        x[1, :, 4100:] = 7.0  # padding may hold anything
    together = scores_of(mapss, estimates, references, lengths=lengths)
    for item, length in enumerate(lengths):
        alone = scores_of(mapss, estimates[[item], :, :length], references[[item], :, :length])
        near(together[:, [item]], alone, rtol=0, atol=1e-3)


def test_the_loss_of_padding_is_zero(folders):
    loss = MAPSSLoss(small(str(folders["layer"])), match_mode="log1p")
    references = voices(2, seconds=0.4)
    estimates = leaky(references).requires_grad_()
    loss(estimates, references, lengths=[6400, 4100]).backward()
    assert (estimates.grad[1, :, 4100:] == 0.0).all()
    assert estimates.grad[1, :, :4100].abs().sum() > 0.0


# --------------------------------------------------------------------------------- loading


@pytest.mark.usefixtures("no_network")
def test_a_local_folder_needs_no_network(folders):
    clear_encoder_cache()
    MAPSS(str(folders["wavlm"]))
    MAPSS(folders["wavlm"])


@pytest.mark.usefixtures("no_network")
def test_a_name_that_is_not_cached_tells_the_ways_out(tmp_path):
    for options in ({}, {"local_files_only": True}):
        with pytest.raises(OSError, match=r"(?s)wav2vec2-large-lv60.*local folder"):
            MAPSS(cache_dir=str(tmp_path), **options)


def test_the_first_rank_loads_first_only_among_several():
    with rank_zero_first():  # no barrier in a single process
        load_encoder("mel")


def test_weights_are_shared_and_released(folders):
    clear_encoder_cache()
    path = str(folders["group"])
    made = [PerceptualSeparation(small(path)), PerceptualMatch(small(path))]
    made.append(SeparationLoss(small(path)))
    pointers = {
        next(m.mapss.encoder.parameters()).data_ptr()
        for m in made  # type: ignore[union-attr]
    }
    assert len(pointers) == 1
    import weakref

    watched = weakref.ref(next(made[0].mapss.encoder.parameters()))
    del made
    gc.collect()
    assert watched() is None


# --------------------------------------------------------------------------------- layers


def test_layers_count_from_what_enters_the_first_block(folders):
    full = random_model("hubert", False).eval()
    wave = voices(seconds=0.3)[0]
    with torch.no_grad():
        states = full(wave, output_hidden_states=True).hidden_states
    for layer in (0, 2, LAYERS):
        encoder = load_encoder(str(folders["group"]), layer=layer)
        near(encoder(wave), states[layer], rtol=1e-4, atol=1e-5)
    for layer in (LAYERS + 1, -1):
        with pytest.raises(ValueError, match=rf"layer.*{layer}"):
            load_encoder(str(folders["group"]), layer=layer)
        with pytest.raises(ValueError, match=rf"layer.*{layer}"):
            MAPSS(str(folders["group"]), layer)


# --------------------------------------------------------------------------------- broken


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e37, 1e31])
def test_a_broken_encoder_is_an_error_and_no_score(value):
    class Broken(Stub):
        layer = 3

        def __call__(self, waveform):
            return super().__call__(waveform) * 0.0 + value

    references = voices()
    mapss = small(Broken())
    calls = (mapss, MAPSSLoss(mapss), PerceptualMatch(mapss).update)
    for call in calls:
        with pytest.raises(RuntimeError, match=r"stub.*layer 3.*dtype.*float32.*device cpu"):
            call(leaky(references), references)


# --------------------------------------------------------------------------------- training


class Separator(nn.Module):
    def __init__(self, folder: str) -> None:
        super().__init__()
        self.net = nn.Conv1d(2, 2, 1)
        self.loss = MAPSSLoss(small(folder), match_mode="log1p")

    def forward(self, mixture: torch.Tensor, references: torch.Tensor) -> torch.Tensor:
        return self.loss(self.net(mixture), references)


def test_a_model_that_holds_its_loss_trains_data_parallel(folders, tmp_path):
    model = Separator(str(folders["group"]))
    before = [p.clone() for p in model.loss.mapss.encoder.parameters()]
    assert {name.split(".")[0] for name, _ in model.named_parameters()} == {"net"}
    store = f"file://{tmp_path}/store"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(model)
        descent = torch.optim.SGD(model.parameters(), lr=0.1)
        references = voices(seconds=0.3)
        for _ in range(2):
            descent.zero_grad()
            wrapped(leaky(references), references).backward()
            descent.step()
    finally:
        torch.distributed.destroy_process_group()
    after = list(model.loss.mapss.encoder.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, after))
    assert all(p.grad is not None for p in model.net.parameters())
