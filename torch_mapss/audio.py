"""From files to level-matched mono waveforms on an encoder's frame grid.

Reading and channels
    `load_audio`, `as_waveform`, `to_mono`, `resample`.
Loudness, ITU-R BS.1770-4 with gating, batched and differentiable
    `integrated_loudness`, `normalize_loudness`, `is_silent`.
Frames of an encoder: receptive field and hop in samples, nothing padded
    `frame_count`, `frame_times`, `frame_signal`, `frame_rms`, `source_activity`.
Which estimate belongs to which reference
    `si_sdr`, `match_sources`.

Level rules, in one place:

* A signal whose peak is below `SILENCE_PEAK` is *silent*: its loudness is -inf, normalising returns
  it as it came, with zero gradient, and it is active in no frame.
* Where no gating block is left (shorter than one block of 400 ms, or everything below -70 LUFS) the
  loudness is that of the whole signal, ungated.
* `normalize_loudness` puts the gates where the *output* will be, so that scaling the input by any
  factor changes nothing, a signal 100 dB down included.
"""

from __future__ import annotations

import functools
import math
import operator
import os
import struct
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from torch_mapss import _checks
from torch_mapss._devices import back, wide

__all__ = [
    "SILENCE_PEAK",
    "as_waveform",
    "frame_count",
    "frame_rms",
    "frame_signal",
    "frame_times",
    "integrated_loudness",
    "is_silent",
    "load_audio",
    "match_sources",
    "normalize_loudness",
    "resample",
    "si_sdr",
    "source_activity",
    "to_mono",
]

#: Peaks below this (-600 dBFS) count as digital silence. Nothing recorded comes near it; it keeps
#: 1 / peak, and with it every gradient, finite in float32.
SILENCE_PEAK = 1e-30

# ---------------------------------------------------------------------------------------------
# Input: dtypes, arguments
# ---------------------------------------------------------------------------------------------

# Zero point and full scale of the integer sample formats audio files use.
_INTEGER_FORMATS = {
    torch.uint8: (128, 2.0**7),
    torch.int8: (0, 2.0**7),
    torch.int16: (0, 2.0**15),
    torch.int32: (0, 2.0**31),
}


def as_waveform(x: Tensor | np.ndarray, name: str = "waveform") -> Tensor:
    """A floating-point waveform tensor, whatever array it came as.

    Args:
        x: `(..., T)` tensor or NumPy array. float32 and float64 are kept; float16 and bfloat16
            become float32; uint8, int8, int16 and int32 are read as PCM samples and scaled to
            [-1, 1).
        name: what the array is, for the error text.

    Returns:
        `(..., T)` float32 or float64, on the device of `x`; a tensor keeps its graph.

    Raises:
        TypeError: `x` is no array, or its dtype is no sample format (complex, bool, int64, ...).
        ValueError: `x` has no time axis.
    """
    if isinstance(x, np.ndarray):
        x = _from_numpy(x, name)
    if not isinstance(x, Tensor):
        raise TypeError(
            f"{name} must be a torch tensor or a NumPy array of samples, got {type(x).__name__}. "
            "Read files with torch_mapss.audio.load_audio(path); wrap lists in torch.tensor(...)."
        )
    _checks.check_plain(x, name)
    if x.ndim == 0:
        raise ValueError(
            f"{name} must have a time axis (..., T), got a single number. "
            "Pass the samples, for instance of shape (sources, T)."
        )
    if x.dtype in _INTEGER_FORMATS:
        zero, scale = _INTEGER_FORMATS[x.dtype]
        return (x.to(torch.float32) - zero) / scale
    return _floating(x, name)


def _from_numpy(x: np.ndarray, name: str) -> Tensor:
    """A tensor of a NumPy array: any byte order, stride or write protection."""
    if x.dtype.kind not in "fiubc":
        raise TypeError(
            f"{name} must hold numbers, got a NumPy array of dtype {x.dtype}. "
            "Pass float32 samples in [-1, 1] or 16-bit integers."
        )
    if x.dtype.kind == "f" and x.dtype.itemsize > 8:
        x = x.astype(np.float64)
    x = np.array(
        x, dtype=x.dtype.newbyteorder("=")
    )  # copies: torch wants writable, forward strides
    return torch.from_numpy(x)


def _floating(wave: Tensor, name: str) -> Tensor:
    """float32 and float64 as they are, half precision as float32, anything else refused."""
    if not isinstance(wave, Tensor):
        raise TypeError(
            f"{name} must be a torch tensor, got {type(wave).__name__}. "
            "Convert it with torch_mapss.audio.as_waveform(x)."
        )
    if wave.dtype in (torch.float32, torch.float64):
        return wave
    if wave.dtype in (torch.float16, torch.bfloat16):
        return _checks.lifted(wave)
    raise TypeError(
        f"{name} must hold floating-point samples, got {wave.dtype}, which has no agreed full "
        "scale as audio. Convert to float32 in [-1, 1] first: 16-bit PCM is x / 32768."
    )


