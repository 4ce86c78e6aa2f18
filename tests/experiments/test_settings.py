"""Settings: understood where it is clear what is meant, else refused in one line."""

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.settings import Settings
from simulator.support.errors import SettingsError


def test_what_is_clear_is_understood():
    given = Settings(
        nodes="2",
        step=3,
        algorithms=["all_reduce=ring"],
        what_ifs="host x2",
        slow_down=0.15,
        kernels="rules.yaml",
        workers="4",
    )
    assert given == Settings(
        nodes=2,
        step="3",
        algorithms=("all_reduce=ring",),
        what_ifs=("host x2",),
        slow_down="0.15",
        kernels=Path("rules.yaml"),
        workers=4,
    )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"nodes": 0}, "nodes: 0: write greater than or equal to 1"),
        ({"nodes": 2.5}, "nodes: 2.5: write a valid integer"),
        ({"nodes": [2]}, "nodes: [2]: "),
        (
            {"step": "last"},
            "step: 'last': write the number of a step, typical, median, all, or p95",
        ),
        ({"step": True}, "step: True: "),
        ({"engine": "analytical"}, "engine: 'analytical': did you mean analytic?"),
        ({"engine": "x"}, "engine: 'x': accepted: flow, simpy, analytic"),
        ({"collective_cost": "models"}, "did you mean model?"),
        ({"workers": 0}, "workers: 0: "),
        ({"fold": "perhaps"}, "fold: 'perhaps': "),
        ({"kernels": 3}, "kernels: 3: "),
        ({"what_ifs": [3]}, "what_ifs: 3: "),
        ({"algorithm": "ring"}, "algorithm: no such setting; did you mean algorithms?"),
    ],
)
def test_what_is_not_names_the_setting_and_what_is_accepted(given, told):
    for make in (lambda: Settings(**given), lambda: replace(Settings(), **given)):
        if "algorithm" in given and make.__code__.co_names[0] == "replace":
            continue
        with pytest.raises(SettingsError) as caught:
            make()
        assert told in str(caught.value)
        assert "\n" not in str(caught.value)


def test_settings_go_to_worker_processes():
    given = Settings(nodes=2, what_ifs=("host x2",))
    assert pickle.loads(pickle.dumps(given)) == given


def test_the_record_is_of_every_setting():
    record = Settings(kernels=Path("rules.yaml")).record()
    assert list(record) == list(Settings.__dataclass_fields__)
    assert record["kernels"] == "rules.yaml"
    assert record["algorithms"] == []
