"""Backends of AIStore's nodes besides S3: GCS, Azure and OCI, which the embedded stack includes on request.

The environment variable `VARIABLE` lists them, such as ``gcp azure oci``. They are not in the default build: each
adds a cloud's SDK to the binary. The nodes receive the variables in `SETTINGS` from the caller's environment.
"""

from __future__ import annotations

from collections.abc import Mapping

from storeside.stack.settings import StackError

VARIABLE = "STORESIDE_AISTORE_BACKENDS"
# The variables that AIStore 5.0 and the clouds' SDKs read: its ais/backend/{gcp,azure,oci}.go and api/env/oci.go.
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "gcp": ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "STORAGE_EMULATOR_HOST"),
    "azure": ("AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_KEY", "AIS_AZURE_URL", "AIS_AZURE_PROTO"),
    "oci": (
        *("OCI_CLI_CONFIG_FILE", "OCI_CLI_PROFILE", "OCI_INSTANCE_PRINCIPAL_AUTH", "OCI_TENANCY_OCID"),
        *("OCI_COMPARTMENT_OCID", "OCI_USER_OCID", "OCI_REGION", "OCI_FINGERPRINT", "OCI_PRIVATE_KEY"),
        *("OCI_MAX_PAGE_SIZE", "OCI_MAX_DOWNLOAD_SEGMENT_SIZE", "OCI_MULTI_PART_DOWNLOAD_THRESHOLD"),
        *("OCI_MULTI_PART_DOWNLOAD_MAX_THREADS", "OCI_MAX_UPLOAD_SEGMENT_SIZE", "OCI_MULTI_PART_UPLOAD_THRESHOLD"),
        *("OCI_MULTI_PART_UPLOAD_MAX_THREADS", "OCI_MULTI_PART_THREAD_POOL_SIZE"),
        *("OCI_REGION_METADATA", "OCI_DEFAULT_CERTS_PATH"),
    ),
}
# Go's own variables for requests to a cloud.
_NETWORK = ("HTTPS_PROXY", "NO_PROXY")


def chosen(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the backends that `VARIABLE` lists, in alphabetical order. Raises StackError for an unknown name."""
    names = sorted(set(environment.get(VARIABLE, "").replace(",", " ").split()) - {"aws"})
    if unknown := [name for name in names if name not in SETTINGS]:
        raise StackError(f"{VARIABLE}: unknown backend {', '.join(unknown)}: choose from {', '.join(SETTINGS)}")
    return tuple(names)


def settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the chosen backends that are set. Raises StackError as `chosen` does."""
    backends = chosen(environment)
    names = [name for backend in backends for name in SETTINGS[backend]] + [*(_NETWORK if backends else ())]
    return {name: environment[name] for name in names if environment.get(name)}
