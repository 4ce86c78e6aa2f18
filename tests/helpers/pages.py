"""Pages as tests read them: their data unpacked apart from the scripts that do it in browsers."""

import base64
import gzip
import json
import re
from html.parser import HTMLParser

import numpy as np

_PACKED = re.compile(
    r'<script id="(?P<id>[^"]+)" type="application/json">(?P<json>.*?)</script>', re.DOTALL
)


class Elements(HTMLParser):
    """Elements of a page in their order: names with attributes, and the text in each."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._within: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self._within.append(tag)

    def handle_endtag(self, tag):
        while self._within and self._within.pop() != tag:
            pass

    def handle_data(self, data):
        if not {"script", "style"} & set(self._within):
            self.text += f"{data}\n"


def embedded(page: str) -> dict[str, object]:
    """JSON that a page carries, by id."""
    return {match["id"]: json.loads(match["json"]) for match in _PACKED.finditer(page)}


def unpacked(table: dict) -> dict[str, list]:
    """Columns of a table by name, as ``experiments/output/pages/columns.py`` says it is written."""
    raw = gzip.decompress(base64.b64decode(table["bytes"]))
    found = {}
    for column in table["columns"]:
        kind, rows = np.dtype("<" + column["type"]), table["rows"]
        part = raw[column["offset"] : column["offset"] + rows * kind.itemsize]
        if column.get("shuffled"):
            part = b"".join(part[place::rows] for place in range(rows))
        values = np.frombuffer(part, kind)
        if column.get("sums"):
            values = np.cumsum(values.astype(np.uint64)) % (1 << 32)
        if "texts" in column:
            begin, long = column["texts"]
            levels = json.loads(raw[begin : begin + long])
            found[column["name"]] = [levels[code] for code in values.tolist()]
        elif "levels" in column:
            words = {"inf": np.inf, "-inf": -np.inf, None: np.nan}
            levels = [
                one if column.get("text") else words.get(one, one) for one in column["levels"]
            ]
            found[column["name"]] = [levels[code] for code in values.tolist()]
        else:
            found[column["name"]] = values.tolist()
    return found
