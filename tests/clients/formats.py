"""Checks for the JSON Schema formats that the host's grammars support.

jsonschema checks `time`, `date-time`, `duration`, `hostname` and `uri` only with more packages, and its `date` knows
leap years, which no grammar does: here every year has a 29th of February.
"""

import ipaddress
import re
import uuid

import jsonschema

CHECKER = jsonschema.FormatChecker(formats=())
"""For `format_checker` of a validator."""

DAYS = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"


def checks(name):
    """Registers a function as the check of a format. It rejects with `False` or a `ValueError`."""

    def register(check):
        # Formats apply to strings only.
        CHECKER.checks(name, raises=ValueError)(lambda value: not isinstance(value, str) or check(value))
        return check

    return register


@checks("date")
def is_date(text):
    found = re.fullmatch(r"[0-9]{4}-([0-9]{2})-([0-9]{2})", text)
    month, day = map(int, found.groups()) if found else (0, 0)
    return 1 <= month <= 12 and 1 <= day <= DAYS[month - 1]


@checks("time")
def is_time(text):
    found = re.fullmatch(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(\.[0-9]+)?([zZ]|[+-]([0-9]{2}):([0-9]{2}))", text)
    if not found:
        return False
    hour, minute, second, east, past = (int(found[group] or 0) for group in [1, 2, 3, 6, 7])
    # A minute may have a leap second.
    return hour <= 23 and minute <= 59 and second <= 60 and east <= 23 and past <= 59


@checks("date-time")
def is_date_time(text):
    return text[10:11] in ("T", "t") and is_date(text[:10]) and is_time(text[11:])


@checks("duration")
def is_duration(text):
    found = re.fullmatch(r"P((?:[0-9]+[YMWD])*)(T(?:[0-9]+[HMS])+)?", text)
    if not found or not found[1] + (found[2] or ""):
        return False
    days, times = ("".join(re.findall("[A-Z]", part or "")) for part in found.groups())
    # Units are in descending order without gaps; weeks stand alone.
    return (days in "YMD" and times.removeprefix("T") in "HMS") or (days, times) == ("W", "")


@checks("hostname")
def is_hostname(text):
    return all(len(label) <= 63 and re.fullmatch(LABEL, label) for label in text.split("."))


@checks("email")
def is_email(text):
    name, _, place = text.rpartition("@")
    if not all(re.fullmatch(ATOM, atom) for atom in name.split(".")):
        return False
    if place.startswith("["):
        return place.endswith("]") and is_ipv4(place[1:-1])
    return all(re.fullmatch(LABEL, label) for label in place.split("."))


@checks("ipv4")
def is_ipv4(text):
    return str(ipaddress.IPv4Address(text)) == text


@checks("ipv6")
def is_ipv6(text):
    return ipaddress.IPv6Address(text).scope_id is None


@checks("uuid")
def is_uuid(text):
    return str(uuid.UUID(text)) == text.lower()


@checks("uri")
def is_uri(text):
    found = re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*:(.*)", text)
    if not found:
        return False
    # Reserved and unreserved characters of RFC 3986, and percent-encoded bytes.
    return re.fullmatch(r"(?:[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*", found[1]) is not None


def fits(value, schema):
    """Raises unless a value satisfies the schema, formats included."""
    jsonschema.validate(value, schema, jsonschema.Draft202012Validator, format_checker=CHECKER)
