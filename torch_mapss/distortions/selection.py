"""Which members a bank has: the columns of the paper's table, chosen, extended, thinned out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from torch_mapss.distortions import additive, dynamics, echoes, filters, pitch
from torch_mapss.distortions.leakage import FAMILY
from torch_mapss.distortions.records import Distortion
from torch_mapss.distortions.traits import SpectralPeak

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
"""The paper's families, in the order of its table."""

KINDS = ("separation", "match")

_MEASURES = {"separation": "PS", "match": "PM"}

MOST_LEAKAGE = 81  # members, half a dB apart


def said(kind: str) -> str:
    """The bank of a kind, for messages: a user of both must know which one is meant."""
    return f"the bank of {_MEASURES[kind]} ({kind!r})"


def paper_members(kind: str) -> tuple[Distortion, ...]:
    """The members of a column of the table, in the order of its rows."""
    if kind not in KINDS:
        raise ValueError(
            f"kind must be one of {KINDS}, got {kind!r}. PS is scored against the "
            f"'separation' bank and PM against the 'match' bank."
        )
    attribute = kind.upper()
    table: dict[str, tuple[Distortion, ...]] = {}
    for module in (filters, echoes, additive, dynamics, pitch):
        table |= getattr(module, attribute)
    return tuple(member for family in FAMILIES for member in table[family])


def selected(
    members: tuple[Distortion, ...], chosen: Iterable[str], argument: str, kind: str
) -> list[tuple[Distortion, bool]]:
    """Each member with whether it, or its family, is among the chosen."""
    wanted = {chosen} if isinstance(chosen, str) else set(chosen)
    families = dict.fromkeys(member.family for member in members)
    unknown = wanted - set(families) - {member.name for member in members}
    if unknown:
        raise ValueError(
            f"{argument} names {sorted(unknown)}, which {said(kind)} has neither as families nor "
            f"as members. Families: {', '.join(families)}; members: see DistortionBank.names()."
        )
    return [(member, bool({member.family, member.name} & wanted)) for member in members]


def extras(extra: Iterable[Distortion]) -> tuple[Distortion, ...]:
    members = (extra,) if isinstance(extra, Distortion) else tuple(extra)
    for member in members:
        if not isinstance(member, Distortion):
            raise TypeError(
                f"extra must hold Distortion records, got {type(member).__name__}. Wrap a function "
                f"as Distortion(name, family, function, parameters)."
            )
    return members


def distinct(members: tuple[Distortion, ...], kind: str) -> tuple[Distortion, ...]:
    """The members, if there are any and no two share a name (they would share their noise)."""
    twice = [name for name, n in Counter(member.name for member in members).items() if n > 1]
    if twice:
        raise ValueError(
            f"member names must be unique, but {twice} occur twice. Rename the extra member, or "
            f"leave the bank's own out with without={twice}."
        )
    if not members:
        raise ValueError(
            f"{said(kind)} has no members left. Leave out fewer families, or add extra."
        )
    return members


def spread(members: tuple[Distortion, ...], size: int, kind: str) -> tuple[Distortion, ...]:
    """`size` members, as evenly over the families, and within each, as counts allow."""
    if not 1 <= size <= len(members):
        raise ValueError(
            f"size must lie between 1 and {len(members)}, the members that {said(kind)} has, got "
            f"{size}."
        )
    groups: dict[str, list[int]] = {}
    for index, member in enumerate(members):
        groups.setdefault(member.family, []).append(index)
    quota = _quotas({family: len(group) for family, group in groups.items()}, size)
    kept = {
        group[place]
        for family, group in groups.items()
        for place in _places([members[index] for index in group], quota[family])
    }
    return tuple(members[index] for index in sorted(kept))


def _quotas(counts: dict[str, int], size: int) -> dict[str, int]:
    """Deal `size` places to families in rounds of one each; the last round goes to every n-th."""
    quota = dict.fromkeys(counts, 0)
    left = size
    while left:
        open_families = [family for family, count in counts.items() if quota[family] < count]
        dealt = min(left, len(open_families))
        for place in _even(len(open_families), dealt):
            quota[open_families[place]] += 1
        left -= dealt
    return quota


def _places(family: list[Distortion], quota: int) -> Sequence[int]:
    """Which members of a family to keep: the strongest peaks, else evenly spaced."""
    peaks = any(isinstance(m, SpectralPeak) for d in family for m in d.measured.values())
    return range(quota) if peaks else _even(len(family), quota)


def _even(count: int, quota: int) -> list[int]:
    """`quota` of `count` places, evenly spaced about the middle."""
    return [(2 * i + 1) * count // (2 * quota) for i in range(quota)]


def checked_leakage(leakage: int, alone: int, kind: str) -> tuple[int, int]:
    for name, value in (("leakage", leakage), ("leakage_alone", alone)):
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} must be an integer, got {value!r}. Pass e.g. leakage=7.")
        if value < 0:
            raise ValueError(f"{name} must be a number, at least 0, got {value}.")
    if leakage > MOST_LEAKAGE:
        raise ValueError(
            f"leakage must be at most {MOST_LEAKAGE} members, got {leakage}: more would lie less "
            "than half a dB apart. 7 is a good number."
        )
    if leakage and kind != "match":
        raise ValueError(
            f"leakage belongs into the 'match' bank, got kind={kind!r}: members that hold the "
            f"other sources would hide from PS what it measures. Make a DistortionBank('match', "
            f"leakage={leakage})."
        )
    if alone and not leakage:
        raise ValueError(
            f"leakage_alone={alone} takes the levels of leakage=, which is 0. Pass e.g. leakage=7 "
            "with it."
        )
    return leakage, alone


def check_leakage_kept(members: tuple[Distortion, ...], leakage: int) -> None:
    """Raise ValueError if leakage members were asked for and the choice leaves none of them."""
    if leakage and not any(member.family == FAMILY for member in members):
        raise ValueError(
            f"leakage={leakage} adds members with the other sources to {said('match')}, and the "
            "choice of families or of its size leaves all of them out again: PM would fall with "
            f"leakage as without them. Keep the family {FAMILY!r}, or ask for no leakage members."
        )
