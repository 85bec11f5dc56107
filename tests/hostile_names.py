"""Names of objects with the characters that break clients: shared by tests of names, plans, transforms and SQL."""

from __future__ import annotations

HOSTILE_NAMES = (
    "hostile/two words.flac",
    "hostile/ leading and trailing .flac",
    "hostile/hash#fragment.flac",
    "hostile/question?versionId=1.flac",
    "hostile/percent%20space.flac",
    "hostile/percent%2Fslash.flac",
    "hostile/plus+sign.flac",
    "hostile/caf\u00e9-\u0142\u00f3d\u017a-\u97f3\u58f0.flac",
    "hostile/\u05e9\u05dc\u05d5\u05dd-\u0645\u0631\u062d\u0628\u0627.flac",
    "hostile/ampersand&acl.flac",
    "hostile/single'quote.flac",
    'hostile/double"quote.flac',
    "hostile/back\\slash.flac",
    "hostile/semicolon;drop.flac",
    "hostile/a//b.flac",
    "../escape.flac",
    "hostile/" + "n" * 187 + ".flac",
)
