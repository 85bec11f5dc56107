"""Reads, measures and writes audio: containers, codecs, filters and utterances."""