def _with_samples(wave: Tensor, name: str) -> Tensor:
    """The checked floating waveform; refuses one without samples."""
    wave = _floating(wave, name)
    if wave.ndim == 0 or wave.shape[-1] == 0:
        raise ValueError(
            f"{name} must have samples along its last axis (..., T), got shape "
            f"{tuple(wave.shape)}. An empty signal has no level; drop it from the list."
        )
    return wave


def _integer(value: Any, name: str, least: int) -> int:
    """`value` as an int of at least `least`; a float is refused even where it is whole."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(
            f"{name} must be a whole number, got {value!r} of type {type(value).__name__}. "
            f"Pass an int, such as int(round({name}))."
        )
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}. Pass a larger value.")
    return number


# ---------------------------------------------------------------------------------------------
# Files
# ---------------------------------------------------------------------------------------------


def load_audio(path: str | os.PathLike[str]) -> tuple[Tensor, int]:
    """Read an audio file: WAV, FLAC, OGG, MP3 and whatever else libsndfile reads.

    Args:
        path: the file.

    Returns:
        The samples, `(C, T)` float32 on the CPU, full scale 1, at the file's own rate; and that
        rate in Hz.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file cannot be read or decoded, is a folder, is cut short (noticed for WAV
            and its kin, AIFF, AU, FLAC, OGG, and MP3 that states its length), has no samples, or
            has NaN or infinite ones.
        ImportError: the `soundfile` package is missing.
    """
    path = os.fspath(path)
    _check_file(path)
    soundfile = _import_soundfile()
    try:
        # An open file rather than its name: the name may not be encodable in the C locale.
        with open(path, "rb") as stream:
            _check_complete(stream, path)
            with soundfile.SoundFile(stream) as file:
                samples = file.read(dtype="float32", always_2d=True)
                expected, rate = file.frames, int(file.samplerate)
                exact = file.format != "MP3" or _has_mp3_length(stream)
    except PermissionError as error:
        raise ValueError(
            f"{path!r} cannot be read: permission denied. Change its mode, or run as its owner."
        ) from error
    except (soundfile.SoundFileError, OSError, TypeError, RuntimeError) as error:
        # TypeError is how soundfile refuses headerless files.
        reason = getattr(error, "error_string", f"{error}.")
        raise ValueError(
            f"cannot decode {path!r} as audio: {reason} The file is damaged or in a format that "
            "libsndfile does not read; convert it to WAV or FLAC."
        ) from error
    _check_samples(samples, expected if exact else 0, path)
    return torch.from_numpy(np.ascontiguousarray(samples.T)), rate


def _import_soundfile() -> Any:
    try:
        import soundfile
    except Exception as error:  # OSError: the package is there, libsndfile is not
        raise ImportError(
            "reading audio files needs soundfile (with libsndfile): pip install soundfile"
        ) from error
    return soundfile


def _check_file(path: str) -> None:
    if not os.path.exists(path):
        raise FileNotFoundError(
            f"expected an audio file at {path!r}, found nothing there. Check the spelling; "
            f"relative paths start from {os.getcwd()!r}."
        )
    if os.path.isdir(path):
        raise ValueError(
            f"expected an audio file, got the folder {path!r}. Name the files inside it one by one."
        )
    if os.path.isfile(path) and os.path.getsize(path) == 0:
        raise ValueError(
            f"expected an audio file, but {path!r} is empty (0 bytes): its writing or copying "
            "failed. Write it again."
        )


def _check_complete(stream: IO[bytes], path: str) -> None:
    """Refuse files that were cut short where libsndfile would read what is left in silence."""
    missing = _missing_bytes(stream)
    if missing > 1:  # 1: some writers count the pad byte of an odd chunk and do not write it
        raise ValueError(
            f"{path!r} is truncated: its header announces {missing} more bytes of samples than the "
            "file holds, so its end is lost. Copy or write the file again."
        )
    if _is_cut_ogg(stream):
        raise ValueError(
            f"{path!r} is truncated: an OGG stream must close with a last page, and this one has "
            "none, so its end is lost. Copy or write the file again."
        )
    stream.seek(0)


# What a writer to a pipe announces, which cannot know the length: (nearly) the largest one.
_UNKNOWN_LENGTH = 0x7FFF0000


def _missing_bytes(stream: IO[bytes]) -> int:
    """Bytes that a header of WAV, RF64, W64, AIFF or AU announces beyond the end of the file."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    header = stream.read(24)
    if header[:4] in (b"RIFF", b"RF64") and header[8:12] == b"WAVE":
        end = _end_of_wav_data(stream)
    elif header[:16] == b"riff\x2e\x91\xcf\x11\xa5\xd6\x28\xdb\x04\xc1\x00\x00":  # W64
        end = int.from_bytes(header[16:24], "little")
    elif header[:4] == b"FORM":
        end = 8 + int.from_bytes(header[4:8], "big")
    elif header[:4] == b".snd":
        start, length = struct.unpack(">II", header[4:12])
        end = start + length if length < _UNKNOWN_LENGTH else 0
    else:
        end = 0
    return max(end - size, 0)


