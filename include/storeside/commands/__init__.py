"""Commands of the engine whose parts are in several packages."""
