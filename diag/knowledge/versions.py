"""Versions of packages against what is asked of them."""

from __future__ import annotations


def fits(version: str, specifier: str) -> bool | None:
    """None where either cannot be read. Builds of NVIDIA's containers ("2.7.0a0+79aa17489c.nv25.4") count as the release that
    they come before.

    >>> fits("2.7.0a0+79aa17489c.nv25.4", ">=2.7"), fits("2.6.0+cu124", "==2.6.0"), fits("5.19.0", "<5"), fits("dev", ">1")
    (True, True, False, None)
    """
    from packaging.specifiers import SpecifierSet  # not for a job that hangs nowhere
    from packaging.version import Version

    try:
        known = Version(version)
        allowed = SpecifierSet(specifier)
    except ValueError:  # InvalidVersion, InvalidSpecifier
        return None
    return allowed.contains(known, prereleases=True) or (
        known.is_prerelease and allowed.contains(Version(known.base_version))
    )
