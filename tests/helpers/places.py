"""Where the checkout, its samples, the tests' data and the shared traces are."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
SAMPLES = ROOT / "traces" / "samples"
SHARED = ROOT.parent / "shared"
"""Real traces beside the checkout; tests that need them skip where it is absent."""
