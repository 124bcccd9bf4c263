"""What an object is, and what pictures say of themselves: type, headers, EXIF, XMP, IPTC, hashes, thumbnail."""
