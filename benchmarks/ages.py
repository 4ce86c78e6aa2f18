"""``python -m benchmarks.ages --index URL``: how old what an installation brings is.

The index has to answer in JSON (PEP 691) with times of upload (PEP 700). Of each distribution that
the bill of materials lists: the day its version came out, how many days ago that was, and the
newest version that is not a candidate, with its day. A release of a few days is one that nobody has
looked at yet; a distribution without a release for years is one that nobody may look after.
"""

import argparse
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from urllib.request import Request, urlopen

from packaging.utils import parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

from benchmarks.sbom import OWN, installed

_JSON = "application/vnd.pypi.simple.v1+json"


@dataclass(frozen=True)
class Age:
    """When the installed version of a distribution came out, and when its newest."""

    name: str
    version: Version
    released: datetime
    newest: Version
    newest_released: datetime


def age_of(name: str, version: str, index: str) -> Age:
    """Ask an index when a version came out, and which is the newest.

    Raises
    ------
    ValueError
        If the index does not have that version, or says no times.
    """
    url = f"{index.rstrip('/')}/{name}/"
    with urlopen(Request(url, headers={"Accept": _JSON}), timeout=60) as answer:
        files = json.load(answer)["files"]
    first: dict[Version, datetime] = {}
    for file in files:
        if (of_file := _version(file["filename"])) is None or "upload-time" not in file:
            continue
        time = datetime.fromisoformat(file["upload-time"])
        first[of_file] = min(first.get(of_file, time), time)
    own = Version(version)
    if own not in first:
        raise ValueError(f"{url} does not say when {name} {version} came out")
    newest = max((known for known in first if not known.is_prerelease), default=own)
    return Age(name, own, first[own], newest, first[newest])


def _version(filename: str) -> Version | None:
    try:
        if filename.endswith(".whl"):
            return parse_wheel_filename(filename)[1]
        return parse_sdist_filename(filename)[1] if filename.endswith((".gz", ".zip")) else None
    except ValueError:  # names from before there were rules
        return None


def main() -> None:
    """Print a line for each, the youngest release first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--index", required=True, help="address of its list of distributions")
    index = parser.parse_args().index
    have = {name: found.version for name, found in installed().items() if name != OWN}
    with ThreadPoolExecutor(8) as pool:
        ages = list(pool.map(partial(age_of, index=index), have, have.values()))
    now = datetime.now(UTC)
    for age in sorted(ages, key=lambda age: age.released, reverse=True):
        newer = "" if age.newest <= age.version else f", {age.newest} on {age.newest_released:%F}"
        days = (now - age.released).days
        print(f"{days:5d} days  {age.name} {age.version} of {age.released:%F}{newer}")


if __name__ == "__main__":
    main()
