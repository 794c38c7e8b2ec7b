"""Commands of the right shape that are about nothing, or about more than they say."""

from collections.abc import Callable

import pytest

from evidence.decisions import Command, Domain, DomainKind
from schedulers.checks import odd


@pytest.mark.parametrize("host", ["", ".", "..", "a/b", "../nodes", "a b", "a\0b", "n" * 600])
def test_a_host_that_is_no_name_is_odd(command: Callable[..., Command], host: str) -> None:
    domain = Domain(kind=DomainKind.NODE, host=host)
    assert odd(command(domain=domain, domain_id="node:x")) == "its host is no host's name"


@pytest.mark.parametrize("host", ["hpc-n041", "HPC_7", "n1.train.example", "10.0.0.7", "fe80::1"])
def test_a_host_as_sites_name_theirs_is_not(command: Callable[..., Command], host: str) -> None:
    domain = Domain(kind=DomainKind.NODE, host=host)
    assert odd(command(domain=domain, domain_id=domain.id)) is None


def test_a_rack_that_names_a_host_is_odd(command: Callable[..., Command]) -> None:
    one = Domain(kind=DomainKind.RACK, host="hpc-n041", rack="r7")
    assert odd(command(domain=one, domain_id=one.id)) == "it is about a rack and names one host"
    rack = Domain(kind=DomainKind.RACK, rack="r7")
    assert odd(command(domain=rack, domain_id=rack.id)) is None
