"""What was measured elsewhere, in tables that ship, is predicted once for tests and pages that ask.

A table of measured steps takes seconds; tests of it, pages that show it and tests of what is made
of the answer ask the same.
"""

from dataclasses import replace

import pytest

from experiments.questions.validation import ratios, recordings

_SHIPPED = "traces/live/"
"""Begin of the names of recordings in which no test writes, from any copy of the checkout."""


@pytest.fixture(autouse=True, scope="session")
def predicted_once():
    """Let validation ask once for the points of shipped tables, and for the time of a setting."""
    points_of, time = recordings.points_of, ratios._time
    predicted, times = {}, {}

    def points_once(points, settings, watch):
        if not all(str(point.trace).startswith(_SHIPPED) for point in points):
            return points_of(points, settings, watch)
        key = repr((points, replace(settings, workers=None)))
        if key not in predicted:
            predicted[key] = list(points_of(points, settings, watch))
        return iter(predicted[key])

    def time_once(side, settings):
        key = ratios._key_of(side), settings
        if key not in times:
            times[key] = time(side, settings)
        return times[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recordings, "points_of", points_once)
        patch.setattr(ratios, "_time", time_once)
        yield
