"""Tests of AIStore's backends for GCS, Azure and OCI against emulators: ``make backends-test``."""
