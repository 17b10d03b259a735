"""Make the two clips of the demo: two synthetic voices, 16 kHz, mono, 3 s.

Needs the speech synthesiser espeak-ng on the PATH (``apt-get install espeak-ng``)::

    python recipes/make_demo_voices.py torch_mapss/assets

The clips in the package were made with version 1.51.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile


def folder_of_clips() -> str:
    """The argument of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", help="to write the clips into")
    return str(parser.parse_args().folder)


if __name__ == "__main__":
    folder_of_clips()  # --help answers here, without the seconds that torch takes to load

import soundfile
import torch
from torch import Tensor

from torch_mapss.audio.files import load_audio
from torch_mapss.audio.loudness import normalize_loudness
from torch_mapss.audio.waveforms import resample, to_mono

RATE, SECONDS = 16_000, 3.0
VOICES = {
    "voice_low": (
        ["-v", "en-gb+m3", "-p", "30", "-s", "165"],
        "The river ran high all morning, and nobody in the village went near the old bridge.",
    ),
    "voice_high": (
        ["-v", "en-us+f2", "-p", "70", "-s", "175"],
        "My sister keeps seven yellow lamps in her window, one for every evening of the week.",
    ),
}


def speak(options: list[str], text: str) -> Tensor:
    """(T,) waveform of a sentence at ``RATE``, from its first sound on."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "speech.wav")
        subprocess.run(["espeak-ng", *options, "-w", path, text], check=True)
        samples, rate = load_audio(path)
    wave = resample(to_mono(samples), rate, RATE)
    loud = (wave.abs() > 0.02 * wave.abs().max()).nonzero()
    return wave[int(loud[0]) :]


def clip(options: list[str], text: str) -> Tensor:
    """The first ``SECONDS`` of a sentence, faded at the end, at -23 LUFS."""
    wave = speak(options, text)[: int(SECONDS * RATE)]
    fade = RATE // 50
    wave[-fade:] *= torch.linspace(1.0, 0.0, fade)
    return normalize_loudness(wave, RATE)


def main() -> None:
    """Speak, and write the clips."""
    folder = folder_of_clips()
    os.makedirs(folder, exist_ok=True)
    for name, (options, text) in VOICES.items():
        path = os.path.join(folder, f"{name}.flac")
        soundfile.write(path, clip(options, text).numpy(), RATE, subtype="PCM_16")
        print(path, os.path.getsize(path), "bytes")


if __name__ == "__main__":
    main()
