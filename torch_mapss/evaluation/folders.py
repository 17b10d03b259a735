"""Mixtures from folders of audio, as common test sets lay them out, by templates.

A template is a path with ``{mixture}`` and ``{source}`` in place of their names, and ``*`` for
anything else: ``out/{mixture}_{source}.wav``, ``ex/{mixture}/{source}_estimate.wav``. It becomes a
regular expression over the names of the files. A plain folder may have one of two layouts: a folder
per mixture (MUSDB), ``{mixture}/{source}``, or a folder per source (WSJ0-2mix, LibriMix),
``{source}/{mixture}``.
"""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pandas import DataFrame, Series

from torch_mapss.evaluation import io
from torch_mapss.evaluation.io import same_name
from torch_mapss.evaluation.manifest import ManifestError, Mixture

# Layouts of plain folders, for names without suffixes.
_LAYOUTS = ("{mixture}/{source}", "{source}/{mixture}")
# Templates to propose for other layouts, by the number of folders above a file.
_PROPOSALS = (
    ("{mixture}_{source}", "{source}"),
    _LAYOUTS,
    ("{mixture}/{source}/*", "*/{source}/{mixture}"),
)
# Names of files that are not sources, and of sources and mixtures if a layout is ambiguous.
_MIXTURE, _ESTIMATE, _NOISE, _SOURCE, _ITEM = (
    re.compile(pattern, re.IGNORECASE).fullmatch
    for pattern in (
        r"(.*[_-])?mix(ture)?([_-].*)?|noisy",
        r"(.+)_est(imate)?",
        r"noise([_-].*)?",
        r"(s|src|source|spk|speaker|ref|reference|talker|voice)[ _-]?\d+"
        r"|(clean|speech|noise|music|vocals?|voice|singing|accompaniment|other)[ _-]?\d*"
        r"|[ae]?(bass|drums?|piano|guitar|keys|strings|brass|wind|violin|cello|flute)[ _-]?\d*",
        r"(m|mix|mixture|song|track|utt|utterance|item|ex|example|clip|scene|test)?[ _-]?\d+",
    )
)
_LARGEST_MIXTURE = 12  # more than this cannot be sources of one mixture
_ONLY = "speech"  # the source of a template without {source}

# A table of files has a row per mixture and a column per source, both in order, and in its cells
# paths as io.written gives them, NaN where there is none; names are as io.same_name gives them.


def read_folders(
    references: str,
    systems: Mapping[str, str],
    sources: Sequence[str] | None = None,
    noisy: str | None = None,
    derived: str | None = None,
    allow_missing: bool = False,
) -> tuple[tuple[Mixture, ...], tuple[str, ...]]:
    """Match the files of systems with those of references, by name.

    Args:
        references: template or folder of the true sources. Without ``{source}``: one clean source.
        systems: template or folder by system name; layouts may differ.
        sources: names of the sources to take, in this order; None: all in the order of their names,
            except those called mix or noisy, and noise that no system estimates.
        noisy: template or folder of the mixtures with noise; noise = noisy - clean, written to the
            folder ``derived``, becomes the second reference of every mixture.
        allow_missing: note the files that a system lacks, and score them as not estimated.

    Returns:
        The mixtures, and sentences to print on how the folders were read. Mixtures may differ in
        their sources; None stands for a source that a system has no file for.

    Raises:
        ManifestError: lists all problems: folders without audio, files without a partner, mixtures
            with a single source, ambiguous layouts.
    """
    names = [same_name(name) for name in sources or ()]
    reference_files, layout = _read_references(references, names, noisy is not None)
    truth = _chosen(reference_files, names)
    if noisy is None:
        mixed = reference_files[[*filter(_MIXTURE, _names(reference_files))]]
        mixed = mixed.stack().dropna().droplevel(1)
        mixes = mixed[~mixed.index.duplicated(keep=False)]
    else:
        names_of_mixtures = DataFrame({_ONLY: ""}, truth.index)
        mixes = _read_estimates(noisy, "--noisy", names_of_mixtures)[_ONLY]
        truth = _with_noise(truth, mixes, derived or "")
    estimate_files = {
        name: _read_estimates(template, f"system {name!r}", truth)
        for name, template in systems.items()
    }
    if not names and noisy is None:  # noise that no system estimates, as in LibriMix
        estimated = set().union(*estimate_files.values())
        names = [name for name in _names(truth) if name in estimated or not _NOISE(name)]
        enough = (truth[names].count(axis=1) > 1).all()
        truth = truth[names] if enough else truth
    gaps: list[str] = []
    for name, files in estimate_files.items():
        gaps += _gaps(name, files, truth)
    problems = [] if allow_missing else [*gaps]
    lonely = truth[truth.count(axis=1) < 2]
    if len(lonely):
        problems.append(
            f"at least two sources are needed, but {_shown(lonely.index, 3)} have only "
            f"{_shown(lonely.iloc[0].dropna().index)}. Check the template; for clean speech and "
            "its noisy mixtures, add --noisy TEMPLATE"
        )
    if problems:
        raise ManifestError(io.shown(references), problems)
    folder = os.path.abspath(re.split(r"[{*]", references)[0])
    name_of_single_mixture = io.written(os.path.basename(folder))
    mixtures = _mixtures(truth, estimate_files, mixes, name_of_single_mixture)
    notes = _notes(layout, reference_files, truth, estimate_files)
    missing = [gap.partition(". Check")[0] for gap in gaps] if allow_missing else []
    return mixtures, (*notes, *missing)


