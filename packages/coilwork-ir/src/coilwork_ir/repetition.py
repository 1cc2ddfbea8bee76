"""Find equal regions that follow each other in a sequence of nodes, as equal layers of a model do.

Nodes are given as `Entry`s: a form, which is what the node is but for the names that it mentions, and these
names. `find_repetition` finds copies of a region: stretches of one length whose nodes have equal forms and
mention corresponding names. A name of a copy is its own, as the value that a node of it defines or a weight
that it alone reads; or a value of a copy some places before; or one that all copies mention alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

# Nodes in a row whose forms have to be equal for a repetition to be looked for.
_WINDOW: Final = 8
# Lengths of regions that are looked at closely, the most frequent ones.
_MOST_LENGTHS: Final = 4
# Kinds of layers that take turns and differ in the values of the whole model that they read.
_MOST_TOGETHER: Final = 6


@dataclass(frozen=True, slots=True)
class Entry:
    """A node of a sequence.

    Attributes:
        form: the node but for names; None for one that nothing is equal to.
        names: what it mentions, in an order that nodes of one form share.
        defines: those of `names` that it defines, in such an order.
    """

    form: Hashable
    names: tuple[str, ...]
    defines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Repetition:
    """Copies of a region, numbered from 0, each of `length` nodes, the first from position `start` on.

    Copies from `first` up to `last`, which is not one of them, are equal. Those around are equal in the forms
    of their nodes alone. Nodes behind all copies that read a copy's values belong to it, too.

    Attributes:
        positions: those of the nodes of each copy.
        owners: the copy of each node, -1 for none.
        slots: corresponding names by copy, of all copies for what nodes define, and of the equal copies for
            what else is a copy's own ("" elsewhere).
        places: the slot and the copy of each name.
    """

    start: int
    length: int
    copies: int
    first: int
    last: int
    positions: tuple[tuple[int, ...], ...]
    owners: tuple[int, ...]
    slots: tuple[tuple[str, ...], ...]
    places: Mapping[str, tuple[int, int]]

    def shift(self, name: str, by: int) -> str | None:
        """Return the name that corresponds to `name` so many copies later; None if there is no such copy.
        Names that are no copy's own stay.
        """
        place = self.places.get(name)
        if place is None:
            return name
        slot, copy = place
        names = self.slots[slot]
        return (names[copy + by] or None) if 0 <= copy + by < len(names) else None

    def are_alike(self, names: Set[str], among: Set[str]) -> bool:
        """Tell if all equal copies have their own of corresponding names in `names`, or none has, for names
        that are in `among`: the inputs, each of which somebody reads.
        """
        for slot in self.slots:
            own = slot[self.first : self.last]
            if own[0] in among and len({name in names for name in own}) > 1:
                return False
        return True

    def name_earlier(self, entry: Entry, by: int) -> dict[str, str] | None:
        """Names of values that stand so many copies before those that a node behind the equal copies reads
        of them; None if these are not values of equal copies, or if the node has no form.
        """
        names: dict[str, str] = {}
        for name in entry.names:
            place = self.places.get(name)
            if place is None or place[1] >= self.last:
                continue
            earlier = self.shift(name, -by)
            if place[1] - by < self.first or earlier is None or entry.form is None:
                return None
            names[name] = earlier
        return names


def find_repetition(entries: Sequence[Entry], facts: Mapping[str, Hashable], least: int) -> Repetition | None:
    """Find the repetition that covers most nodes, of at least `least` equal copies.

    `facts` is all that is known of a name beside the nodes that mention it: of an input for one, that it is
    given away, and of any, that it is a result. Copies are equal only if facts about their names are.
    Time is linear in the number of nodes.
    """
    numbers: dict[Hashable, int] = {}
    forms: list[int] = []
    for position, entry in enumerate(entries):
        unlike = -1 - position
        forms.append(unlike if entry.form is None else numbers.setdefault(entry.form, len(numbers)))
    best: Repetition | None = None
    mentions: dict[str, list[int]] | None = None
    for length in _list_lengths(forms, least):
        start, end = _find_stretch(forms, length)
        copies = (end - start) // length + 1
        if copies < least or (best is not None and copies * length <= _count_covered(best)):
            continue
        if mentions is None:
            mentions = list_mentions(entries)
        found = compare_copies(entries, facts, mentions, start, length, copies)
        for together in range(2, _MOST_TOGETHER + 1):
            if found.last - found.first >= least or copies < together * least:
                break
            # layers of two kinds take turns: attention to all tokens, and to those nearby
            found = compare_copies(entries, facts, mentions, start, together * length, copies // together)
        if found.last - found.first >= least and (
            best is None or _count_covered(found) > _count_covered(best)
        ):
            best = found
    return best


def _count_covered(found: Repetition) -> int:
    return (found.last - found.first) * found.length


def _list_lengths(forms: Sequence[int], least: int) -> list[int]:
    """Distances at which many windows of equal forms follow each other, most of them first.

    A window that a region has several times, as three projections of one input do, is counted at the
    distances inside of the region alone. So a quarter of all windows is enough.
    """
    latest: dict[tuple[int, ...], int] = {}
    counts: Counter[int] = Counter()
    for position in range(len(forms) - _WINDOW + 1):
        window = tuple(forms[position : position + _WINDOW])
        before = latest.get(window)
        if before is not None:
            counts[position - before] += 1
        latest[window] = position
    return [
        length
        for length, count in counts.most_common(_MOST_LENGTHS)
        if 4 * count >= (least - 1) * length - _WINDOW
    ]


def _find_stretch(forms: Sequence[int], length: int) -> tuple[int, int]:
    """Return the longest stretch of positions at which the form is that of the node `length` later."""
    best, begin = (0, 0), 0
    for position in range(len(forms) - length + 1):
        if position < len(forms) - length and forms[position] == forms[position + length]:
            continue
        if position - begin > best[1] - best[0]:
            best = begin, position
        begin = position + 1
    return best


def list_mentions(entries: Sequence[Entry]) -> dict[str, list[int]]:
    """Return the positions of the nodes that mention each name."""
    found: dict[str, list[int]] = {}
    for position, entry in enumerate(entries):
        for name in entry.names:
            found.setdefault(name, []).append(position)
    return found


def compare_copies(
    entries: Sequence[Entry],
    facts: Mapping[str, Hashable],
    mentions: Mapping[str, Sequence[int]],
    start: int,
    length: int,
    copies: int,
) -> Repetition:
    """Return the longest row of equal copies among those from position `start` on, of `length` nodes each,
    whose nodes have equal forms. `mentions` are those of all names.
    """
    places: dict[str, tuple[int, int]] = {}
    slots: list[list[str]] = []
    for copy in range(copies):
        slot = 0
        for position in range(start + copy * length, start + (copy + 1) * length):
            for name in entries[position].defines:
                if copy == 0:
                    slots.append([""] * copies)
                slots[slot][copy] = name
                places[name] = slot, copy
                slot += 1
    end = start + copies * length
    positions, owners = _find_owners(entries, places, start, length, copies)
    signatures: list[list[Hashable]] = []
    others: list[tuple[str, ...]] = []
    for copy in range(copies):
        signature, own = _sign_copy(entries, facts, mentions, places, owners, positions[copy], copy, end)
        signatures.append(signature)
        others.append(own)
    first, last = _find_equal(signatures)
    defined = len(slots)
    for number in range(len(others[first])):
        slots.append([""] * copies)
        for copy in range(first, last):
            name = others[copy][number]
            slots[-1][copy] = name
            places[name] = defined + number, copy
    return Repetition(
        start=start,
        length=length,
        copies=copies,
        first=first,
        last=last,
        positions=tuple(map(tuple, positions)),
        owners=tuple(owners),
        slots=tuple(map(tuple, slots)),
        places=places,
    )


def _find_owners(
    entries: Sequence[Entry], places: Mapping[str, tuple[int, int]], start: int, length: int, copies: int
) -> tuple[list[list[int]], list[int]]:
    """Return the positions of the nodes of each copy, and the copy of each node, -1 for none.

    Behind the copies, a node that reads values of them, or what one of them alone reads, belongs to the
    latest that it reads a value of.
    """
    end = start + copies * length
    positions = [list(range(start + copy * length, start + (copy + 1) * length)) for copy in range(copies)]
    owners = [-1] * start + [copy for copy in range(copies) for _ in range(length)]
    attached: dict[str, int] = {}
    for position in range(start, end):
        for name in entries[position].names:
            if name not in places and attached.setdefault(name, owners[position]) != owners[position]:
                attached[name] = -1
    for position in range(end, len(entries)):
        entry, owner = entries[position], -1
        for name in entry.names:
            place = places.get(name)
            owner = max(owner, attached.get(name, -1) if place is None else place[1])
        owners.append(owner)
        if owner >= 0:
            positions[owner].append(position)
            attached.update(dict.fromkeys(entry.defines, owner))
    return positions, owners


def _sign_copy(
    entries: Sequence[Entry],
    facts: Mapping[str, Hashable],
    mentions: Mapping[str, Sequence[int]],
    places: Mapping[str, tuple[int, int]],
    owners: Sequence[int],
    positions: Sequence[int],
    copy: int,
    end: int,
) -> tuple[list[Hashable], tuple[str, ...]]:
    """Return what is equal for equal copies, and the copy's own names, beside those that `places` has."""
    own: dict[str, int] = {}
    signature: list[Hashable] = []
    for position in positions:
        entry = entries[position]
        if position >= end:
            # forms of nodes before are known to be equal
            signature.append(entry.form)
        for name in entry.names:
            place = places.get(name)
            if place is not None:
                signature.append((place[0], copy - place[1]))
                continue
            known = own.get(name)
            if known is None:
                if any(owners[where] != copy for where in mentions[name]):
                    signature.append(name)
                    continue
                own[name] = known = len(own)
                signature.append(facts.get(name))
            signature.append(known)
        signature.extend([facts.get(name) for name in entry.defines])
    return signature, tuple(own)


