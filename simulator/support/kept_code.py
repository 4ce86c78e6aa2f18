"""Machine code of compiled loops, kept beside their source and run without the compiler.

A loop that was compiled is kept as one file: what it was made from, the name to enter it by, what
it returns, and an object file as a linker would read it. LLVM loads that in half a millisecond;
Numba, which takes a quarter of a second to import, is imported only where there is something to
compile.

The file lies in the ``__pycache__`` of the source, in ``$NUMBA_CACHE_DIR``, or in the user's cache.
"""

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from ctypes import PYFUNCTYPE, c_int, c_void_p
from functools import cache
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

ENVIRONMENT = "NUMBA_CACHE_DIR"
_ENTRY = PYFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_void_p)
"""Where the result goes, and the reason of a failure; the words as whole and as real numbers."""


class ObjectCode(NamedTuple):
    """A compiled loop."""

    symbol: str
    """Name to enter it by."""
    result: str
    """Format of :mod:`struct` of what it returns; empty if that is nothing."""
    object_file: bytes


class KeptCode:
    """Where the code of a loop is kept, and from what it must have been made.

    Parameters
    ----------
    name
        Name of the loop in its module.
    source
        The file it stands in.
    made_from
        What its code depends on besides the compiler and the processor.
    """

    def __init__(self, name: str, source: Path, made_from: str) -> None:
        self._source = source
        self._key = _digest("\n".join((made_from, _compiler(), _processor())).encode())
        host = _digest(_processor().encode())[:8].decode()
        self._file = f"{source.stem}.{name}.{sys.implementation.cache_tag}-{host}.loop"

    def read(self) -> ObjectCode | None:
        """Read what is kept; None where there is none that may be run, or of an older source."""
        for folder in _folders(self._source):
            with suppress(OSError, ValueError):  # not there, or damaged
                key, digest, content = (folder / self._file).read_bytes().split(b"\n", 2)
                if key != self._key or digest != _digest(content):
                    continue
                if not _is_trusted(folder, self._source):
                    tell_once(
                        f"{folder}: others may write there: loops are compiled anew; set "
                        f"{ENVIRONMENT} to a directory of your own"
                    )
                    continue
                symbol, result, object_file = content.split(b"\n", 2)
                return ObjectCode(symbol.decode(), result.decode(), object_file)
        return None

    def keep(self, code: ObjectCode) -> None:
        """Keep code in place of what was there, in the first directory that can be written to."""
        if not self._source.is_file():  # typed in
            return
        content = b"\n".join((code.symbol.encode(), code.result.encode(), code.object_file))
        for folder in _folders(self._source):
            with suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
                partial = folder / f"{self._file}.{os.getpid()}"
                partial.write_bytes(b"\n".join((self._key, _digest(content), content)))
                partial.replace(folder / self._file)
                return
        tell_once(f"hot loops cannot be kept: set {ENVIRONMENT} to a directory to write to")


def load(code: ObjectCode) -> Callable[[Any, Any, Any, Any], int]:
    """Load machine code into this process; return its way in."""
    llvm = _llvm()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code.object_file))
    engine.finalize_object()
    entry = _ENTRY(engine.get_function_address(code.symbol))
    entry.engine = engine  # type: ignore[attr-defined]  # the code lives as long as its engine
    return entry


def target_machine() -> Any:
    """Make LLVM's description of this machine, to compile for it."""
    llvm = _llvm()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=3,
        jit=True,
        codemodel="jitdefault",
    )


@cache
def stamp(source: Path) -> str:
    """Name the content of a source."""
    try:
        return f"{source.name} {_digest(source.read_bytes()).decode()}"
    except OSError:  # in a zip file, or typed in
        return str(source)


def _folders(source: Path) -> Iterator[Path]:
    """List the directories in which the code of a source may lie, the best first."""
    if not source.is_file():  # typed in
        return
    given = os.environ.get(ENVIRONMENT)
    below = _digest(str(source.parent).encode())[:16].decode()
    if given:
        yield Path(given, below)
        return
    yield source.parent / "__pycache__"
    home = os.environ.get("XDG_CACHE_HOME")
    with suppress(RuntimeError):  # a user without a home
        yield (Path(home) if home else Path.home() / ".cache") / "twofold" / "loops" / below


@cache
def _llvm() -> Any:
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding


@cache
def _compiler() -> str:
    """Name the compiler: versions of LLVM and of Numba, which is not imported; how it is used."""
    import llvmlite

    numba = find_spec("numba")
    version = Path(numba.origin or "").with_name("_version.py") if numba else Path()
    user = Path(__file__).with_name("machine_code.py")
    return f"{llvmlite.__version__} {stamp(version)} {stamp(user)}"


@cache
def _processor() -> str:
    return f"{_llvm().get_host_cpu_name()} {_llvm().get_host_cpu_features().flatten()}"


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).hexdigest().encode()


def is_trusted(folder: Path, source: Path) -> bool:
    """Whether code that is kept in a directory may be run: only who could change the program did.

    Reading it runs what it says. It and every directory above it belong to the user, the system, or
    whoever owns the source, and nobody else may write there: a group only where it is the user's
    alone, or the source's and may write to that, too. Above, a directory will do whose files only
    their owners may replace (``/tmp``). Where files have no owners (Windows) nothing is refused.

    Examples
    --------
    >>> is_trusted(Path("/"), Path("/")), is_trusted(Path("/nowhere"), Path("/"))
    (True, False)
    """
    if not hasattr(os, "getuid"):
        return True
    try:
        folder = folder.resolve(strict=True)
        of_source = source.resolve(strict=True).stat()
        above = [place.stat() for place in (folder, *folder.parents)]
    except OSError:
        return False
    # Whoever owns the root owns the system: in a container without a root of its own, nobody.
    owners = {0, os.getuid(), of_source.st_uid, above[-1].st_uid}
    groups = {0, *([of_source.st_gid] if of_source.st_mode & stat.S_IWGRP else ())}
    if os.getgid() == os.getuid():  # a group of one's own, as most systems give each user
        groups.add(os.getgid())

    def is_ours(status: os.stat_result, *, sticky: bool) -> bool:
        others = status.st_mode & stat.S_IWOTH or (
            status.st_mode & stat.S_IWGRP and status.st_gid not in groups
        )
        return status.st_uid in owners and (not others or sticky)

    return is_ours(above[0], sticky=False) and all(
        is_ours(status, sticky=bool(status.st_mode & stat.S_ISVTX)) for status in above[1:]
    )


_is_trusted = cache(is_trusted)


@cache
def tell_once(message: str) -> None:
    """Say something on the standard error, the first time."""
    sys.stderr.write(f"{message}\n")
    sys.stderr.flush()