def _mixtures(
    truth: DataFrame,
    estimate_files: Mapping[str, DataFrame],
    mixes: Series[Any],
    name_of_single_mixture: str,
) -> tuple[Mixture, ...]:
    """Entries of a manifest from the files of the references, of each system and of the mixtures.

    A template without ``{mixture}`` gives the name "" to its only mixture.
    """
    aligned = {
        name: files.reindex_like(truth).replace({math.nan: None})
        for name, files in estimate_files.items()
    }
    mixtures = []
    for mixture, row in truth.iterrows():
        paths_by_source = row.dropna()
        source_names = [*paths_by_source.index]
        estimates = {n: tuple(files.loc[mixture, source_names]) for n, files in aligned.items()}
        entry = Mixture(
            name=str(mixture) or name_of_single_mixture,
            references=tuple(paths_by_source),
            systems={name: paths for name, paths in estimates.items() if any(paths)},
            folder="",
            mixture=mixes.get(mixture),
            sources=tuple(source_names),
        )
        mixtures.append(entry)
    return tuple(mixtures)


# ------------------------------------------------------------------------------ Files and templates


def _readings(
    path: str, subject: str, layouts: Sequence[str], sources: Sequence[str] = (), only: str = _ONLY
) -> tuple[dict[str, DataFrame], str, int]:
    """Find the files that match a template, or each layout in a plain folder.

    Args:
        path: template or folder.
        subject: name of the content, for messages.
        layouts: layouts to try in a plain folder.
        sources: allowed names of sources; any if empty.
        only: source of a template without ``{source}``.

    Returns:
        Audio files by layout, as each of them reads them; names of files, for messages; number of
        folders above most files.
    """
    template = _is_template(path)
    root = path
    if template:
        root = os.path.dirname(re.split(r"[{*]", path)[0]) or "."
        layouts = [same_name(io.written(os.path.relpath(path, root)).replace(os.sep, "/"))]
    names = io.audio_files(root, with_suffix=template)
    if not names:
        problem = f"no audio file ({', '.join(sorted(io.AUDIO_SUFFIXES))}) below"
        problem = problem if os.path.isdir(root) else "there is no folder"
        raise ManifestError(subject, [f"{problem} {io.shown(root)!r}"])
    files = {layout: _matching(names, layout, subject, sources, only) for layout in layouts}
    depths = sorted(name.count("/") for name in names.values())
    return files, _shown(names.values(), 3), depths[len(depths) // 2]


def _templates(depth: int) -> str:
    """Templates to propose for files below ``depth`` folders."""
    layouts = _PROPOSALS[min(depth, len(_PROPOSALS) - 1)]
    return " or ".join(f"'DIR/{layout}.wav'" for layout in layouts)


def _is_template(path: str) -> bool:
    return "{mixture}" in path or "{source}" in path


def _matching(
    names: Mapping[str, str], layout: str, subject: str, sources: Sequence[str], only: str
) -> DataFrame:
    """Files whose names (by path) match a whole layout; see :func:`_readings`."""
    # The shortest name before {mixture}, the longest mixture: song_1_vocals is song_1, vocals.
    source = "[^/]+?" if layout.find("{source}") < layout.find("{mixture}") else "[^/]+"
    if sources:
        source = "|".join(map(re.escape, sorted(sources, key=len, reverse=True)))
    # In a plain folder with a folder per source, deeper files belong to another layout.
    mixture = "[^/]+" if layout == "{source}/{mixture}" else ".+"
    kinds = {
        "{mixture}": f"(?P<mixture>{mixture})",
        "{source}": f"(?P<source>{source})",
        "*": "[^/]*",
    }
    expression = ""
    for piece in re.split(r"(\{\w+\}|\*)", layout):
        expression += kinds.get(piece, re.escape(piece))
        if piece in ("{mixture}", "{source}"):
            kinds[piece] = f"(?P={piece[1:-1]})"  # the same name again
    rows = []
    for path, name in names.items():
        if match := re.fullmatch(expression, name):
            groups = match.groupdict()
            rows.append((groups.get("mixture") or "", groups.get("source", only), path))
    table = DataFrame(rows, columns=["mixture", "source", "path"], dtype=object)
    twice = table[table.duplicated(["mixture", "source"], keep=False)]
    if len(twice):
        same = twice[twice["source"].eq(twice["source"].iloc[0])]["path"]
        text = (
            f"{same.iloc[0]!r} and {same.iloc[1]!r} would get the same name. Remove or rename one"
        )
        raise ManifestError(subject, [text])
    files = table.pivot(index="mixture", columns="source", values="path")
    ordered = sorted(_names(files), key=lambda name: (bool(_NOISE(name)), io.natural_key(name)))
    return files.loc[sorted(map(str, files.index), key=io.natural_key), ordered]


# --------------------------------------------------------------------------------------- References


def _read_references(path: str, names: Sequence[str], single: bool) -> tuple[DataFrame, str]:
    """Files of the references, and the layout in which they can be read.

    Args:
        path: template or folder.
        names: sources that the user named.
        single: one clean source per mixture.
    """
    certain = single or _is_template(path)
    layouts = ["{mixture}"] if single else _LAYOUTS
    files_by_layout, examples, depth = _readings(
        path, "references", layouts, names if certain else ()
    )
    doubts = {
        layout: _doubt(files)
        for layout, files in files_by_layout.items()
        if (len(files) if certain else 2 <= len(_sources(files)) <= _LARGEST_MIXTURE)
    }
    best = [layout for layout in doubts if doubts[layout] == min(doubts.values())]
    if len(best) == 1:
        return files_by_layout[best[0]], best[0]
    text = f"cannot be read as {_shown(files_by_layout)}, there is {examples}"
    if best:
        ways = (f"{x!r} (sources {_shown(_sources(files_by_layout[x]))})" for x in best)
        text = f"can be read as {' or '.join(ways)}"
    templates = _templates(depth)
    raise ManifestError(
        io.shown(path), [f"{text}. Say where the names are: --references {templates}"]
    )


def _doubt(files: DataFrame) -> tuple[bool, bool, int]:
    """How much a reading differs from the usual names of test sets; the smallest is chosen."""
    sources = _sources(files)
    items = all(_ITEM(mixture.rsplit("/", 1)[-1]) for mixture in files.index)
    odd = not all(map(_SOURCE, sources))  # among unusual names, the shorter list is the sources
    familiar = items or len(sources) < files.shape[1]  # or there are files called mix
    return odd, not familiar, len(sources) if odd else 0


def _chosen(files: DataFrame, names: Sequence[str]) -> DataFrame:
    """Choose the sources, in order.

    These are ``names``, or else all except those called mix or noisy, and estimates stored next
    to their sources.
    """
    if {*names} - {*files} or len({*names}) < len(names):
        text = f"--sources must name different ones of {_shown(files)}, got {_shown(names)}"
        raise ManifestError("the references", [text])
    twins = {name for name in _names(files) if (match := _ESTIMATE(name)) and match[1] in files}
    sources = names or [name for name in _sources(files) if name not in twins]
    if not sources:
        text = f"{_shown(files)} are mixtures by their names: name the sources with --sources"
        raise ManifestError("the references", [text])
    return files[sources].dropna(how="all")


def _with_noise(truth: DataFrame, mixes: Series[Any], folder: str) -> DataFrame:
    """The clean source of every mixture and noise = noisy - clean, written to ``folder``."""
    from torch_mapss import audio

    rows, problems = {}, []
    for mixture, row in truth.iterrows():
        clean, noisy = row.dropna(), mixes.get(mixture)
        if noisy is None or len(clean) > 1:
            problems.append(
                f"mixture {mixture!r}: --noisy needs one clean source and one noisy file, got "
                f"{len(clean)} and {int(noisy is not None)}"
            )
            continue
        path = os.path.join(io.make_folder(folder), f"{io.native(io.file_name(str(mixture)))}.wav")
        rows[mixture] = {**clean, "noise": io.written(path)}
        sounds = io.native(noisy), io.native(clean.iloc[0])
        if os.path.exists(path) and os.path.getmtime(path) > max(map(os.path.getmtime, sounds)):
            continue
        (noisy_wave, noisy_rate), (clean_wave, clean_rate) = map(audio.load_audio, sounds)
        if noisy_rate == clean_rate and noisy_wave.shape == clean_wave.shape:
            io.write_wave(path, (noisy_wave - clean_wave).T, noisy_rate)
        else:
            problems.append(
                f"mixture {mixture!r}: noisy and clean differ, {tuple(noisy_wave.shape)} at "
                f"{noisy_rate} Hz and {tuple(clean_wave.shape)} at {clean_rate} Hz (channels, "
                "samples)"
            )
    if problems:
        raise ManifestError("--noisy", problems)
    return DataFrame.from_dict(rows, orient="index")


# ------------------------------------------------------------------------------------------ Systems


def _read_estimates(path: str, subject: str, truth: DataFrame) -> DataFrame:
    """Files of a system, in the layout in which most of them are named like a reference."""
    names = sorted(_names(truth))
    speech = [name for name in names if not _NOISE(name)] or names
    layouts = (*_LAYOUTS, *["{mixture}"] * (len(speech) == 1))
    files_by_layout, examples, depth = _readings(path, subject, layouts, names, speech[0])

    def paired(files: DataFrame) -> int:
        return int((files.reindex_like(truth).notna() & truth.notna()).to_numpy().sum())

    best = max(files_by_layout.values(), key=paired)
    if best.index.intersection(truth.index).empty:
        text = (
            f"no file of {io.shown(path)!r} is named like a reference: expected e.g. mixture "
            f"{truth.index[0]!r} with {_shown(names)}, found {examples}. Say where the "
            f"names are with a template: {_templates(depth)}"
        )
        raise ManifestError(subject, [text])
    return best


def _gaps(name: str, files: DataFrame, truth: DataFrame) -> Iterator[str]:
    """Yield the mixtures that a system lacks, and sources that it lacks in some mixtures."""
    paired = truth.loc[truth.index.isin(files.index), truth.columns.isin(files.columns)]
    if missing := [mixture for mixture in truth.index if mixture not in paired.index]:
        spare = {*files.index} - {*paired.index}
        close = []
        for mixture in missing[:20]:
            close += difflib.get_close_matches(mixture, spare, 1, 0.8)
        hint = f" (but has {close[0]!r})" if close else ""
        yield (
            f"system {name!r} lacks {len(missing)} of {len(truth)} mixtures: {_shown(missing, 3)}"
            f"{hint}. Check its template; where it failed, write a manifest with null"
        )
    lacks = (paired.notna() & files.reindex_like(paired).isna()).stack()
    if lacks.any():
        gaps = [f"{source!r} of {mixture!r}" for mixture, source in lacks[lacks].index]
        yield f"system {name!r} lacks {io.listed(gaps, 3)}, which it has for other mixtures"


# -------------------------------------------------------------------------------------------- Words


def _notes(
    layout: str, references: DataFrame, truth: DataFrame, systems: Mapping[str, DataFrame]
) -> Iterator[str]:
    """Yield sentences on how the folders were read."""
    counts, total = truth.count(), len(truth)
    mixtures = f"{total} mixture{'' if total == 1 else 's'}"
    yield f"references: {mixtures} of the {len(counts)} sources {_shown(truth)} ({layout})"
    if aside := [name for name in _names(references) if name not in truth]:
        keep = " ".join([*_names(truth), *aside])
        yield f"ignored: {_shown(aside)}; use --sources {keep} to include them"
    incomplete = [f"{source!r} in {count}" for source, count in counts.items() if count < total]
    if incomplete:
        common = _shown(counts[counts == total].index)
        yield (
            f"some mixtures lack sources ({', '.join(incomplete)} of {total}): each is scored "
            f"with its own; all have {common or 'none in common'}"
        )
    for name, files in systems.items():
        lacking = _shown(source for source in truth if source not in files)
        texts = [f"no estimate of {lacking}"] if lacking else []
        if surplus := (~files.index.isin(truth.index)).sum():
            texts.append(f"{surplus} mixtures without references left out")
        if texts:
            yield f"system {name!r}: {'; '.join(texts)}"


def _sources(files: DataFrame) -> list[str]:
    """All names except those called mix."""
    return [name for name in _names(files) if not _MIXTURE(name)]


def _names(files: DataFrame) -> list[str]:
    return [*map(str, files.columns)]


def _shown(names: Iterable[object], most: int = 99) -> str:
    return io.listed(map(repr, names), most)
