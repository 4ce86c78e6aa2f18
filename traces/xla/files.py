"""The files of a profile: one, or those of a directory, read within bounds."""

from collections.abc import Callable
from pathlib import Path

from simulator.errors import TraceError
from traces.core.files import HEAD, unpack

SkippedFiles = list[tuple[str, str]]


def profile_files(
    path: Path, suffix: str, recognise: Callable[[bytes], bool]
) -> tuple[list[Path], SkippedFiles]:
    """Find the files to read: ``path``, or what in it is of the format, and why not the others.

    JAX writes into ``plugins/profile/<time>`` below the directory it is given; that is looked into
    where it holds one recording.

    Raises
    ------
    TraceError
        If there is none, or several recordings.
    """
    if not path.is_dir():
        return [path], []
    below = sorted(path.glob("plugins/profile/*/"))
    if len(below) > 1:
        raise TraceError(f"{path}: {len(below)} recordings in plugins/profile; name one of them")
    files, skipped = list[Path](), SkippedFiles()
    for file in sorted((below[0] if below else path).iterdir()):
        reason = _reason(file, suffix, recognise)
        if reason:
            skipped.append((str(file), reason))
        else:
            files.append(file)
    if not files:
        raise TraceError(f"{path}: no {suffix} file in it")
    return files, skipped


def bundle_files(path: Path, recognise: Callable[[Path], bool]) -> tuple[list[Path], SkippedFiles]:
    """Find the bundles to read: ``path``, or those in it, and why not the other files.

    Raises
    ------
    TraceError
        If there is none.
    """
    if not path.is_dir():
        return [path], []
    inside = sorted(path.iterdir())
    files = [file for file in inside if file.is_file() and recognise(file)]
    if not files:
        raise TraceError(f"{path}: no bundle of nsys-jax in it")
    return files, [(str(file), "not a bundle") for file in inside if file not in files]


def unpacked(path: Path) -> bytes:
    """Read a file, gzip or not.

    Raises
    ------
    TraceError
        If it is empty, cannot be read, or unpacks to more than any profile does.
    """
    data = unpack(path)
    if not data:
        raise TraceError(f"{path}: the file is empty; record the profile again")
    return data


def _reason(file: Path, suffix: str, recognise: Callable[[bytes], bool]) -> str:
    """Why a file is not read; "" for one that is."""
    if not file.is_file():
        return "not a file; sub-directories are not searched"
    named = file.name.removesuffix(".gz").endswith(suffix)
    try:
        return "" if named or recognise(unpack(file)[:HEAD]) else f"not a {suffix} file"
    except TraceError as error:
        return str(error).removeprefix(f"{file}: ")
