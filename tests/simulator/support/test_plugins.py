"""Entry points of installed distributions, as their metadata on the path say."""

import pytest

from simulator.support.errors import PluginError
from simulator.support.plugins import TOPOLOGIES, load_plugin, plugin_named, plugins


def install(folder, name, version, targets, group=TOPOLOGIES):
    """Put a distribution beside others, as installers do (packaging.python.org, entry points)."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    rows = [f"{point} = {target}" for point, target in targets.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{group}]", *rows, ""]))


def test_plugins_are_those_of_distributions_on_the_path_by_name(tmp_path, monkeypatch):
    install(tmp_path, "zeta", "2.0", {"moebius": "math:floor", "clos": "math:ceil"})
    install(tmp_path, "alpha", "1.5", {"clos": "math:gone"})
    install(tmp_path, "other", "1.0", {"tapered": "math:tau"}, group="twofold.formats")
    before = plugins(TOPOLOGIES)
    monkeypatch.syspath_prepend(str(tmp_path))
    added = [plugin for plugin in plugins(TOPOLOGIES) if plugin not in before]
    assert [(one.name, one.distribution, one.version, one.target) for one in added] == [
        ("clos", "alpha", "1.5", "math:gone"),
        ("clos", "zeta", "2.0", "math:ceil"),
        ("moebius", "zeta", "2.0", "math:floor"),
    ]
    assert str(added[0]) == "alpha 1.5: clos of twofold.topologies"
    assert plugin_named(TOPOLOGIES, "Moebius") == added[2]
    assert plugin_named(TOPOLOGIES, "tapered") is None
    with pytest.raises(PluginError, match=r"clos of .* is added by alpha and zeta: uninstall one"):
        plugin_named(TOPOLOGIES, "clos")
    assert load_plugin(added[2], lambda target: target(2.5)) == 2
    with pytest.raises(PluginError, match="alpha"):
        load_plugin(added[0], lambda target: target)
