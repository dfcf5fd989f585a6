"""Statements about small arrays as code: what may share a loop does.

A `Statement` computes the elements of one array from those of others, which are scalar graphs of
numbers in memory. Statements of one length that need no more of each other than the running element
become one loop, around one scalar function in which nothing is computed twice, and what only
that loop reads is in no memory. Statements that do not depend on the row come before all rows.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256

import numpy as np
import pytensor.scalar as ps
from pytensor.graph.basic import Variable

from pymc_subsample.expansion.fusion import Ops, applied, split
from pymc_subsample.graph.concrete import rebuild
from pymc_subsample.graph.interpreter import Move, NoForm

# A statement's line, where the element becomes what was computed.
STORE = "{target} = {0}"
# Elements of an array of places, which becomes part of the code.
MOST_KNOWN = 4_096


@dataclass(frozen=True)
class Place:
    """Where numbers are, in order: elements of an array, or a variable."""

    name: str  # Of an array with a gap for the position, as "t1[{}]".
    index: np.ndarray | None  # Positions; None for a variable.

    def moved(self, shape: tuple[int, ...], function: Move) -> "Place":
        """Return where elements are that `function` takes from an array of that shape."""
        if self.index is None:
            return self
        return Place(self.name, np.asarray(function(self.index.reshape(shape))).ravel())

    def same(self, other: "Place") -> bool:
        """Whether elements in turn are in the same places."""
        if self.index is None or other.index is None:
            return self.index is other.index and self.name == other.name
        return self.name == other.name and np.array_equal(self.index, other.index)


@dataclass(frozen=True)
class Run:
    """Elements that are one scalar graph of numbers in memory, with the places of each in turn."""

    shape: tuple[int, ...]
    graph: Variable
    places: dict[Variable, Place] = field(default_factory=dict)
    operations: int = 0

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=int))

    @property
    def place(self) -> Place:
        """Where the only numbers are of which it is made."""
        [place] = self.places.values()
        return place

    def moved(self, function: Move) -> "Run":
        """Take elements from elsewhere."""
        shape = np.shape(function(np.broadcast_to(np.int8(0), self.shape)))
        places = {v: p.moved(self.shape, function) for v, p in self.places.items()}
        return replace(self, shape=shape, places=places)

    def apart(self, places: Mapping[Variable, Place]) -> "Run":
        """Rename the numbers that are elsewhere by the same name."""
        new = {v: v.type() for v, p in self.places.items() if not p.same(places.get(v, p))}
        if not new:
            return self
        [graph] = rebuild([self.graph], dict(new))
        return replace(self, graph=graph, places={new.get(v, v): p for v, p in self.places.items()})


@dataclass
class Statement:
    """Elements of one array, in turn, from those of others."""

    target: Place
    line: str  # With gaps for the target's element and for the values.
    values: tuple[Run, ...]
    varies: bool  # Whether it depends on the row.
    start: str | None = None  # What the target is before the loop, for reductions.
    reads: tuple[str, ...] = ()  # Arrays that the line itself reads.
    follows: bool = False  # Whether it changes what other statements wrote.
    level: int = 0

    @property
    def size(self) -> int:
        """Turns of its loop."""
        return max(v.size for v in self.values)

    @property
    def places(self) -> Iterable[Place]:
        """Where its values are read."""
        return (p for v in self.values for p in v.places.values())


class Schedule:
    """Lines of code of statements, in the order in which they were written down.

    Attributes
    ----------
    before, lines : list of str
        Code that does not depend on the row, and code that does.
    functions : dict
        What the code calls and reads.
    keys : list of str
        Identify these for the disk cache.
    operations : int
        Number of different scalar operations in the code.
    """

    def __init__(
        self,
        statements: Sequence[Statement],
        outputs: Sequence[str],
        apply: Callable[[set[Variable]], Ops],
        running: str,
        constants: Mapping[str, np.ndarray],
    ) -> None:
        self._apply, self._running = apply, running
        self._statements = _needed(statements, set(outputs))
        self._writers: defaultdict[str, list[Statement]] = defaultdict(list)
        for statement in self._statements:
            statement.level = self._level(statement)
            self._writers[statement.target.name].append(statement)
        self.before: list[str] = []
        self.lines: list[str] = []
        self.functions: dict[str, object] = {"np": np}
        self.keys: list[str] = []
        self.operations = 0
        read = {n for s in self._statements for n in (*s.reads, *(p.name for p in s.places))}
        for name in sorted(read & set(constants)):
            self._known(constants[name])
        self._shared = self._in_memory(set(outputs))
        groups: defaultdict[tuple, list[Statement]] = defaultdict(list)
        for statement in self._statements:
            groups[statement.varies, statement.level, statement.size].append(statement)
        for name, writers in self._writers.items():
            ends = [s.target.index.max(initial=-1) for s in writers if s.target.index is not None]
            if ends and name in self._shared and name not in outputs:
                self.before.append(f"{name.removesuffix('[{}]')} = np.empty({1 + max(ends)})")
        for (varies, *_), group in sorted(groups.items(), key=lambda item: item[0][:2]):
            self._write(self.lines if varies else self.before, group)

    # Which statements share a loop

    def _level(self, statement: Statement) -> int:
        """Return the number of loops that must come before."""
        level = 0
        for place in statement.places:
            for writer in self._writers[place.name]:
                level = max(level, writer.level + (not self._joined(statement, place)))
        before = [*statement.reads, *([statement.target.name] if statement.follows else [])]
        return max([level, *(w.level + 1 for name in before for w in self._writers[name])])

    def _joined(self, reader: Statement, place: Place) -> bool:
        """Whether a statement reads what is written in the same turn of a loop that it can join."""
        writers = self._writers[place.name]
        if len(writers) != 1 or writers[0].line != STORE:
            return False
        [writer] = writers
        same = writer.size == reader.size and writer.varies == reader.varies
        return same and writer.target.same(place)

    def _in_memory(self, outputs: set[str]) -> set[str]:
        """Return the targets that other loops read."""
        shared = set(outputs)
        for statement in self._statements:
            shared.update(statement.reads)
            if statement.line != STORE:
                shared.add(statement.target.name)
            for place in statement.places:
                joined = self._joined(statement, place)
                if not joined or self._writers[place.name][0].level != statement.level:
                    shared.add(place.name)
        return shared | {name for name, writers in self._writers.items() if len(writers) > 1}

    # Code

    def _write(self, lines: list[str], group: Sequence[Statement]) -> None:
        """Add the loop that statements share."""
        size = group[0].size
        codes: dict[str, Variable] = {}
        runs: dict[str, bool] = {}
        written: dict[str, Variable] = {}
        graphs: list[Variable] = []
        for statement in group:
            for run in statement.values:
                memo: dict[Variable, Variable] = {}
                for v, place in run.places.items():
                    if place.name in written and self._joined(statement, place):
                        memo[v] = written[place.name]
                    else:
                        code, runs[code] = self._element(place)
                        memo[v] = codes.setdefault(code, v.type())
                graphs += rebuild([run.graph], memo)
            if statement.line == STORE:
                written[statement.target.name] = ps.cast(graphs[-1], "float64")
        named = {v: code for code, v in codes.items()}
        values = iter(self._values(lines, graphs, named, runs))
        body: list[str] = []
        looped = size != 1
        for statement in group:
            found = [next(values) for _ in statement.values]
            code, moves = self._element(statement.target)
            if statement.start is not None:
                self._begin(lines, statement)
            if statement.line != STORE or statement.target.name in self._shared:
                body += statement.line.format(*found, target=code).split("\n")
            looped |= moves
        if self._call:
            body.insert(0, self._call)
        looped |= any(runs.values())
        if looped:
            lines.append(f"for {self._running} in range({size}):")
        lines += [f"{'    ' * looped}{line}" for line in body]

    def _begin(self, lines: list[str], statement: Statement) -> None:
        index = statement.target.index
        if index is None:
            lines.append(f"{statement.target.name} = {statement.start}")
            return
        once = np.unique(index)
        code, _ = self._element(Place(statement.target.name, once))
        lines.append(f"for {self._running} in range({len(once)}):")
        lines.append(f"    {code} = {statement.start}")

    def _values(
        self,
        lines: list[str],
        graphs: Sequence[Variable],
        named: Mapping[Variable, str],
        runs: Mapping[str, bool],
    ) -> list[str]:
        """Return the code of the running values, with what does not run computed before.

        Leaves the call that computes them, if any, in `_call`.
        """
        self._call = ""
        running = [v for v, code in named.items() if runs[code] or not any(runs.values())]
        results = applied(graphs, list(named), self._apply(set(running)))
        codes = [named.get(r, _number(r)) for r in results]
        computed = list(dict.fromkeys(r for r, c in zip(results, codes, strict=True) if c is None))
        if not computed:
            return [c or "" for c in codes]
        fixed = [v for v in named if v not in set(running)]
        function = split([ps.cast(r, "float64") for r in computed], running, fixed)
        if function.key is None:
            raise NoForm
        self.operations += function.n_operations
        k = len(self.keys)
        self.functions[f"row{k}"] = function.row
        self.keys.append(function.key)
        hoisted = [f"h{k}_{j}_" for j in range(function.n_hoisted)]
        if function.hoist is not None:
            self.functions[f"hoist{k}"] = function.hoist
            arguments = ", ".join(named[fixed[j]] for j in function.used_shared)
            lines.append(f"{', '.join(hoisted)} = hoist{k}({arguments})")
        arguments = ", ".join([*(named[running[j]] for j in function.used), *hoisted])
        new = {r: f"v{k}_{j}_" for j, r in enumerate(computed)}
        self._call = f"{', '.join(new.values())} = row{k}({arguments})"
        return [new[r] if c is None else c for r, c in zip(results, codes, strict=True)]

    def _element(self, place: Place) -> tuple[str, bool]:
        """Return the code of the running element, and whether it runs at all."""
        if place.index is None:
            return place.name, False
        code, runs = self._position(place.index)
        return place.name.format(code), runs

    def _position(self, index: np.ndarray) -> tuple[str, bool]:
        first = int(index[0]) if len(index) else 0
        i = self._running
        if np.all(index == first):
            return str(first), False
        at = index - first
        repeats = int(np.argmax(at != 0))
        period = int(np.argmax(at[1:] == 0)) + 1 if np.any(at[1:] == 0) else len(at)
        k = np.arange(len(index))
        shift = f"{first} + " if first else ""
        for pattern, code in [
            (k, i),
            (k // repeats, f"{i} // {repeats}"),
            (k % period, f"{i} % {period}"),
        ]:
            if np.array_equal(at, pattern):
                return shift + code, True
        return f"{self._known(index)}[{i}]", True

    def _known(self, values: np.ndarray) -> str:
        """Name an array of the source's environment."""
        if values.size > MOST_KNOWN:
            raise NoForm
        name, key = known(values)
        if name not in self.functions:
            self.functions[name] = values
            self.keys.append(key)
        return name


def known(values: np.ndarray) -> tuple[str, str]:
    """Return the name of an array of numbers that is part of the code, and what identifies it."""
    key = f"{values.dtype} {values.tobytes().hex()}"
    return f"k{sha256(key.encode()).hexdigest()[:16]}", key


def _number(graph: Variable) -> str | None:
    if isinstance(graph, ps.ScalarConstant):
        return repr(float(graph.data)).replace("inf", "np.inf").replace("nan", "np.nan")
    return None


def _needed(statements: Sequence[Statement], names: set[str]) -> list[Statement]:
    """Return the statements that outputs are made of."""
    found: list[Statement] = []
    needed = set(names)
    for statement in reversed(statements):
        if statement.target.name in needed:
            found.append(statement)
            needed.update(statement.reads)
            needed.update(p.name for p in statement.places)
    return found[::-1]
