"""JSON Schema's formats as patterns. Every text that a pattern allows is valid by the format's own standard.

Not all that a standard allows is written; each omission is noted below. A regex can't relate a leap second to its time
zone, so leap seconds are written in UTC only.
"""

from __future__ import annotations

HEX, DIGITS, ALPHANUMERIC = "[0-9a-fA-F]", "[0-9]+", "[0-9A-Za-z]"

# RFC 3339, section 5.6. Left out: the year 0000, which few libraries read; leap seconds outside of UTC.
YEAR = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
LEAP_YEAR = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
DAY = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
DATE = f"(?:{YEAR}-{DAY}|{LEAP_YEAR}-02-29)"
HOUR = "(?:[01][0-9]|2[0-3])"
FRACTION = r"(?:\.[0-9]+)?"
ZONE = f"(?:[Zz]|[+-]{HOUR}:[0-5][0-9])"
TIME = f"(?:{HOUR}:[0-5][0-9]:[0-5][0-9]{FRACTION}{ZONE}|23:59:60{FRACTION}(?:[Zz]|[+-]00:00))"

# RFC 3339, appendix A
SECONDS, MINUTES, HOURS = f"{DIGITS}S", f"{DIGITS}M(?:{DIGITS}S)?", f"{DIGITS}H(?:{DIGITS}M(?:{DIGITS}S)?)?"
SPAN = f"T(?:{HOURS}|{MINUTES}|{SECONDS})"
YEARS = f"(?:{DIGITS}D|{DIGITS}M(?:{DIGITS}D)?|{DIGITS}Y(?:{DIGITS}M(?:{DIGITS}D)?)?)"
DURATION = f"P(?:{YEARS}(?:{SPAN})?|{SPAN}|{DIGITS}W)"

# RFC 1123, section 2.1: labels of 63 characters. Left out: two hyphens as third and fourth character, which mark names
# in other alphabets.
LABEL = "A(?:A|xA|xxA|x(?:Ax|-A)x{0,58}A)?".replace("A", ALPHANUMERIC).replace("x", "[0-9A-Za-z-]")
HOSTNAME = rf"{LABEL}(?:\.{LABEL})*"

# RFC 2673, section 3.2; RFC 4291, section 2.2
BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
IPV4 = rf"(?:{BYTE}\.){{3}}{BYTE}"
H16 = f"{HEX}{{1,4}}"
LAST32 = f"(?:{H16}:{H16}|{IPV4})"
IPV6 = (
    f"(?:(?:{H16}:){{6}}{LAST32}|::(?:{H16}:){{5}}{LAST32}|(?:{H16})?::(?:{H16}:){{4}}{LAST32}"
    + "".join(
        f"|(?:(?:{H16}:){{0,{before}}}{H16})?::{rest}"
        for before, rest in enumerate(
            (f"(?:{H16}:){{3}}{LAST32}", f"(?:{H16}:){{2}}{LAST32}", f"{H16}:{LAST32}", LAST32, H16, ""), 1
        )
    )
    + ")"
)

# RFC 5321, section 4.1.2, with a host name as the domain
ATOM = "[0-9A-Za-z!#$%&'*+/=?^_`{|}~-]"
QUOTED = r'"(?:[ !#-[\]-~]|\\[ -~])*"'
EMAIL = rf"(?:{ATOM}+(?:\.{ATOM}+)*|{QUOTED})@(?:{HOSTNAME}|\[(?:{IPV4}|IPv6:{IPV6})\])"

# RFC 3986, appendix A
UNRESERVED, SUBDELIMITERS = r"0-9A-Za-z._~-", r"!$&'()*+,;="
ESCAPED = f"%{HEX}{{2}}"
PCHAR = f"(?:[{SUBDELIMITERS}:@{UNRESERVED}]|{ESCAPED})"
SEGMENTS = f"(?:/{PCHAR}*)*"
USER = f"(?:(?:[{SUBDELIMITERS}:{UNRESERVED}]|{ESCAPED})*@)?"
FUTURE = rf"v{HEX}+\.[{SUBDELIMITERS}:{UNRESERVED}]+"
HOST = rf"(?:\[(?:{IPV6}|{FUTURE})\]|(?:[{SUBDELIMITERS}{UNRESERVED}]|{ESCAPED})*)"
AUTHORITY = f"//{USER}{HOST}(?::[0-9]*)?{SEGMENTS}"
ABSOLUTE = f"/(?:{PCHAR}+{SEGMENTS})?"
TAIL = rf"(?:\?(?:{PCHAR}|[/?])*)?(?:#(?:{PCHAR}|[/?])*)?"
URI = f"[A-Za-z][0-9A-Za-z+.-]*:(?:{AUTHORITY}|{ABSOLUTE}|{PCHAR}+{SEGMENTS})?{TAIL}"
RELATIVE = f"(?:{AUTHORITY}|{ABSOLUTE}|(?:[{SUBDELIMITERS}@{UNRESERVED}]|{ESCAPED})+{SEGMENTS})?{TAIL}"

# RFC 6901; RFC draft bhutton-relative-json-pointer-00
POINTER = r"(?:/(?:[^/~]|~[01])*)*"

PATTERNS: dict[str, str] = {
    "date": DATE,
    "time": TIME,
    "date-time": f"{DATE}[Tt]{TIME}",
    "duration": DURATION,
    "email": EMAIL,
    "hostname": HOSTNAME,
    "ipv4": IPV4,
    "ipv6": IPV6,
    "uuid": f"{HEX}{{8}}-{HEX}{{4}}-{HEX}{{4}}-{HEX}{{4}}-{HEX}{{12}}",
    "uri": URI,
    "uri-reference": f"(?:{URI}|{RELATIVE})",
    "json-pointer": POINTER,
    "relative-json-pointer": f"(?:0|[1-9][0-9]*)(?:#|{POINTER})",
}
LONGEST = {"hostname": 253, "email": 254}
# formats of the standard without a pattern here; any other format is an annotation
REFUSED = frozenset({"idn-email", "idn-hostname", "iri", "iri-reference", "regex", "uri-template"})
