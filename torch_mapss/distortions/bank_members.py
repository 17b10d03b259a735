"""Members of a distortion bank: the columns of the paper's table, selected and extended."""

from __future__ import annotations

import itertools
from collections import ChainMap, Counter
from collections.abc import Iterable, Sequence

from torch_mapss.core.checks import check_whole
from torch_mapss.distortions import additive, dynamics, echoes, filters, pitch
from torch_mapss.distortions.distortion import Distortion
from torch_mapss.distortions.reference_features import spectral_peak

FAMILIES = (
    "notch",
    "comb",
    "tremolo",
    "noise",
    "tone",
    "reverb",
    "gate",
    "pitch",
    "lowpass",
    "highpass",
    "echo",
    "clipping",
    "vibrato",
)
"""Families of the paper, in the order of its table."""

KINDS = {"separation": "PS", "match": "PM"}
"""Measure of each kind of bank."""


def bank_name(kind: str) -> str:
    """Name of a bank for messages, so that users of both kinds know which one is meant."""
    return f"the bank of {KINDS[kind]} ({kind!r})"


def paper_members(kind: str) -> tuple[Distortion, ...]:
    """Members in one column of the paper's table, in the order of its rows."""
    if kind not in KINDS:
        raise ValueError(
            f"kind must be one of {tuple(KINDS)}, got {kind!r}. PS is scored against the "
            f"'separation' bank and PM against the 'match' bank."
        )
    modules = (filters, echoes, additive, dynamics, pitch)
    table = ChainMap(*(getattr(module, kind.upper()) for module in modules))
    return tuple(itertools.chain.from_iterable(table[family] for family in FAMILIES))


def select_members(
    members: tuple[Distortion, ...], selected: Iterable[str], argument: str, kind: str
) -> tuple[Distortion, ...]:
    """Members that are selected by name or by family."""
    selection = {selected} if isinstance(selected, str) else set(selected)
    families = dict.fromkeys(member.family for member in members)
    unknown = selection - set(families) - {member.name for member in members}
    if unknown:
        raise ValueError(
            f"{argument} names {sorted(unknown)}, which are not families or members of "
            f"{bank_name(kind)}. Families: {', '.join(families)}; members: DistortionBank.names()."
        )
    return tuple(member for member in members if {member.family, member.name} & selection)


def check_extra(extra: Iterable[Distortion]) -> tuple[Distortion, ...]:
    """The members to append, as a tuple; TypeError for anything but `Distortion` records."""
    members = (extra,) if isinstance(extra, Distortion) else tuple(extra)
    for member in members:
        if not isinstance(member, Distortion):
            raise TypeError(
                f"extra must hold Distortion records, got {type(member).__name__}. Wrap a function "
                f"as Distortion(name, family, function, parameters)."
            )
    return members


def check_unique(members: tuple[Distortion, ...], kind: str) -> tuple[Distortion, ...]:
    """Check that there are members and that no two share a name (and so their noise)."""
    counts = Counter(member.name for member in members)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise ValueError(
            f"member names must be unique, but {twice} occur twice. Rename the extra member, or "
            f"leave the bank's own out with without={twice}."
        )
    if not members:
        raise ValueError(
            f"{bank_name(kind)} has no members left. Leave out fewer families, or add extra."
        )
    return members


def spread_evenly(members: tuple[Distortion, ...], size: int, kind: str) -> tuple[Distortion, ...]:
    """Select `size` members, spread as evenly over and within the families as counts allow."""
    size = check_whole(size, "size")
    if not 1 <= size <= len(members):
        raise ValueError(
            f"size must lie between 1 and {len(members)} for {bank_name(kind)}, got {size}."
        )
    quota = _quotas(Counter(member.family for member in members), size)
    chosen: set[str] = set()
    for family, count in quota.items():
        group = [member for member in members if member.family == family]
        chosen |= {group[index].name for index in _members_taken(group, count)}
    return tuple(member for member in members if member.name in chosen)


def _quotas(counts: dict[str, int], size: int) -> dict[str, int]:
    """Deal `size` members to the families in rounds, the last round to evenly spaced ones."""
    quota = dict.fromkeys(counts, 0)
    undealt = size
    while undealt:
        open_families = [family for family, count in counts.items() if quota[family] < count]
        dealt = min(undealt, len(open_families))
        for index in evenly(len(open_families), dealt):
            quota[open_families[index]] += 1
        undealt -= dealt
    return quota


def _members_taken(family: list[Distortion], quota: int) -> Sequence[int]:
    """Indices of the members to take from a family: the strongest peaks, or evenly spaced."""
    features = itertools.chain.from_iterable(member.measured.values() for member in family)
    by_peak = any(getattr(feature, "func", None) is spectral_peak for feature in features)
    return range(quota) if by_peak else evenly(len(family), quota)


def evenly(count: int, quota: int) -> list[int]:
    """`quota` of `count` indices, evenly spaced around the middle."""
    return [(2 * i + 1) * count // (2 * quota) for i in range(quota)]
