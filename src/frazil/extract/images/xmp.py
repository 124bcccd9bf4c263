"""The extractor `xmp`: the XMP packet as plain JSON."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from frazil.extract import Item, TooMuch, extractor
from frazil.extract.images.read_header import read_header
from frazil.extract.window import Damaged

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_SHARED = "xmp"
_RDF = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}"
_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
_MAX_PACKET = 4 << 20
_MAX_DEPTH = 24
#: Longer texts are base64 pictures, longer lists the history of a document.
_MAX_TEXT, _MAX_LIST = 65_536, 1_000
_DECLARED = re.compile(rb"xmlns:([A-Za-z_][\w.-]*)\s*=\s*[\"']([^\"']+)[\"']")
_KNOWN = {
    "http://purl.org/dc/elements/1.1/": "dc",
    "http://ns.adobe.com/xap/1.0/": "xmp",
    "http://ns.adobe.com/xap/1.0/mm/": "xmpMM",
    "http://ns.adobe.com/xap/1.0/rights/": "xmpRights",
    "http://ns.adobe.com/photoshop/1.0/": "photoshop",
    "http://ns.adobe.com/exif/1.0/": "exif",
    "http://ns.adobe.com/exif/1.0/aux/": "aux",
    "http://ns.adobe.com/tiff/1.0/": "tiff",
    "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/": "Iptc4xmpCore",
}


@extractor(
    "xmp",
    version="1",
    types=["image/*"],
    fields={
        "(prefix)": "properties of a namespace: dc, xmp, photoshop, exif … then by name: dc.title, xmp.Rating",
    },
)
def XMP(item: Item) -> dict[str, Any]:  # noqa: N802 - becomes an Extractor
    """All XMP of an image, by prefix and name; empty if it has none."""
    return read_xmp(item)


def read_xmp(item: Item) -> dict[str, Any]:
    """Returns the XMP of a picture, parsed once.

    Raises:
        Damaged: it is no XML, or XML that declares entities.
        TooMuch: it is larger than any that makes sense.
    """
    known = item.shared.get(_SHARED)
    if known is None:
        known = item.shared[_SHARED] = _found(item)
    if isinstance(known, Exception):
        raise known
    return dict(known)


def _found(item: Item) -> dict[str, Any] | Exception:
    source = read_header(item).xmp
    if source is None:
        return {}
    if not isinstance(source, bytes):
        if source.size > _MAX_PACKET:
            return TooMuch(f"XMP of {source.size} bytes; at most {_MAX_PACKET} are read")
        source = source.get(0, source.size)
    try:
        return parse(source)
    except Damaged as failure:
        return failure


def parse(packet: bytes) -> dict[str, Any]:
    """Parses a packet into {prefix: {name: value}}.

    Raises:
        Damaged: it is no XML, or XML that declares entities.
    """
    packet = packet.strip(b" \t\r\n\0")
    if not packet:
        return {}
    root = _tree(packet)
    prefixes = {uri.decode("utf-8", "replace"): name.decode() for name, uri in _DECLARED.findall(packet)} | _KNOWN
    found: dict[str, dict[str, Any]] = {}
    for description in root.iter(_RDF + "Description"):
        if description.get(_RDF + "about") is None and found:
            continue  # one within another: a structure
        for name, told in _properties(description, _MAX_DEPTH):
            uri, _, local = name[1:].rpartition("}")
            prefix = prefixes.get(uri) or uri.rstrip("/#").rpartition("/")[2] or "other"
            found.setdefault(prefix, {})[local] = told
    return dict(found)


def _tree(packet: bytes) -> Element:
    from xml.etree.ElementTree import ParseError

    import defusedxml  # type: ignore[import-untyped]
    from defusedxml.ElementTree import fromstring  # type: ignore[import-untyped]

    try:
        try:
            root: Element = fromstring(packet, forbid_dtd=True)
        except ParseError:
            # Some software writes Latin-1 instead of UTF-8, and truncates the padding of packets.
            clean = packet.decode("utf-8", "replace").replace("\0", "")
            root = fromstring(re.sub(r"<\?xpacket end.*", "", clean, flags=re.DOTALL), forbid_dtd=True)
    except defusedxml.DefusedXmlException as failure:
        raise Damaged(f"XMP that declares entities is refused: {type(failure).__name__}") from failure
    except (ParseError, ValueError, LookupError) as failure:
        raise Damaged(f"XMP is not XML: {failure}") from failure
    return root


def _properties(element: Element, depth: int) -> list[tuple[str, Any]]:
    """Yields names and values: attributes are a short form of elements."""
    found: list[tuple[str, Any]] = [
        (name, text) for name, text in element.items() if name.startswith("{") and not _of_rdf(name)
    ]
    found += [(child.tag, _value(child, depth - 1)) for child in element if child.tag.startswith("{")]
    return [(name, told) for name, told in found if told not in (None, "", [], {}) and not _long(told)]


def _of_rdf(name: str) -> bool:
    return name.startswith(_RDF) or name == _LANGUAGE


def _long(told: Any) -> bool:
    return isinstance(told, str) and len(told) > _MAX_TEXT


def _value(element: Element, depth: int) -> Any:
    """Converts an element to text, a list, or a structure by local names."""
    if depth <= 0:
        return None
    if len(element):
        first = element[0]
        if first.tag in (_RDF + "Bag", _RDF + "Seq"):
            return [told for child in first[:_MAX_LIST] if (told := _value(child, depth - 1)) not in (None, "")]
        if first.tag == _RDF + "Alt":
            return _default(first, depth)
        if first.tag == _RDF + "Description":
            element = first
    inside = element.find(_RDF + "value")
    if inside is not None:
        return _value(inside, depth - 1)
    structure = {name.rpartition("}")[2]: told for name, told in _properties(element, depth)}
    if structure:
        return structure
    resource = element.get(_RDF + "resource")
    return resource if resource is not None else (element.text or "").strip()


def _default(choices: Element, depth: int) -> Any:
    """Returns the text in the default language, or else the first one."""
    told = {child.get(_LANGUAGE, "x-default"): _value(child, depth - 1) for child in choices[:_MAX_LIST]}
    return told.get("x-default") or next(iter(told.values()), None)
