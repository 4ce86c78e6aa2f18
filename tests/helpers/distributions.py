"""A distribution as pip leaves it: metadata with entry points, and modules. Nothing is fetched."""

from textwrap import dedent


def install(folder, name, entry_points, **modules):
    """Write a distribution into a folder that is, or will be, on the path of imports."""
    info = folder / f"{name}-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(dedent(entry_points))
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(dedent(text))
    return folder
