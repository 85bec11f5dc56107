"""Airflow as part of the embedded stack."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.fernet import Fernet, InvalidToken

from include.stack.airflow import environment
from include.stack.settings import Stack


def test_all_processes_of_a_stack_encrypt_with_one_key(tmp_path: Path) -> None:
    one, other = (Stack.create(tmp_path / name, 1) for name in ("one", "other"))
    key = environment(one)["AIRFLOW__CORE__FERNET_KEY"]
    assert key == environment(one)["AIRFLOW__CORE__FERNET_KEY"]
    sealed = Fernet(key).encrypt(b"kwargs")
    with pytest.raises(InvalidToken):
        Fernet(environment(other)["AIRFLOW__CORE__FERNET_KEY"]).decrypt(sealed)
