"""``python -m benchmarks.sbom > sbom.json``: what an installation brings, as CycloneDX 1.5.

Of every distribution that this one requires, of all its extras that are installed, and of those
that these require: name, version and licence, as their own metadata say. Without dates or serial
numbers: the same installation gives the same bytes.
"""

import json
import re
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any

OWN = "twofold"


def name_of(requirement: str) -> str:
    """Return the normalised name of a distribution in a requirement."""
    words = re.match(r"[A-Za-z0-9._-]+", requirement)
    return re.sub(r"[-_.]+", "-", words[0] if words else "").lower()


def installed() -> dict[str, Distribution]:
    """Return what is installed of what this distribution needs, by name."""
    have: dict[str, Distribution] = {}
    left = [OWN]
    while left:
        name = left.pop()
        if name in have:
            continue
        try:
            have[name] = distribution(name)
        except PackageNotFoundError:  # of an extra that was not asked for, or another system
            continue
        left += map(name_of, have[name].requires or ())
    return have


def component(name: str, package: Distribution) -> dict[str, object]:
    """Describe one distribution."""
    about: Any = package.metadata  # a message, which its stub does not say
    licence = about.get("License-Expression") or next(
        (
            line.rpartition(" :: ")[2]
            for line in about.get_all("Classifier", [])
            if line.startswith("License ::")
        ),
        (about.get("License") or "unknown").splitlines()[0],
    )
    return {
        "type": "library",
        "name": name,
        "version": package.version,
        "purl": f"pkg:pypi/{name}@{package.version}",
        "licenses": [{"license": {"name": licence}}],
    }


def main() -> None:
    """Print the bill of materials."""
    have = installed()
    parts = [component(name, have[name]) for name in sorted(have) if name != OWN]
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**component(OWN, have[OWN]), "type": "application"}},
        "components": parts,
    }
    json.dump(bill, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