def _find_equal(signatures: Sequence[Sequence[Hashable]]) -> tuple[int, int]:
    """Return the longest row of equal signatures."""
    best, begin = (0, 1), 0
    for copy in range(1, len(signatures) + 1):
        if copy < len(signatures) and signatures[copy] == signatures[copy - 1]:
            continue
        if copy - begin > best[1] - best[0]:
            best = begin, copy
        begin = copy
    return best


# ---- what is made of a shorter sequence ----


@dataclass(frozen=True, slots=True)
class Window:
    """The stretch of results, from `begin` up to `end`, that stands for one copy; the same stretch for the
    next copy follows. `own` are names that the stretch defines beside those of the sequence, with what
    corresponds to them in the next stretch.
    """

    begin: int
    end: int
    own: Mapping[str, str]


def find_window(
    results: Sequence[Entry], repetition: Repetition, defined: Mapping[str, tuple[int, int]], copy: int
) -> Window | None:
    """Find two stretches of `results` that follow each other and are equal but for the copy.

    `results` is what was made of a sequence from which copies were left out; `defined` are the places that
    names of it have. The first stretch has a result of `copy`.
    """
    heads: dict[tuple[Hashable, int], int] = {}
    begins: list[tuple[int, int]] = []
    for position, entry in enumerate(results):
        found = [defined[name] for name in entry.defines if name in defined]
        if not found:
            continue
        slot, number = found[0]
        if number == copy:
            heads[entry.form, slot] = position
        elif number == copy + 1 and (entry.form, slot) in heads:
            begins.append((heads[entry.form, slot], position))
    for begin, middle in begins:
        window = _compare_windows(results, defined, begin, middle)
        if window is not None:
            return window
    return None


def _compare_windows(
    results: Sequence[Entry], defined: Mapping[str, tuple[int, int]], begin: int, middle: int
) -> Window | None:
    if 2 * middle - begin > len(results):
        return None
    own: dict[str, str] = {}
    for position in range(begin, middle):
        one, other = results[position], results[position + middle - begin]
        if one.form is None or one.form != other.form or len(one.names) != len(other.names):
            return None
        new = frozenset(one.defines)
        for name, later in zip(one.names, other.names, strict=True):
            place, place_later = defined.get(name), defined.get(later)
            if place is not None:
                if place_later != (place[0], place[1] + 1):
                    return None
            elif name in own or (name in new and name != later):
                if own.setdefault(name, later) != later:
                    return None
            elif name != later:
                return None
    return Window(begin, middle, own)
