"""The bench of wrong questions: each differs from a right one, and what is said is found."""

from collections import Counter

from benchmarks.questions import LIVE, Question, questions


def test_there_are_twenty_right_questions_and_twenty_wrong_ones():
    of_kinds = Counter(question.wrong for question in questions())
    assert of_kinds.pop("") >= 20
    assert of_kinds.total() >= 20
    assert min(of_kinds.values()) >= 5


def test_a_file_of_another_run_is_said_and_the_right_one_is_not():
    cluster = LIVE / "gpipe-2.yaml"
    first, second = (LIVE / "gpipe-2" / f"rank{rank}.json.gz" for rank in (0, 1))
    assert Question("", (first, second), cluster).said() == []
    assert Question("files", (first, first), cluster).said()
    assert Question("files", (first, LIVE / "1f1b-2" / second.name), cluster).said()
