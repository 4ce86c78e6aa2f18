"""Which kernels communicate, by their names: a table of rules, to which users can add their own.

Libraries that exchange data without NCCL (custom all-reduces over peer memory, expert-parallel
dispatch) leave only their kernels' names in a trace. A rule gives the kind; size and group are
known only if an operator around the launch records them.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, cast

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from simulator.calls import KINDS, UNKNOWN
from simulator.support.errors import TraceError, shown
from simulator.support.input_files import read_bytes
from simulator.support.yaml_text import parse_yaml

BY_NAME = ""
"""Kind of a rule that leaves the kind to the words in the kernel's name, or to the host's records.
"""
_NCCL = "NCCL"
SYMMETRIC = "PyTorch symmetric memory"
"""Its operators name one of PyTorch's groups; its kernels may be launched without them."""
_LARGEST_FILE = 1 << 20
_LONGEST_NAME = 4000
"""Template arguments make names long; the part that identifies a kernel comes first."""
_SHORT_NAME = 600
"""Characters that a user's pattern sees: the time of two repeats grows with the third power."""


class KernelRule(Struct, frozen=True):
    """Kernels whose name contains the regular expression ``pattern``, ignoring case.

    ``library`` is the owner of the kernels, ``note`` the source of the name and its purpose.
    """

    pattern: str
    kind: str
    library: str = ""
    note: str = ""

    @property
    def listed(self) -> bool:
        """Whether PyTorch lists its groups, so that a call without a group is the whole job's."""
        return self.library == _NCCL


@dataclass(frozen=True)
class KernelRules:
    """Rules in order of precedence; the first that matches counts."""

    rules: tuple[KernelRule, ...]
    own: int = 0
    """Number of leading rules that are a user's: these see only the beginning of a name."""
    _patterns: tuple[re.Pattern[str], ...] = field(init=False, repr=False, compare=False)
    _known: dict[str, KernelRule | None] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        patterns = []
        for rule in self.rules:
            if rule.kind not in (*KINDS, UNKNOWN, BY_NAME):
                raise TraceError(f"rule {rule.pattern!r}: kind {rule.kind!r} is none of {_KNOWN}")
            try:
                patterns.append(re.compile(rule.pattern, re.IGNORECASE))
            except re.error as error:
                raise TraceError(
                    f"rule {rule.pattern!r}: not a regular expression: {error}"
                ) from error
        object.__setattr__(self, "_patterns", tuple(patterns))

    def rule(self, kernel: str) -> KernelRule | None:
        """Return the rule for a kernel; None if it does not communicate.

        Examples
        --------
        >>> kernel = "void vllm::cross_device_reduce_2stage<__half, 8>(vllm::RankData*)"
        >>> KERNELS.rule(kernel).kind
        'all_reduce'
        >>> KERNELS.rule("triton_poi_fused_add_all_reduce_4") is None
        True
        """
        name = kernel[:_LONGEST_NAME]
        if name not in self._known:  # ranks of a job have the same kernels
            short, rules = name[:_SHORT_NAME], zip(self.rules, self._patterns, strict=True)
            matching = (
                rule
                for number, (rule, pattern) in enumerate(rules)
                if pattern.search(short if number < self.own else name)
            )
            self._known[name] = next(matching, None)
        return self._known[name]

    def before(self, rules: Iterable[KernelRule]) -> "KernelRules":
        """Return these rules after others, which take precedence."""
        own = (*rules,)
        return KernelRules((*own, *self.rules), own=self.own + len(own))


_KNOWN = ", ".join((*KINDS, UNKNOWN))
_TABLE = "comm_kernels.yaml"
KERNELS = KernelRules(
    tuple(
        KernelRule(**rule)
        for rule in cast(
            "Any", parse_yaml((files("traces") / "core" / _TABLE).read_bytes(), _TABLE)
        )
    )
)
"""What is known, from ``comm_kernels.yaml``; ``note`` of each rule says from where."""


