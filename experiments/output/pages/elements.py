"""HTML as values: elements of attributes and content, of which every text is escaped when written.

Text of traces and files comes into pages through these functions only, so that none of it is ever
markup.
"""

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from experiments.provenance import jsonable

_VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})
"""Elements that have no content and no end."""


@dataclass(frozen=True, slots=True)
class Element:
    """An element: a name, attributes, and what is in it, elements and text.

    An attribute that is None is left out.
    """

    name: str
    attributes: Mapping[str, str | None]
    content: tuple["Node", ...] = ()

    def __str__(self) -> str:
        """Write it, with everything escaped that could be markup."""
        told = "".join(
            f' {key}="{html.escape(value)}"'
            for key, value in self.attributes.items()
            if value is not None
        )
        if self.name in _VOID:
            return f"<{self.name}{told}>"
        inner = "".join(map(written, self.content))
        return f"<{self.name}{told}>{inner}</{self.name}>"


@dataclass(frozen=True, slots=True)
class Raw:
    """Text that is written as it is: scripts and styles of our own, never anything that was read.

    Raises
    ------
    ValueError
        If it would end the element it stands in.
    """

    text: str

    def __post_init__(self) -> None:
        lowered = self.text.lower()
        if any(end in lowered for end in ("</script", "</style", "<!--")):
            raise ValueError("what is written as it is must not end its element")


Node = Element | Raw | str


def element(kind: str, /, *content: Node | None, **attributes: str | None) -> Element:
    """Make an element.

    ``class_`` and ``for_`` are attributes whose names Python keeps; any other ``_`` is a ``-``.

    Examples
    --------
    >>> print(element("p", "a < b ", element("b", "&"), class_="note", data_of="x"))
    <p class="note" data-of="x">a &lt; b <b>&amp;</b></p>
    """
    named = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
    return Element(kind, named, tuple(one for one in content if one is not None))


def written(node: Node) -> str:
    """Write a node; text is escaped."""
    if isinstance(node, Raw):
        return node.text
    return str(node) if isinstance(node, Element) else html.escape(node, quote=False)


def data(name: str, value: object) -> Element:
    r"""Put a value as JSON where scripts of the page find it by the element's id.

    Examples
    --------
    >>> print(data("views", ["</script>"]))
    <script id="views" type="application/json">["\u003c/script>"]</script>
    """
    text = json.dumps(jsonable(value), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return Element(
        "script", {"id": name, "type": "application/json"}, (Raw(text.replace("<", "\\u003c")),)
    )


_KINDS = {">": "number", "|": "rest"}
"""Classes of columns, by how their names begin."""


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Node]], caption: str | None = None
) -> Element:
    """Make a table.

    A column whose name begins with ``>`` is of numbers, flush to the right; one with ``|`` takes
    the room that is left.
    """
    kinds = [_KINDS.get(name[:1]) for name in columns]
    heads = [
        element("th", name.lstrip(">|"), scope="col", class_=kind)
        for name, kind in zip(columns, kinds, strict=True)
    ]
    body = [
        element(
            "tr", *(element("td", cell, class_=of) for cell, of in zip(row, kinds, strict=True))
        )
        for row in rows
    ]
    return element(
        "div",
        element(
            "table",
            None if caption is None else element("caption", caption),
            element("thead", element("tr", *heads)),
            element("tbody", *body),
        ),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=caption or "table",
    )


def facts(pairs: Mapping[str, Node | Sequence[str]]) -> Element:
    """Make a list of names and what is said of each; several texts are a line each."""
    content: list[Node] = []
    for name, value in pairs.items():
        if not value:
            continue
        lines: Sequence[Node] = [value] if isinstance(value, Element | Raw | str) else value
        content += [element("dt", name), element("dd", *(element("div", line) for line in lines))]
    return element("dl", *content, class_="facts")
