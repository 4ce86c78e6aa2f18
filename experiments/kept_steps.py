"""Steps in the cache on disk: a trace is read once, and found again by the contents of its files.

The key of a step has the paths and contents of the files, the options of reading, the step, and the
code of the readers; a file with the same size, times and inode is not hashed again. Small traces
are always read, which is as quick. If the cache is broken, the trace is read: the cache is used
only if nobody but the user can have written to it, and an entry that is not a step is ignored.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import fields
from functools import lru_cache, partial
from pathlib import Path

from experiments.kept import SETTLED, SMALL, KeptStore, program, stamp_of, trusted_folder
from simulator.support.errors import OutputError
from simulator.support.input_files import open_file
from simulator.support.limits import KEEPS, cores
from traces.card.package import input_files, open_package
from traces.core.loaded import Loaded, Options
from traces.load import OpenTrace

Watch = Callable[[str], object]
_ROOTS = ("traces", "simulator")
"""Packages whose code determines what a step is."""


def open_kept(
    trace: Path | str, options: Options, watch: Watch = lambda _: None, *, small: float = SMALL
) -> OpenTrace:
    """Open a trace as :func:`traces.card.package.open_package`, with steps from the cache.

    Files of less than ``small`` bytes are not cached; ``watch`` is called with what was cached.
    Errors as there.
    """
    path, size = Path(trace), 0
    if KEEPS.get():
        with suppress(OSError):
            files = [path] if path.is_file() else filter(Path.is_file, path.rglob("*"))
            size = sum(file.stat().st_size for file in files)
    folder = trusted_folder() if KEEPS.get() and size >= small else None
    if folder is None:
        return open_package(trace, options)
    chosen = [getattr(options, option.name) for option in fields(options)]
    named = [value for value in chosen if isinstance(value, Path)]
    inputs = (*input_files(path, options.ranks), *named)
    reader: list[OpenTrace] = []

    def read_anew(step: str) -> Loaded:
        if not reader:
            reader.append(open_package(trace, options))
        return reader[0](step)

    return lru_cache(maxsize=64)(
        partial(_read, folder, str(trace), inputs, options, watch, read_anew)
    )


def _read(  # noqa: PLR0913 - what a step depends on
    folder: Path,
    trace: str,
    files: Sequence[Path],
    options: Options,
    watch: Watch,
    read_anew: OpenTrace,
    step: str,
) -> Loaded:
    from traces.core.loaded import UnstorableError, restored, stored

    try:
        with closing(KeptStore(folder)) as cache:
            key = _key(cache, trace, files, options, step)
            data = cache.kept(key)
            loaded = None if data is None else restored(data)
            if loaded is not None:
                watch(f"step {step} of {trace}: kept from an earlier reading")
                return loaded
            loaded = read_anew(step)
            # A file that changes while it is read must not be cached.
            if key == _key(cache, trace, files, options, step):
                with suppress(UnstorableError):
                    cache.keep(key, stored(loaded))
            return loaded
    except OutputError:
        return read_anew(step)


def _key(cache: KeptStore, trace: str, files: Sequence[Path], options: Options, step: str) -> bytes:
    parts = [program(*_ROOTS), trace, repr(options), step]
    for file, digest in zip(files, _digests(cache, files), strict=True):
        parts += [str(file), digest]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).digest()


def digests_of(files: Sequence[Path]) -> list[str]:
    """Return the SHA-256 of files, in order; those of large files may be cached."""
    size = sum(file.stat().st_size for file in files)
    folder = trusted_folder() if KEEPS.get() and size >= SMALL else None
    try:
        if folder is not None:
            with closing(KeptStore(folder)) as cache:
                return _digests(cache, files)
    except OutputError:
        pass  # the cache cannot be used
    return _digests(None, files)


def _digests(cache: KeptStore | None, files: Sequence[Path]) -> list[str]:
    """Hash files, unless they were hashed before and have not changed since.

    Several are hashed in parallel: a gigabyte takes a second.
    """
    statuses = [file.stat() for file in files]
    stamps = [stamp_of(status) for status in statuses]
    paths = [str(file.resolve()) for file in files]
    digests = {
        path: digest
        for path, stamp in zip(paths, stamps, strict=True)
        if cache is not None and (digest := cache.digest(path, stamp)) is not None
    }
    missing = [number for number, path in enumerate(paths) if path not in digests]
    if missing:
        from concurrent.futures import ThreadPoolExecutor  # not needed for cached steps

        with ThreadPoolExecutor(min(4, cores())) as pool:
            hashed = pool.map(
                _hashed,
                [files[number] for number in missing],
                [stamps[number] for number in missing],
            )
            digests.update(zip([paths[number] for number in missing], hashed, strict=True))
    now = time.time()
    for number in missing:
        settled = max(statuses[number].st_mtime, statuses[number].st_ctime)
        if cache is not None and now - settled > SETTLED:
            cache.keep_digest(paths[number], stamps[number], digests[paths[number]])
    return [digests[path] for path in paths]


@lru_cache(maxsize=1 << 14)
def _hashed(file: Path, stamp: str) -> str:
    """Hash a file; one with the same ``stamp`` is not read again by this process."""
    del stamp
    with open_file(file) as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
