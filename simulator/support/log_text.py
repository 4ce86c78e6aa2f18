"""Text of a log as a program printed it: without what terminals, launchers and loggers add.

Before a line there may be, in any order: what ``mpirun --tag-output`` and ``--timestamp-output``,
``srun --label``, ``mpiexec -l`` and ``kubectl logs`` put there, times of loggers, and the mark of a
quotation. Colours are taken out anywhere.
"""

import re

_COLOUR = re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]")
_BEFORE = re.compile(
    r"""^(?:
      >\ ?                                                                  # a quotation
    | \d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\s   # a logger's time
    | (?:stdout|stderr)\ [FP]\s                                             # a container's stream
    | [A-Z][a-z]{2}\ [A-Z][a-z]{2}\s+\d+\ \d\d:\d\d:\d\d\ \d{4}              # mpirun's time
    | \s*\[[^\[\]\s]*\d+,\d+\](?:<\w+>)?:\s?                                # mpirun's tag
    | \[\d+\]:?\s(?=\s*(?:\#|\d|GPU\d|NIC\d))                    # mpiexec -l
    | \s*\d+:(?:\s|$)                                                       # srun --label
    | [A-Za-z][\w.-]*(?:\[\d+\])?:\s(?=\s*(?:\#|\d+\s+\d|GPU\d|NIC\d))  # a host
    )""",
    re.VERBOSE,
)
_LONGEST = 10_000
"""Characters of a line that is not JSON: benchmarks print a few hundred."""
_MOST = 6
"""Marks before one line at most: a logger's time, a stream, a launcher's time, its tag, a rank."""


def decoded(data: bytes) -> str:
    """Decode a file: UTF-8, or UTF-16 with its mark, as PowerShell redirects output.

    Raises
    ------
    UnicodeError
        If it is neither.
    """
    wide = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    return data.decode("utf-16" if wide else "utf-8-sig")


def as_printed(text: str) -> str:
    r"""Return the lines as the program printed them; there are as many as before.

    Examples
    --------
    >>> as_printed("[1,0]<stdout>:\x1b[32m# size count\x1b[0m")
    '# size count'
    """
    return "\n".join(_line(line) for line in text.splitlines())


def _line(line: str) -> str:
    if len(line) > _LONGEST and line.lstrip()[:1] not in ("{", "["):
        return ""
    line = _COLOUR.sub("", line)
    for _ in range(_MOST):
        shorter = _BEFORE.sub("", line, count=1)
        if shorter == line:
            break
        line = shorter
    return line