def _end_of_wav_data(stream: IO[bytes]) -> int:
    """Where the `data` chunk should end; 0 if that is not told. RF64 tells it in another chunk."""
    stream.seek(12)
    long = 0
    while len(chunk := stream.read(8)) == 8:
        name, length = struct.unpack("<4sI", chunk)
        start = stream.tell()
        if name == b"ds64":
            long = int.from_bytes(stream.read(16)[8:], "little")
        if name == b"data":
            if length == 0xFFFFFFFF and long:
                return start + long
            return start + length if length < _UNKNOWN_LENGTH else 0
        stream.seek(start + length + length % 2)
    return 0


def _is_cut_ogg(stream: IO[bytes]) -> bool:
    """Whether an OGG file lacks a complete page flagged as the last of its stream (RFC 3533, 6)."""
    stream.seek(0)
    if stream.read(4) != b"OggS":
        return False
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(size - 65307, 0))  # the largest page
    tail = stream.read()
    page = tail[max(tail.rfind(b"OggS"), 0) :]
    if len(page) < 27:
        return True
    flags, segments = page[5], page[26]
    return not flags & 4 or len(page) < 27 + segments + sum(page[27 : 27 + segments])


def _has_mp3_length(stream: IO[bytes]) -> bool:
    """Whether an MP3 file states its length (Xing or Info frame); else libsndfile only guesses it.

    The guess takes the first frame's bit rate for the whole file and can be far too long.
    """
    stream.seek(0)
    head = stream.read(65536)
    return b"Xing" in head or b"Info" in head


def _check_samples(samples: np.ndarray, expected: int, path: str) -> None:
    if len(samples) < expected:
        raise ValueError(
            f"{path!r} is truncated: its header announces {expected} samples per channel and only "
            f"{len(samples)} could be decoded. Copy or write the file again."
        )
    if len(samples) == 0:
        raise ValueError(
            f"expected samples in {path!r}, but it holds none (a header only). Write it again."
        )
    bad = np.argwhere(~np.isfinite(samples))
    if len(bad):
        index, channel = bad[0]
        raise ValueError(
            f"{path!r} holds {len(bad)} samples that are NaN or infinite, the first at sample "
            f"{index} of channel {channel}. Scores of it would mean nothing; repair or re-export "
            "the file."
        )


# ---------------------------------------------------------------------------------------------
# Channels and rate
# ---------------------------------------------------------------------------------------------


def to_mono(wave: Tensor) -> Tensor:
    """Mix channels down to one by their mean.

    Args:
        wave: `(..., C, T)`.

    Returns:
        `(..., T)`, the mean over channels: what all channels share keeps its level.

    Raises:
        TypeError: `wave` is no floating-point tensor.
        ValueError: there is no channel axis, or no channel on it.
    """
    wave = _floating(wave, "wave")
    if wave.ndim < 2 or wave.shape[-2] == 0:
        raise ValueError(
            f"wave must have a channel axis before time (..., C, T), got shape "
            f"{tuple(wave.shape)}. A mono signal needs no downmix; else add the axis with "
            "wave[..., None, :]."
        )
    return wave.mean(-2)


# Entries of torchaudio's polyphase kernel; 1e8 are 400 MB in float32.
_LARGEST_RESAMPLER = 10**8


def resample(wave: Tensor, orig: int, new: int) -> Tensor:
    """Bring a waveform from one sample rate to another (`torchaudio`, windowed sinc).

    Args:
        wave: `(..., T)`. float64 stays float64, half precision is computed in float32.
        orig: rate of `wave`, Hz, a whole number.
        new: rate wanted, Hz, a whole number. Equal rates return `wave` itself.

    Returns:
        `(..., ceil(T * new / orig))`, differentiable.

    Raises:
        TypeError: a rate is no whole number, or `wave` no floating-point tensor.
        ValueError: a rate is not positive, `wave` is empty, or the ratio needs a filter too large
            to hold.
        ImportError: the `torchaudio` package is missing.
    """
    orig, new = _integer(orig, "orig", 1), _integer(new, "new", 1)
    if orig == new:
        return wave
    wave = _with_samples(wave, "wave")
    _check_ratio(orig, new)
    try:
        from torchaudio.functional import resample as sinc_resample
    except Exception as error:  # OSError: it is there, but was built for another torch
        raise ImportError(
            f"resampling needs torchaudio, which does not load ({error}): pip install torchaudio, "
            "in the version that belongs to this torch"
        ) from error
    # The filter is a convolution, which autocast would run in half precision.
    with torch.autocast(wave.device.type, enabled=False):
        return sinc_resample(wave, orig, new)