def communicates(kernel: str) -> bool:
    """Whether a kernel of this name communicates, by the built-in rules.

    Examples
    --------
    >>> communicates("ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevComm*, unsigned long)")
    True
    """
    return KERNELS.rule(kernel) is not None


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
    pattern: Annotated[str, Field(min_length=3, max_length=1000)]
    kind: str
    library: str = "your rule"
    note: str = ""


def load_kernel_rules(path: Path | str) -> KernelRules:
    """Read a user's rules from a YAML file; they take precedence over the built-in ones.

    The file is a list of ``pattern``, ``kind`` and, if one likes, ``library`` and ``note``.

    Raises
    ------
    TraceError
        If it cannot be read, holds something else, or a pattern or a kind is none.
    """
    path = Path(path)
    text = read_bytes(path, most=_LARGEST_FILE + 1)
    if len(text) > _LARGEST_FILE:
        raise TraceError(f"{path}: more than {_LARGEST_FILE} bytes: not a table of kernels")
    try:
        entries = TypeAdapter(list[_Entry]).validate_python(parse_yaml(text, path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        wanted = "want a list of pattern, kind, library, note"
        raise TraceError(f"{path}: {where or 'the file'}: {first['msg']}; {wanted}") from error
    rules = [KernelRule(entry.pattern, entry.kind, entry.library, entry.note) for entry in entries]
    try:
        for rule in rules:
            _check_matching_time(rule.pattern)
        return KERNELS.before(rules)
    except TraceError as error:
        raise TraceError(f"{path}: {error}") from error


def _check_matching_time(pattern: str) -> None:
    """Refuse a pattern that a long name could keep matching without end.

    A repeat inside a repeat, or of alternatives, takes exponential time if it does not match;
    repeats one after another take a power of the name's length.
    """
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise TraceError(f"rule {shown(pattern)}: not a regular expression: {error}") from error
    repeats = _repeats(pattern)
    if repeats is None or repeats > _MOST_REPEATS:
        why = "repeats a repeat or alternatives" if repeats is None else f"has {repeats} repeats"
        raise TraceError(
            f"rule {shown(pattern)}: {why}, so a long name would take forever: write at most "
            f"{_MOST_REPEATS} of *, + and {{n}}, none inside another"
        )


_PARTS = re.compile(
    r"""(?P<comment>\(\?\#[^)]*\))
    | (?P<verbose>\(\?[a-zA-Z]*x)                                     # in which # begins a comment
    | (?P<again>\\[1-9]|\(\?P=\w+\))
    | (?P<choice>\||\(\?\(\w+\))
    | (?P<open>\((?:\?(?:P<\w+>|<?[=!]|>|[a-zA-Z-]*:|[a-zA-Z]+(?=\))))?)
    | (?P<close>\))
    | (?P<repeat>[*+?]|\{(?=[\d,]+\})\d*(?:,\d*)?\})[?+]?
    | \\. | \[\^?\]?(?:\\.|[^\]\\])*\] | .""",
    re.VERBOSE | re.DOTALL,
)
_ONCE = re.compile(r"\?|\{(0*[01]?,)?0*1\}|\{0+\}")


def _repeats(pattern: str) -> int | None:
    """Return the repeats of a safe pattern; None if one contains another, or alternatives."""
    count = 0
    groups, ended = [False], False  # whether each open group, and the one just closed, repeats
    for part in _PARTS.finditer(pattern):
        kind = part.lastgroup
        if kind == "verbose":
            return None
        if kind == "repeat" and not _ONCE.fullmatch(part["repeat"]):
            if ended:
                return None
            count += 1
            groups[-1] = True
        elif kind == "open":
            groups.append(False)
        elif kind == "choice" and part[0] == "|":
            groups[-1] = True
        elif kind == "choice":
            groups.append(True)
        ended = kind == "again" or (kind == "close" and groups.pop())
        groups[-1] = groups[-1] or ended
    return count


_MOST_REPEATS = 2
