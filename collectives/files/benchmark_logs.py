"""Logs of communication benchmarks: recognised by content, read, and checked for consistency.

Forms: nccl-tests and rccl-tests as printed and as JSON (:mod:`collectives.files.nccl_tests`), OSU
micro-benchmarks and perftest (:mod:`collectives.files.micro_benchmarks`), lines of NCCL's and
RCCL's Inspector (:mod:`collectives.files.inspector`), and tables
(:mod:`collectives.files.call_table`).
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from collectives.files.call_table import is_table, read_table
from collectives.files.inspector import is_inspector, read_inspector
from collectives.files.measured_calls import BenchmarkLog, Layout, MeasuredCall
from collectives.files.micro_benchmarks import is_osu, is_perftest, read_osu, read_perftest
from collectives.files.nccl_tests import is_nccl_tests, read_nccl_tests
from simulator.support.errors import TraceError
from simulator.support.input_files import as_printed, decoded, unpack

_FORMS = (
    "nccl-tests, rccl-tests, OSU micro-benchmarks, perftest, the Inspector's lines, or CSV with "
    "kind, ranks, size_bytes and time_us"
)
_LARGE_SIZE = 16 * 2**20
"""Size (B) from which links dominate: versions of a library then differ by a few per cent."""
_MOST_RATIO = 1.3
"""Median ratio of the times of equal large calls above which logs are of two machines."""
_FEWEST_REPEATED = 3


def read_logs(paths: Sequence[Path | str], layout: Layout | None = None) -> list[BenchmarkLog]:
    """Read logs of one machine, one for each file, or one for all files of the Inspector.

    Parameters
    ----------
    paths
        Files of any of the forms; their names have no meaning.
    layout
        Given by the user for what a log does not record.

    Raises
    ------
    TraceError
        If a file cannot be read, is not one of the forms, is truncated or inconsistent; if the
        logs are of two machines or two libraries.
    """
    texts = [(str(path), _text(Path(path))) for path in paths]
    lines = [(path, text) for path, text in texts if is_inspector(text)]
    logs = [_log(path, text, layout or Layout()) for path, text in texts if not is_inspector(text)]
    if lines:  # of one job, a file for each of its processes
        logs.append(_not_empty(read_inspector(lines, layout or Layout())))
    for tool in dict.fromkeys(log.tool for log in logs):
        named = [(log.path, name) for log in logs if log.tool == tool for name in log.devices]
        _check_one("machines", named)
    _check_one("libraries", [(log.path, log.library) for log in logs if log.library])
    _check_repeated([call for log in logs for call in log.calls])
    return logs


def is_log(head: bytes) -> bool:
    """Whether the beginning of a file is that of a benchmark's log, or of a table of its calls."""
    try:
        beginning = decoded(head)
    except UnicodeError:
        return False
    printed = as_printed(beginning)
    return any(recognise(printed) for recognise in (is_nccl_tests, is_osu, is_perftest)) or any(
        recognise(beginning) for recognise in (is_inspector, is_table)
    )


def _check_one(what: str, named_by_file: Sequence[tuple[str, str]]) -> None:
    """Refuse several different names; ``named_by_file`` are names with their files."""
    first: dict[str, str] = {}
    for path, name in named_by_file:
        first.setdefault(name, path)
    different = [(path, name) for name, path in first.items()]
    if len(different) > 1:
        (first_path, name), (second_path, second) = different[:2]
        raise TraceError(
            f"{first_path}: {name}, and {second_path}: {second}: two {what} are mixed;"
            " give the logs of one"
        )


def _text(path: Path) -> str:
    try:
        return decoded(unpack(path, "as a log"))
    except UnicodeError as error:
        raise TraceError(f"{path}: cannot be read as a log: {error}") from error


def _log(name: str, text: str, layout: Layout) -> BenchmarkLog:
    printed = as_printed(text)
    if is_nccl_tests(printed):
        log = read_nccl_tests(printed, name, layout)
    elif is_osu(printed):
        log = read_osu(printed, name, layout)
    elif is_perftest(printed):
        log = read_perftest(printed, name)
    elif is_table(text):
        log = read_table(text, name, layout)
    else:
        raise TraceError(f"{name}: is not a known kind of log: {_FORMS}")
    return _not_empty(log)


def _not_empty(log: BenchmarkLog) -> BenchmarkLog:
    if not log.calls:
        why = f" ({log.notes[0]})" if log.notes else ""
        raise TraceError(f"{log.path}: no calls were timed in this {log.tool} log{why}")
    return log


def _check_repeated(calls: Sequence[MeasuredCall]) -> None:
    """Refuse equal large calls whose times differ too much in the median."""
    equal: dict[tuple[str, int, int | None, float], list[MeasuredCall]] = defaultdict(list)
    for call in calls:
        if call.size >= _LARGE_SIZE and not call.streamed:
            equal[call.kind, call.ranks, call.nodes, call.size].append(call)
    repeated = [
        sorted(same, key=lambda call: call.time) for same in equal.values() if len(same) > 1
    ]
    ratios = [same[-1].time / same[0].time for same in repeated]
    if len(ratios) >= _FEWEST_REPEATED and median(ratios) > _MOST_RATIO:
        fastest, slowest = repeated[0][0], repeated[0][-1]
        raise TraceError(
            f"equal calls of 16 MiB and more are {median(ratios):.2f} times apart in the median "
            f"({fastest.location} and {slowest.location}): two machines are mixed; "
            "give the rows of one"
        )