def _check_ratio(orig: int, new: int) -> None:
    """The polyphase kernel has `new` filters of about `orig` taps (rates reduced by their gcd)."""
    common = math.gcd(orig, new)
    up, down = new // common, orig // common
    if up * (down + 12 * max(1, down // up)) > _LARGEST_RESAMPLER:
        raise ValueError(
            f"resampling from {orig} to {new} Hz needs a ratio of {up}/{down}, whose filter would "
            "take gigabytes: the rates have almost no common divisor. Check the rates; if they are "
            "right, resample the files beforehand with another tool."
        )


# ---------------------------------------------------------------------------------------------
# Loudness: ITU-R BS.1770-4, one channel
#
# K-weighting is two second-order sections, given by the standard as coefficients at 48 kHz. Other
# rates need the analogue filters behind them. With w = (1 - 1/z) / (1 + 1/z), so that
# 1/z = (1 - w) / (1 + w) and w = j tan(omega / 2) on the unit circle,
#
#     (1 + w)^2 (c0 + c1 / z + c2 / z^2)  =  (c0 + c1 + c2) + 2 (c0 - c2) w + (c0 - c1 + c2) w^2
#
# which is the section's analogue prototype in the warped frequency w of 48 kHz. Its natural
# frequency is K48 = sqrt(constant / quadratic term of the denominator) = tan(pi f0 / 48000). At
# another rate the same f0 sits at K = tan(pi f0 / rate), hence w is replaced by w K48 / K. At
# 48 kHz this is the identity, and the passband gain (the standard's high-pass has 1.005, which the
# offset of -0.691 dB counts on) is the same at every rate. Both filters fit exactly at their own
# f0; elsewhere the warp shows at low rates: a 997 Hz sine reads 0.05 LU less at 16 kHz and 0.2 LU
# less at 8 kHz than at 48 kHz, as in other meters, which use the same transform.
# ---------------------------------------------------------------------------------------------

_Section = tuple[tuple[float, float, float], tuple[float, float, float]]

# BS.1770-4, tables 1 and 2: (b0, b1, b2), (a0, a1, a2).
_SHELF_48K: _Section = (
    (1.53512485958697, -2.69169618940638, 1.19839281085285),
    (1.0, -1.69065929318241, 0.73248077421585),
)
_HIGH_PASS_48K: _Section = ((1.0, -2.0, 1.0), (1.0, -1.99004745483398, 0.99007225036621))

_LOUDNESS_OFFSET = -0.691  # dB, equation 2: a 997 Hz sine of amplitude 1 reads -3.01 LUFS
_ABSOLUTE_GATE = -70.0  # LUFS
_RELATIVE_GATE = -10.0  # LU
_HOPS_PER_BLOCK = 4  # blocks of 400 ms every 100 ms
_LOWEST_RATE = 8000  # Hz; the shelf's corner (1.7 kHz) must stay well below half the rate

# Length of the K-weighting's impulse response that is kept, in seconds. The high-pass decays as
# exp(-240 t): what lies beyond 0.15 s sums to less than 1e-14 (benchmarks/loudness.py).
_DECAY = 0.15


def _prototype(section: _Section) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Numerator and denominator in powers 0, 1, 2 of w at 48 kHz."""
    numerator, denominator = ((c0 + c1 + c2, 2 * (c0 - c2), c0 - c1 + c2) for c0, c1, c2 in section)
    return numerator, denominator


def _section_response(section: _Section, sample_rate: int, half: Tensor) -> Tensor:
    """Complex response of one section at `half` = omega / 2, `(n,)` float64."""
    numerator, denominator = _prototype(section)
    k48 = math.sqrt(denominator[0] / denominator[2])
    frequency = 48000 / math.pi * math.atan(k48)
    ratio = k48 / math.tan(math.pi * frequency / sample_rate)
    # w = j tan(half) is infinite at half the sample rate; times cos^2, both polynomials are finite.
    cos, sin = half.cos(), half.sin() * ratio

    def polynomial(p: tuple[float, ...]) -> Tensor:
        return torch.complex(p[0] * cos.square() - p[2] * sin.square(), p[1] * sin * cos)

    return polynomial(numerator) / polynomial(denominator)


def _k_response(sample_rate: int, length: int) -> Tensor:
    """K-weighting on the grid of a real FFT of `length` points, `(length // 2 + 1,)` complex128."""
    half = torch.arange(length // 2 + 1, dtype=torch.float64) * (math.pi / length)
    shelf = _section_response(_SHELF_48K, sample_rate, half)
    return shelf * _section_response(_HIGH_PASS_48K, sample_rate, half)


@functools.lru_cache(maxsize=4)
def _kept_k_response(
    sample_rate: int, length: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    # Kept across calls, so never as an inference tensor: those cannot be used in a graph later on.
    with torch.inference_mode(False), torch.no_grad():
        return _k_response(sample_rate, length).to(dtype).to(device)


def _k_weight(wave: Tensor, sample_rate: int) -> Tensor:
    """`wave (..., T)` after both sections, started at rest.

    The recursion is run as a product of spectra: a loop over samples would be slow on a GPU and in
    autograd. Sampling the response on a grid of n points folds the impulse response at n; with
    n >= T + decay the fold reaches the T samples kept only with what is left after the decay.
    """
    from scipy.fft import next_fast_len

    if wave.numel() == 0:
        return wave  # an empty batch, which not every FFT takes
    samples = wave.shape[-1]
    length = int(next_fast_len(samples + math.ceil(_DECAY * sample_rate), real=True))
    spectrum = torch.fft.rfft(wave, n=length)
    response = _kept_k_response(sample_rate, length, spectrum.dtype, spectrum.device)
    return torch.fft.irfft(spectrum * response, n=length)[..., :samples]


def _powers(wave: Tensor, sample_rate: int) -> tuple[Tensor, Tensor]:
    """Mean squares after K-weighting: of the gating blocks `(..., K)`, of the whole `(...)`.

    Blocks are four hops of 100 ms (rounded to samples); a block that the end cuts short is left
    out, as the standard says. K is 0 for a signal shorter than one block.
    """
    squares = _k_weight(wave, sample_rate).square()
    hop = round(sample_rate / 10)
    hops = squares.shape[-1] // hop
    if hops < _HOPS_PER_BLOCK:
        return squares[..., :0], squares.mean(-1)
    per_hop = squares[..., : hops * hop].unflatten(-1, (hops, hop)).mean(-1)
    return per_hop.unfold(-1, _HOPS_PER_BLOCK, 1).mean(-1), squares.mean(-1)


def _lufs(power: Tensor) -> Tensor:
    return _LOUDNESS_OFFSET + 10 * power.log10()


def _masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    return (values * mask).sum(-1) / mask.sum(-1).clamp(min=1)


def _gated(blocks: Tensor, shift: Tensor) -> Tensor:
    """Blocks that both gates let through, if the signal were `shift (...)` dB louder; no gradient.

    Returns:
        `(..., K)` bool. Both comparisons are strict (equations 4 and 6): with nothing above the
        absolute gate the relative one is -inf and still lets nothing through.
    """
    loudness = _lufs(blocks) + shift.unsqueeze(-1)
    above = loudness > _ABSOLUTE_GATE
    relative = _lufs(_masked_mean(blocks, above)) + shift + _RELATIVE_GATE
    return above & (loudness > relative.unsqueeze(-1))


def _gated_power(blocks: Tensor, whole: Tensor, gate: Tensor) -> Tensor:
    """Mean power of the gated blocks, of the whole signal where no block is left; `(...)`."""
    return torch.where(gate.any(-1), _masked_mean(blocks, gate), whole)


def _unit_peak(wave: Tensor, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """The wave at peak 1; its former peak, without gradient, and who is silent, both `(..., 1)`.

    Levels are taken of the scaled wave, so that squares neither underflow nor overflow. The peak is
    a constant to autograd: every use adds its logarithm back or does not depend on scale, so the
    gradient is exact whatever constant is divided out. Silent signals get peak 1 and no gradient.
    """
    peak = wave.detach().abs().amax(-1, keepdim=True)
    if not bool(peak.isfinite().all()):
        _raise_not_finite(wave, name)
    silent = peak < SILENCE_PEAK
    peak = torch.where(silent, 1.0, peak)
    return torch.where(silent, wave.detach(), wave) / peak, peak, silent


def _raise_not_finite(wave: Tensor, name: str) -> None:
    where = (~wave.detach().isfinite()).nonzero()[0].tolist()
    raise ValueError(
        f"{name} must hold finite samples, got NaN or infinity at index {tuple(where)} of shape "
        f"{tuple(wave.shape)}. No level can be measured; find the step that produced it."
    )


def _check_rate(sample_rate: int) -> int:
    rate = _integer(sample_rate, "sample_rate", 1)
    if rate < _LOWEST_RATE:
        raise ValueError(
            f"loudness needs a sample_rate of at least {_LOWEST_RATE} Hz, got {rate}: below it the "
            "K-weighting filter does not fit under half the rate. Resample the signal up first."
        )
    return rate


def is_silent(wave: Tensor) -> Tensor:
    """Which signals are digitally silent: peak below `SILENCE_PEAK`.

    Args:
        wave: `(..., T)`.

    Returns:
        `(...)` bool.
    """
    wave = _with_samples(wave, "wave").detach()
    return wave.abs().amax(-1) < SILENCE_PEAK


def integrated_loudness(wave: Tensor, sample_rate: int) -> Tensor:
    """Integrated loudness of mono signals, ITU-R BS.1770-4: K-weighted and gated.

    Blocks of 400 ms every 100 ms; those at or below -70 LUFS are left out, then those at or below
    10 LU under the mean of the rest. Where no block is left, it is the ungated loudness of the
    whole signal.

    Args:
        wave: `(..., T)`, each row a signal of its own. Half precision is computed in float32.
        sample_rate: Hz, at least 8000.

    Returns:
        `(...)` in LUFS (a 997 Hz sine of amplitude 1 reads -3.01); -inf, with zero gradient, for
        digital silence. Differentiable through the power of the blocks; which blocks are gated is
        taken as given.

    Raises:
        TypeError: `wave` is no floating-point tensor or `sample_rate` no whole number.
        ValueError: no samples, samples that are not finite, or a rate below 8000 Hz.
    """
    rate = _check_rate(sample_rate)
    unit, peak, silent = _unit_peak(_with_samples(wave, "wave"), "wave")
    peak, silent = peak.squeeze(-1), silent.squeeze(-1)
    level = 20 * peak.log10()
    blocks, whole = _powers(unit, rate)
    power = _gated_power(blocks, whole, _gated(blocks.detach(), level))
    loudness = _lufs(torch.where(silent, 1.0, power)) + level
    return torch.where(silent, -torch.inf, loudness)


def normalize_loudness(
    wave: Tensor, sample_rate: int, target: float = -23.0, peak: float = 1.0
) -> Tensor:
    """Bring each signal to `target` LUFS on its own, then below `peak` where it exceeds that.

    The gates are applied at the level of the output, before the peak rule: the result reads
    `target` on a BS.1770-4 meter and does not depend on the scale of the input. Measuring the
    input where it stands would not do, since the gate at -70 LUFS is absolute: a signal 60 dB down
    loses its pauses, then its quiet words, then everything to it.

    Args:
        wave: `(..., T)`, any scale (peaks of 25 or of 1e-6 alike); nothing is clipped.
        sample_rate: Hz, at least 8000.
        target: loudness of the output, LUFS. At or below -70 no block passes and the ungated
            loudness of the whole signal is brought to it.
        peak: largest absolute sample of the output; `math.inf` lifts the limit. The whole signal is
            scaled down, so shape is kept and loudness falls below `target`.

    Returns:
        `(..., T)` float32, or float64 for float64 input. Digital silence comes back as it is, with
        zero gradient. Differentiable, including through the peak where it limits.

    Raises:
        TypeError: `wave` is no floating-point tensor or `sample_rate` no whole number.
        ValueError: as `integrated_loudness`; `target` not finite; `peak` not positive.
    """
    rate = _check_rate(sample_rate)
    _check_levels(target, peak)
    unit, _, silent = _unit_peak(_with_samples(wave, "wave"), "wave")
    blocks, whole = _powers(unit, rate)
    gate = _gates_at(target, blocks.detach(), whole.detach())
    power = torch.where(silent, 1.0, _gated_power(blocks, whole, gate).unsqueeze(-1))
    gain = torch.where(silent, 1.0, 10 ** ((target - _lufs(power)) / 20))
    loud = unit * gain
    if peak == math.inf:
        return loud
    highest = loud.abs().amax(-1, keepdim=True)
    # Dividing by the larger of both keeps the factor at 1, with zero gradient, under the limit.
    return loud * torch.where(silent, 1.0, peak / highest.clamp(min=peak))


def _gates_at(target: float, blocks: Tensor, whole: Tensor) -> Tensor:
    """Gated blocks of the signal once it reads `target`; `(..., K)` bool.

    The gain depends on the gates and they on the gain: a fixed point, started from the ungated
    loudness, which is as free of the input's scale as the result. Only blocks within a few dB of
    the absolute gate can move, so two rounds settle it; four cost nothing beside the filter.
    """
    shift = target - _lufs(whole)
    for _ in range(4):
        gate = _gated(blocks, shift)
        shift = target - _lufs(_gated_power(blocks, whole, gate))
    return gate


def _check_levels(target: float, peak: float) -> None:
    if not math.isfinite(target):
        raise ValueError(
            f"target must be a finite loudness in LUFS, got {target}. Typical is -23 (EBU R 128)."
        )
    if not peak > 0:
        raise ValueError(
            f"peak must be a positive sample value, got {peak}. Full scale is 1; pass math.inf "
            "for no limit."
        )


# ---------------------------------------------------------------------------------------------
# Frames
# ---------------------------------------------------------------------------------------------


def frame_count(samples: int, receptive_field: int, hop: int) -> int:
    """Frames an encoder makes of `samples`: (samples - receptive_field) // hop + 1, at least 0.

    Args:
        samples: length of the waveform.
        receptive_field: samples one frame sees.
        hop: samples from one frame to the next.

    Returns:
        The number of frames; 0 if the waveform is shorter than one receptive field.

    Raises:
        TypeError, ValueError: an argument is no whole number, negative, or zero for the last two.
    """
    samples = _integer(samples, "samples", 0)
    receptive_field, hop = _integer(receptive_field, "receptive_field", 1), _integer(hop, "hop", 1)
    return max((samples - receptive_field) // hop + 1, 0)


def frame_times(frames: int, receptive_field: int, hop: int, sample_rate: int) -> Tensor:
    """Centres of the frames: (f * hop + receptive_field / 2) / sample_rate.

    Args:
        frames: how many.
        receptive_field: samples one frame sees.
        hop: samples from one frame to the next.
        sample_rate: Hz.

    Returns:
        `(frames,)` float64, seconds from the start of the waveform.

    Raises:
        TypeError, ValueError: an argument is no whole number, or too small.
    """
    frames = _integer(frames, "frames", 0)
    receptive_field, hop = _integer(receptive_field, "receptive_field", 1), _integer(hop, "hop", 1)
    rate = _integer(sample_rate, "sample_rate", 1)
    return (torch.arange(frames, dtype=torch.float64) * hop + receptive_field / 2) / rate


def frame_signal(wave: Tensor, receptive_field: int, hop: int) -> Tensor:
    """Cut a waveform into the pieces an encoder's frames see.

    Args:
        wave: `(..., T)`.
        receptive_field: samples per frame.
        hop: samples from one frame to the next.

    Returns:
        `(..., F, receptive_field)`, F from `frame_count`: a strided view of `wave`, nothing copied.

    Raises:
        TypeError, ValueError: as `frame_count`.
    """
    if frame_count(wave.shape[-1], receptive_field, hop) == 0:
        return wave.new_zeros((*wave.shape[:-1], 0, receptive_field))
    return wave.unfold(-1, receptive_field, hop)


def frame_rms(wave: Tensor, receptive_field: int, hop: int) -> Tensor:
    """Root mean square of each frame.

    Every frame is summed on its own in float64. A running sum over the signal would be faster, but
    its differences lose a quiet frame after a loud passage.

    Args:
        wave: `(..., T)`.
        receptive_field: samples per frame.
        hop: samples from one frame to the next.

    Returns:
        `(..., F)` float64; a frame of zeros has RMS 0 and zero gradient.

    Raises:
        TypeError, ValueError: as `frame_count`; TypeError if `wave` is no floating-point tensor.
    """
    wave = _floating(wave, "wave")
    frames = frame_count(wave.shape[-1], receptive_field, hop)
    if frames == 0 or wave.numel() == 0:
        return back(torch.zeros(*wave.shape[:-1], frames, dtype=torch.float64), wave.device)
    squares = wide(wave).square().reshape(-1, 1, wave.shape[-1])
    power = torch.nn.functional.avg_pool1d(squares, receptive_field, hop)
    return back(_sqrt(power.reshape(*wave.shape[:-1], frames)), wave.device)


def _sqrt(x: Tensor) -> Tensor:
    """Square root with derivative 0, not infinity, at 0."""
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, 1.0).sqrt(), 0.0)


@torch.no_grad()
def source_activity(
    references: Tensor, receptive_field: int, hop: int, threshold: float = 0.1
) -> Tensor:
    """In which frames each source is active: RMS above `threshold` times the source's own RMS.

    Args:
        references: `(..., S, T)`; each row is judged on its own.
        receptive_field: samples per frame of the encoder.
        hop: samples from one frame to the next.
        threshold: fraction of the RMS over all T samples. Higher leaves more soft frames out.

    Returns:
        `(..., S, F)` bool. A digitally silent reference is active nowhere.

    Raises:
        TypeError, ValueError: as `frame_count`; ValueError for samples that are not finite, no
            samples, or a negative threshold.
    """
    if not threshold >= 0:
        raise ValueError(
            f"threshold must be a fraction of the source's RMS, at least 0, got {threshold}. "
            "The method uses 0.1."
        )
    unit, _, silent = _unit_peak(_with_samples(references, "references"), "references")
    total = back(wide(unit).square().mean(-1, keepdim=True).sqrt(), unit.device)
    return (frame_rms(unit, receptive_field, hop) > threshold * total) & ~silent


# ---------------------------------------------------------------------------------------------
# Estimates and references
# ---------------------------------------------------------------------------------------------

# Share of an estimate's energy that rounding can hide in float64: the range of SI-SDR is
# +-10 log10 of it, +-156.5 dB.
_EPSILON = torch.finfo(torch.float64).eps


def si_sdr(estimates: Tensor, references: Tensor) -> Tensor:
    """Scale-invariant signal-to-distortion ratio, means removed (Le Roux et al., 2019).

    With e and s the signals less their means and a = <e, s> / <s, s>, it is
    10 log10(|a s|^2 / |e - a s|^2). Both energies are kept at or above 2.2e-16 of |e|^2, so values
    lie within +-156.5 dB; a silent (or constant) estimate or reference gives the lower end, with
    zero gradient. Computed in float64.

    Args:
        estimates: `(..., T)`.
        references: `(..., T)`, the same shape.

    Returns:
        `(...)` in dB, in the wider dtype of the two (at least float32). Never NaN.

    Raises:
        TypeError: an argument is no floating-point tensor.
        ValueError: shapes differ, no samples, or samples that are not finite.
    """
    estimates, references = _checked_pair(estimates, references)
    if estimates.shape != references.shape:
        raise ValueError(
            f"estimates and references must have one shape, got {tuple(estimates.shape)} and "
            f"{tuple(references.shape)}. Pass one reference per estimate, in the same order."
        )
    e, e_silent = _centred(estimates, "estimates")
    s, s_silent = _centred(references, "references")
    target = (e * s).sum(-1, keepdim=True) * s  # |s| = 1
    ratio = _energy_ratio(target.square().sum(-1), (e - target).square().sum(-1))
    ratio = torch.where(e_silent | s_silent, 10 * math.log10(_EPSILON), ratio)
    return ratio.to(torch.promote_types(estimates.dtype, references.dtype)).to(estimates.device)


def _energy_ratio(target: Tensor, rest: Tensor) -> Tensor:
    return 10 * ((target + _EPSILON).log10() - (rest + _EPSILON).log10())


def _centred(wave: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """`wave` less its mean at energy 1, float64, and `(...)` bool where nothing is left (zeros)."""
    unit, _, _ = _unit_peak(wide(wave), name)
    centred = unit - unit.mean(-1, keepdim=True)
    energy = centred.square().sum(-1, keepdim=True)
    # A constant may leave rounding noise of 1e-16 per sample instead of zero.
    silent = energy <= 1e-28 * unit.shape[-1]
    centred = torch.where(silent, 0.0, centred)
    return centred / torch.where(silent, 1.0, energy).sqrt(), silent.squeeze(-1)


def _checked_pair(estimates: Tensor, references: Tensor) -> tuple[Tensor, Tensor]:
    return _with_samples(estimates, "estimates"), _with_samples(references, "references")


@torch.no_grad()
def match_sources(estimates: Tensor, references: Tensor) -> Tensor:
    """Which reference each estimate belongs to: the assignment with the largest total SI-SDR.

    Each estimate gets a reference of its own. A silent estimate is as far from every reference and
    takes what the others leave; a silent reference is as far from every estimate.

    Args:
        estimates: `(..., S', T)`, S' <= S.
        references: `(..., S, T)`, the same leading axes.

    Returns:
        `(..., S')` int64 on the device of `estimates`: indices into the S references.

    Raises:
        TypeError: an argument is no floating-point tensor.
        ValueError: more estimates than references, other shapes that do not fit, no samples, or
            samples that are not finite.

    Example:
        >>> import torch
        >>> from torch_mapss.audio import match_sources
        >>> references = torch.eye(3, 8)
        >>> match_sources(references[[2, 0]], references)
        tensor([2, 0])
    """
    from scipy.optimize import linear_sum_assignment

    estimates, references = _checked_pair(estimates, references)
    _check_matchable(estimates, references)
    scores = _pairwise_si_sdr(estimates, references).cpu().numpy()
    flat = scores.reshape(-1, *scores.shape[-2:])
    best = [linear_sum_assignment(item, maximize=True)[1] for item in flat]
    indices = np.asarray(best, dtype=np.int64).reshape(scores.shape[:-1])
    return torch.from_numpy(indices).to(estimates.device)


def _pairwise_si_sdr(estimates: Tensor, references: Tensor) -> Tensor:
    """SI-SDR of all pairs, `(..., S', S)` float64.

    With both signals at energy 1, |a s|^2 = <e, s>^2 =: c and |e - a s|^2 = 1 - c.
    """
    e, e_silent = _centred(estimates, "estimates")
    s, s_silent = _centred(references, "references")
    shared = (e @ s.mT).square().clamp(max=1.0)
    silent = e_silent.unsqueeze(-1) | s_silent.unsqueeze(-2)
    return _energy_ratio(shared, 1 - shared).masked_fill(silent, 10 * math.log10(_EPSILON))


def _check_matchable(estimates: Tensor, references: Tensor) -> None:
    given = f"got {tuple(estimates.shape)} and {tuple(references.shape)}"
    if estimates.ndim < 2 or estimates.ndim != references.ndim:
        raise ValueError(
            f"estimates and references must be (..., S', T) and (..., S, T), {given}. "
            "Add the missing axis, for one signal x[None]."
        )
    if estimates.shape[:-2] != references.shape[:-2] or estimates.shape[-1] != references.shape[-1]:
        raise ValueError(
            f"estimates and references may differ in the number of sources only, {given}. "
            "Pass the same items, cut to the same length."
        )
    if estimates.shape[-2] > references.shape[-2]:
        raise ValueError(
            f"there are {estimates.shape[-2]} estimates for {references.shape[-2]} references, "
            f"{given}: some estimate would have no reference. Leave the surplus estimates out, or "
            "swap the arguments if they are reversed."
        )
