"""Docstrings name other objects as Sphinx does, ``:func:`~a.b.c```; the pages show that as code."""

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|func|meth|mod|data|attr):`(~?)([\w.]+)`")


def plain(text: str) -> str:
    """Replace roles by code; ``~`` leaves the last part of the name.

    Examples
    --------
    >>> plain("see :func:`~topologies.spec.summary` and :class:`Link`")
    'see `summary` and `Link`'
    """
    return _ROLE.sub(lambda role: f"`{role[2].rpartition('.')[2] if role[1] else role[2]}`", text)


class Roles(griffe.Extension):
    """Rewrites every docstring when it has been found."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = plain(obj.docstring.value)
