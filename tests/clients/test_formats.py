"""The format checks reject invalid values."""

import pytest

from formats import CHECKER

RIGHT = {
    "date": ["2024-02-29", "1999-12-31"],
    "time": ["23:59:60Z", "00:00:00.125+01:30"],
    "date-time": ["2026-11-21T10:00:00z"],
    "duration": ["P1Y2M3D", "PT5M", "P3DT4H5M6S", "P2W"],
    "hostname": ["a", "a-b.example"],
    "email": ["a.b+c@example.org", "x@[127.0.0.1]"],
    "ipv4": ["255.0.10.9"],
    "ipv6": ["::", "1:2:3:4:5:6:7:8", "fe80::1"],
    "uuid": ["123e4567-E89B-12d3-a456-426614174000"],
    "uri": ["a:", "https://[::1]:80/x%20y?z#w"],
}

WRONG = {
    "date": ["2024-02-30", "2024-13-01", "2024-1-01", "2024-00-10", ""],
    "time": ["24:00:00Z", "10:60:00Z", "10:00:61Z", "10:00:00", "10:00:00+24:00", "10:00:00.Z"],
    "date-time": ["2026-11-21 10:00:00Z", "2026-11-31T10:00:00Z", "2026-11-21T10:00Z"],
    "duration": ["P", "PT", "P1Y3D", "PT1H2S", "P1W2D", "P2WT1H", "1Y", "P1D1M"],
    "hostname": ["", "-a", "a-", "a..b", "a" * 64, "a_b"],
    "email": ["a", "@b", "a@", "a..b@c", "a@-b", "a@[1.2.3]"],
    "ipv4": ["1.2.3", "256.1.1.1", "01.2.3.4"],
    "ipv6": ["1:2", "::1::", "12345::", "fe80::1%0"],
    "uuid": ["123e4567e89b12d3a456426614174000", "123e4567-e89b-12d3-a456-42661417400g", "x"],
    "uri": ["//x", "1a:b", "a:b c", "a:%2", "a:<"],
}


@pytest.mark.offline
@pytest.mark.parametrize("name", RIGHT)
def test_format_checker_rejects_invalid_values(name):
    for text in RIGHT[name]:
        assert CHECKER.conforms(text, name), text
    for text in WRONG[name]:
        assert not CHECKER.conforms(text, name), text
    assert CHECKER.conforms(1, name)
