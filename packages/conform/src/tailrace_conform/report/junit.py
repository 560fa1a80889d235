"""A run as JUnit's XML, which CI systems read: a test case per law. Broken and silently ignored are failures, not
offered and inconclusive are skipped."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element, SubElement, tostring

from tailrace_conform.runner import FINDINGS, ConformRun
from tailrace_conform.verdict import KINDS

FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in XML 1.0


def clean(text: str) -> str:
    return FORBIDDEN.sub("\ufffd", text)


def as_junit(run: ConformRun) -> str:
    """The whole report."""
    failures = str(len(run.findings))
    skipped = str(len(run.unjudged) + sum(one.verdict.kind in ("not_offered", "inconclusive") for one in run.judged))
    counts = {"tests": str(len(run.judged) + len(run.unjudged)), "failures": failures, "skipped": skipped}
    about = {"name": "tailrace conform", "time": f"{run.seconds:.3f}", "timestamp": run.begun}
    suite = Element("testsuite", about | counts)
    for one in run.judged:
        case = SubElement(suite, "testcase", classname=one.law.family, name=one.law.id, time=f"{one.seconds:.3f}")
        message = clean(f"{KINDS[one.verdict.kind]}: {one.verdict.said}")
        if one.verdict.kind in FINDINGS:
            failure = SubElement(case, "failure", message=message, type=one.verdict.kind)
            failure.text = clean(f"{one.law.sentence}\n{one.verdict.curl(run.url) or ''}")
        elif one.verdict.kind != "holds":
            SubElement(case, "skipped", message=message)
    for law in run.unjudged:
        case = SubElement(suite, "testcase", classname=law.family, name=law.id, time="0")
        SubElement(case, "skipped", message="interrupted")
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(suite, encoding="unicode") + "\n"
