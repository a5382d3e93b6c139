"""What a host lacks, with the next step for each problem."""

from ci_tasks.registry import Command, Feature

_SUMMARY = "Check what a host lacks, with the next step for each problem."
_JSON = (f"{__name__}.command:HostResult[]",)
FEATURE = Feature("doctor", commands=(Command("doctor", "Hosts", _SUMMARY, f"{__name__}.command:doctor", _JSON),))
