"""The container's seccomp profile is well formed and lets the children confine themselves."""

from __future__ import annotations

import json
from pathlib import Path

PROFILE = Path(__file__).parents[2] / "infra" / "seccomp" / "worker.json"


def test_the_profile_forbids_by_default_and_allows_confining_oneself() -> None:
    profile = json.loads(PROFILE.read_text())
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    plain = [rule for rule in profile["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW" and not rule.get("args")]
    allowed = {name for rule in plain for name in rule["names"]}
    assert {"prctl", "seccomp", "landlock_create_ruleset", "landlock_restrict_self", "fork", "memfd_create"} <= allowed
    dangerous = {"ptrace", "mount", "unshare", "setns", "bpf", "keyctl", "process_vm_readv", "kexec_load", "clone"}
    assert not dangerous & allowed
