"""What a mixture takes in memory: each waveform once, whatever the systems are compared with."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from separations import python, small_mapss, write_all
from waveforms import RATE, leaky, tones

from torch_mapss.evaluation.manifest import Mixture
from torch_mapss.evaluation.score import Scorer
from torch_mapss.evaluation.score_mixture import load_mixture

SOURCES = 3


def mixture_on_disk(folder: Path, seconds: float, systems: int, rate: int = RATE) -> Mixture:
    truth = tones(SOURCES, seconds, rate=rate)
    references = write_all(folder / "truth", truth)
    estimates = {
        f"s{number}": tuple(write_all(folder / f"s{number}", leaky(truth, 0.1 * (number + 1))))
        for number in range(systems)
    }
    return Mixture("m", tuple(references), estimates, "")


def bytes_of_tensors() -> int:
    """Of all tensors that are alive, memory that several share counted once."""
    gc.collect()
    storages = {}
    for tensor in gc.get_objects():
        if type(tensor) is not torch.Tensor or tensor.device.type != "cpu":
            continue
        if tensor.layout is torch.strided:  # other tests leave sparse ones, which have no storage
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


@pytest.mark.parametrize("systems", [1, 3])
def test_a_mixture_that_was_read_holds_each_waveform_once(systems, tmp_path):
    """Growth from one length to another: 4 bytes a sample of every reference and estimate."""
    scorer = Scorer.of({"measures": "decomposition"}, mapss=small_mapss(measures="decomposition"))
    bytes_by_seconds = {}
    for seconds in (1.0, 3.0):
        mixture = mixture_on_disk(tmp_path / str(seconds), seconds, systems)
        before = bytes_of_tensors()
        loaded = load_mixture(scorer, mixture)
        bytes_by_seconds[seconds] = bytes_of_tensors() - before
        assert not loaded.failures
        del loaded
    waveforms = SOURCES * (1 + systems)
    assert bytes_by_seconds[3.0] - bytes_by_seconds[1.0] == 4 * waveforms * int(2.0 * RATE)


PEAK = """
import sys
from pathlib import Path
import torch
from test_memory import mixture_on_disk
from separations import small_mapss
from torch_mapss.evaluation.score import Scorer
from torch_mapss.evaluation.score_mixture import load_mixture

def status(field):
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(lines[field].split()[0]) // 1024

torch.set_num_threads(1)
folder, seconds, systems = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
scorer = Scorer.of({"measures": "decomposition"}, mapss=small_mapss(measures="decomposition"))
load_mixture(scorer, mixture_on_disk(folder / "short", 2.0, 1))
mixture = mixture_on_disk(folder / "long", seconds, systems)
open("/proc/self/clear_refs", "w").write("5")
before = status("VmRSS")
load_mixture(scorer, mixture)
print(status("VmHWM") - before)
"""


@pytest.mark.slow
def test_reading_a_long_mixture_takes_little_beside_its_waveforms(tmp_path):
    """Peak above the start, in MiB: copies in float64 and spectra are of one waveform at a time."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("peaks of memory are read from /proc")
    # Large blocks go back to the system when they are freed, so that the peak is what is in use.
    changes = {"MALLOC_MMAP_THRESHOLD_": "1000000"}
    changes |= {"PYTHONPATH": f"{Path(__file__).parent}:{Path(__file__).parents[1]}"}
    peaks = {}
    for seconds, systems in ((30, 1), (120, 1), (120, 4)):
        arguments = ("-c", PEAK, str(tmp_path / f"{seconds}-{systems}"), str(seconds), str(systems))
        peaks[seconds, systems] = int(python(*arguments, changes=changes))
    waveform = 1.5 * 4 * 60 * RATE / 2**20  # of 90 s
    # References and estimates; float64 copies and spectra of one pair.
    assert peaks[120, 1] - peaks[30, 1] < (2 * SOURCES + 42) * waveform
    assert peaks[120, 4] - peaks[120, 1] < 4 / 3 * (3 * SOURCES + 6) * waveform
