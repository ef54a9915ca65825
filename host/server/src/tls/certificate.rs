//! When a certificate is valid: the one thing of it that we read ourselves.
//!
//! A certificate (RFC 5280, 4.1) is DER: `SEQUENCE { tbsCertificate SEQUENCE { [0] version OPTIONAL,
//! serialNumber INTEGER, signature SEQUENCE, issuer SEQUENCE, validity SEQUENCE { Time, Time }, ..`.
//! rustls checks and uses the rest; who can't be read here only goes without a warning.

use std::time::{Duration, SystemTime};

const INTEGER: u8 = 0x02;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// From when until when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Validity {
    pub(super) from: SystemTime,
    pub(super) until: SystemTime,
}

/// The validity of a certificate in DER.
pub(super) fn validity(certificate: &[u8]) -> Option<Validity> {
    let (certificate, _) = element(certificate, SEQUENCE)?;
    let (fields, _) = element(certificate, SEQUENCE)?;
    let fields = element(fields, VERSION).map_or(fields, |(_, rest)| rest);
    let (_, fields) = element(fields, INTEGER)?;
    let (_, fields) = element(fields, SEQUENCE)?;
    let (_, fields) = element(fields, SEQUENCE)?;
    let (times, _) = element(fields, SEQUENCE)?;
    let (from, times) = time(times)?;
    let (until, _) = time(times)?;
    Some(Validity { from, until })
}

/// The contents of the first element, if it has this tag, and what follows it.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&first, rest) = bytes.split_first()?;
    let (&length, rest) = rest.split_first()?;
    let (length, rest) = match length {
        0..=0x7f => (usize::from(length), rest),
        // The number of bytes of the length itself; four are enough for 4 GiB.
        0x81..=0x84 => {
            let (number, rest) = rest.split_at_checked(usize::from(length - 0x80))?;
            let sum = |sum: usize, byte: &u8| (sum << 8) | usize::from(*byte);
            (number.iter().fold(0, sum), rest)
        }
        _ => return None,
    };
    (first == tag).then(|| rest.split_at_checked(length))?
}

/// `YYMMDDhhmmssZ` or `YYYYMMDDhhmmssZ`, and what follows (RFC 5280, 4.1.2.5).
fn time(bytes: &[u8]) -> Option<(SystemTime, &[u8])> {
    let (text, rest, digits) = match element(bytes, UTC_TIME) {
        Some((text, rest)) => (text, rest, 2),
        None => {
            let (text, rest) = element(bytes, GENERALIZED_TIME)?;
            (text, rest, 4)
        }
    };
    let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
    if text.len() != digits + 10 || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number = |from: usize, to: usize| text[from..to].parse::<u64>().ok();
    let year = match (digits, number(0, digits)?) {
        (2, year @ 50..) => 1900 + year,
        (2, year) => 2000 + year,
        (_, year) => year,
    };
    let part = |index: usize| number(digits + 2 * index, digits + 2 * index + 2);
    let days = days_since_1970(year, part(0)?, part(1)?)?;
    let seconds = ((days * 24 + part(2)?) * 60 + part(3)?) * 60 + part(4)?;
    let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))?;
    Some((time, rest))
}

/// Days from 1970-01-01 to a day of the Gregorian calendar; those before count as that one.
fn days_since_1970(year: u64, month: u64, day: u64) -> Option<u64> {
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Years that begin in March end with the leap day.
    let (year, month) = match month {
        1 | 2 => (year.checked_sub(1)?, month + 9),
        _ => (year, month - 3),
    };
    let before = 365 * year + year / 4 - year / 100 + year / 400;
    // March to January have 153 days in every five months.
    let days = before + (153 * month + 2) / 5 + day - 1;
    // From 0000-03-01 to 1970-01-01.
    Some(days.saturating_sub(719_468))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    #[test]
    fn days_are_counted() {
        for (date, days) in [
            ((1970, 1, 1), 0),
            ((1970, 3, 1), 59),
            ((2000, 2, 29), 11_016),
            ((2000, 3, 1), 11_017),
            ((2024, 12, 31), 20_088),
            ((2100, 3, 1), 47_541),
            ((1900, 1, 1), 0),
        ] {
            assert_eq!(
                days_since_1970(date.0, date.1, date.2),
                Some(days),
                "{date:?}"
            );
        }
        assert_eq!(days_since_1970(2000, 13, 1), None);
        assert_eq!(days_since_1970(2000, 0, 1), None);
    }

    #[test]
    fn both_ways_to_write_a_time_are_read() {
        let key = KeyPair::generate().expect("a key");
        // Up to 2049 two digits are written, from 2050 on four.
        for year in [2026, 2049, 2050, 2100] {
            let mut params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
            params.not_before = date_time_ymd(2000, 2, 29);
            params.not_after = date_time_ymd(year, 12, 31);
            let certificate = params.self_signed(&key).expect("signed");
            let validity = validity(certificate.der()).expect("it has one");
            let seconds = |time: SystemTime| {
                let since = time.duration_since(SystemTime::UNIX_EPOCH);
                since.expect("after 1970").as_secs()
            };
            assert_eq!(seconds(validity.from), 11_016 * 86_400);
            let days = days_since_1970(year as u64, 12, 31).expect("a day");
            assert_eq!(seconds(validity.until), days * 86_400);
        }
    }

    #[test]
    fn what_is_no_certificate_has_no_validity() {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
        let certificate = params.self_signed(&key).expect("signed");
        // Cut anywhere, and with any byte of its beginning changed, nothing panics.
        for length in 0..certificate.der().len() {
            assert_eq!(validity(&certificate.der()[..length]), None);
        }
        for at in 0..100 {
            for byte in 0..=255 {
                let mut bytes = certificate.der().to_vec();
                bytes[at] = byte;
                let _ = validity(&bytes);
            }
        }
    }
}
