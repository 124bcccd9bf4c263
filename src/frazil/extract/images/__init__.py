"""Extractors of images: headers, EXIF, XMP, IPTC, perceptual hash, thumbnail."""
