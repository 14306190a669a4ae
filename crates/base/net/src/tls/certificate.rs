//! Facts of a certificate that are shown to people: its subject and the end of its validity.
//!
//! rustls verifies certificates and does not show these fields. They are read here for messages and logs
//! only; no decision rests on them. The input is a stranger's: everything that is not as expected ends the
//! reading with `None`.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const INTEGER: u8 = 0x02;
const OBJECT_IDENTIFIER: u8 = 0x06;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The longest subject that is shown.
const SUBJECT_CHARS_MAX: usize = 256;

/// Subject and end of validity of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateInfo {
    /// Its subject, as `CN=trainer, O=Lab`; empty where only alternative names are given.
    pub subject: String,
    /// The last moment at which it is valid.
    pub not_after: Timestamp,
}

impl CertificateInfo {
    /// Reads a certificate in DER form; `None` if it is not one.
    #[must_use]
    pub fn read(der: &[u8]) -> Option<Self> {
        let mut certificate = Der(Der(der).take(SEQUENCE)?);
        let mut body = Der(certificate.take(SEQUENCE)?);
        if body.0.first() == Some(&VERSION) {
            body.take(VERSION)?;
        }
        let _serial = body.take(INTEGER)?;
        let _algorithm = body.take(SEQUENCE)?;
        let _issuer = body.take(SEQUENCE)?;
        let mut validity = Der(body.take(SEQUENCE)?);
        let _not_before = validity.next()?;
        let not_after = time(validity.next()?)?;
        let subject = subject(body.take(SEQUENCE)?)?;
        Some(Self { subject, not_after })
    }
}

/// A run of DER values.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// Takes the next value: its tag and content.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&[tag, short], mut rest) = self.0.split_first_chunk::<2>()?;
        let length = if short < 0x80 {
            usize::from(short)
        } else {
            let digits = usize::from(short & 0x7f);
            if digits == 0 || digits > 4 {
                return None;
            }
            let (length, after) = rest.split_at_checked(digits)?;
            rest = after;
            length
                .iter()
                .fold(0, |length, byte| (length << 8) | usize::from(*byte))
        };
        let (content, after) = rest.split_at_checked(length)?;
        self.0 = after;
        Some((tag, content))
    }

    /// Takes the next value, which must have this tag.
    fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next()
            .filter(|(found, _)| *found == tag)
            .map(|(_, content)| content)
    }
}

fn subject(names: &[u8]) -> Option<String> {
    let mut names = Der(names);
    let mut parts = Vec::new();
    while !names.0.is_empty() {
        let mut name = Der(Der(names.take(SET)?).take(SEQUENCE)?);
        let label = match name.take(OBJECT_IDENTIFIER)? {
            [0x55, 4, 3] => "CN",
            [0x55, 4, 6] => "C",
            [0x55, 4, 7] => "L",
            [0x55, 4, 8] => "ST",
            [0x55, 4, 10] => "O",
            [0x55, 4, 11] => "OU",
            _ => continue,
        };
        let (_, text) = name.next()?;
        let text = String::from_utf8_lossy(text);
        parts.push(format!("{label}={}", text.replace(char::is_control, "?")));
    }
    Some(parts.join(", ").chars().take(SUBJECT_CHARS_MAX).collect())
}

fn time((tag, text): (u8, &[u8])) -> Option<Timestamp> {
    let text = std::str::from_utf8(text).ok()?;
    let text = match tag {
        // Two digits of the year: up to 49 they are of this century (RFC 5280).
        UTC_TIME if text.get(..2)? < "50" => format!("20{text}"),
        UTC_TIME => format!("19{text}"),
        GENERALIZED_TIME => text.to_owned(),
        _ => return None,
    };
    let civil = DateTime::strptime("%Y%m%d%H%M%SZ", text).ok()?;
    Some(civil.to_zoned(TimeZone::UTC).ok()?.timestamp())
}
