"""Names that commands and options had in earlier versions, translated into what they are now.

Only the words of a command line are translated, before anything reads them: no command has an
option for a former name. To be removed in the version after this.
"""

from collections.abc import Iterator, Sequence

_COMMANDS = {
    "bill": ("clusters", "--bill"),
    "cache": ("system", "cache"),
    "curve": ("sweep", "--curve"),
    "metrics": ("replay", "--metrics"),
    "package": ("convert", "--to", "package"),
    "plugins": ("system", "plugins"),
    "report": ("study",),
    "schema": ("system", "schema"),
    "warm": ("system", "warm"),
}
"""What former commands are called now."""
_OPTIONS = {
    "clusters": dict.fromkeys(
        ("--from-nccl", "--from-nvidia-smi", "--from-infragraph"), "--from-file"
    ),
    "collective": {"--baseline": "--compare", "--plot": "--write", "--size": "--sizes"},
    "generate": {"--context": "--sequence"},
}
"""By command as typed: former options that have another name now."""
_TABLES = {
    "--against": "what-ifs",
    "--collectives": "collectives",
    "--ratios": "ratios",
    "--serving": "serving",
    "--serving-log": "serving-log",
    "--steps": "steps",
}
"""Former options of ``validate``: tables, of which there may be only one kind."""
_WHAT_IFS = {"--replicas": "replicas x", "--transport": "transport "}
"""Former options that are what-ifs now."""
_CABLES = ("--bandwidth", "--latency")
_WITH_VALUES = ("--throughput", "--figure", "--write", "-w", "--output", "-o")
"""Options of ``topology`` that are followed by a value."""
_SHORT = 2
"""Characters of an option such as ``-c``, whose value may follow without a blank."""


def current_words(words: Sequence[str]) -> list[str]:
    """Return a command line in the names of this version; without former names it is unchanged.

    Examples
    --------
    >>> current_words(["bill", "hgx-h100", "--ranks", "64"])
    ['clusters', '--bill', 'hgx-h100', '--ranks', '64']
    >>> current_words(["replay", "t", "--topology", "ring:8", "--bandwidth", "50 GB/s"])
    ['replay', '-c', 'ring:8, 50 GB/s', 't']
    """
    if not words:
        return []
    command, *rest = words
    rest = [*_renamed(rest, _OPTIONS.get(command, {}))]
    if command == "package":
        rest, directory = _take_option(rest, "--directory", "-o")
        rest += directory
    elif command == "report":
        rest, pages = _take_option(rest, "-o")
        rest += [word for page in pages for word in ("--write", page)]
    elif command == "validate":
        rest = _with_tables(rest)
    elif command == "generate":
        rest, launches = _take_option(rest, "--launch")
        rest += [word for launch in launches for word in (_launch_option(launch), launch)]
    for option, what_if in _WHAT_IFS.items():
        rest, values = _take_option(rest, option)
        rest = [word for value in values for word in ("--what-if", what_if + value)] + rest
    if command not in ("bill", "clusters"):
        rest = _with_network(command, rest)
    return [*_COMMANDS.get(command, (command,)), *rest]


def _renamed(words: Sequence[str], names: dict[str, str]) -> Iterator[str]:
    for word in words:
        name, equals, value = word.partition("=")
        if name in names:
            yield f"{names[name]}{equals}{value}"
        else:
            yield word


def _take_option(words: Sequence[str], *names: str) -> tuple[list[str], list[str]]:
    """Take an option with its values out of a command line."""
    rest, values = [], []
    following = iter(words)
    for word in following:
        name, equals, value = word.partition("=")
        short = word[:_SHORT]
        if word in names:
            values.append(next(following, ""))
        elif equals and name in names:
            values.append(value)
        elif len(word) > _SHORT and short in names and not word.startswith("--"):
            values.append(word[_SHORT:])
        else:
            rest.append(word)
    return rest, values


def _launch_option(value: str) -> str:
    """Return what ``--launch`` is called: with a time it was what is ``--launch-time`` now."""
    is_name = value[:1].isalpha() or not value
    return "--launch" if is_name else "--launch-time"


def _with_tables(words: list[str]) -> list[str]:
    """Write the tables of ``validate`` as its arguments; of two kinds they are refused."""
    tables = {option: _take_option(words, option)[1] for option in _TABLES}
    options = [option for option, files in tables.items() if files]
    if len(options) != 1:
        return words
    return [*_take_option(words, *options)[0], *tables[options[0]], "--as", _TABLES[options[0]]]


def _with_network(command: str, words: list[str]) -> list[str]:
    """Write ``--topology T --bandwidth B --latency L`` as the cluster ``T, B, L``.

    What cannot be meant, such as a cluster beside a bare network, is left as it is, and refused.
    """
    if not any(word.partition("=")[0] in (*_CABLES, "--topology") for word in words):
        return words
    rest, bandwidth = _take_option(words, "--bandwidth")
    rest, latency = _take_option(rest, "--latency")
    cables = [*bandwidth[-1:], *latency[-1:]]
    if command == "topology":
        index = _first_argument(rest)
        if index is not None:
            rest[index] = _network(rest[index], cables)
        return words if index is None else rest
    rest, networks = _take_option(rest, "--topology")
    rest, clusters = _take_option(rest, "--cluster", "-c")
    if command == "compare":
        if not cables or not networks:
            return words
        clusters += [_network(network, cables) for network in networks]
    elif networks and not clusters:
        clusters = [_network(networks[-1], cables)]
    elif clusters and not networks and _is_bare(clusters[-1]):
        clusters = [_network(clusters[-1], cables)]
    else:
        return words
    return [word for cluster in clusters for word in ("-c", cluster)] + rest


def _network(network: str, cables: Sequence[str]) -> str:
    return ", ".join((network, *cables))


def _is_bare(cluster: str) -> bool:
    from topologies.cluster.bare import is_bare  # slow to import, and rarely asked

    return is_bare(cluster)


def _first_argument(words: Sequence[str]) -> int | None:
    for index, word in enumerate(words):
        before = words[index - 1] if index else ""
        if not word.startswith("-") and before not in _WITH_VALUES:
            return index
    return None
