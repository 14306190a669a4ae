//! The checksums that S3 clients send with a body: CRC32, CRC32C, CRC64NVME, SHA1, SHA256, which are kept, and
//! a few more that are only compared (`checked_only.rs`).
//!
//! What a client announces, in a header or in a trailer, is computed while the body streams by and compared
//! before the object becomes visible. A multipart object's checksum is made from those of its parts: hashed
//! together (composite) or combined (full object, CRCs only). `Content-MD5` is checked by the engine.

mod checked_only;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use forebay_core::{Error, Kind, Result};
use forebay_engine::{ChecksumKind, ObjectChecksum};
use s3s::checksum::ChecksumHasher;
use s3s::crypto::{Checksum as _, Crc32, Crc32c, Crc64Nvme, Sha1, Sha256};
use s3s::{S3Request, S3Result, TrailingHeaders, s3_error};

pub(crate) use checked_only::CheckedOnly;

/// An algorithm that S3 knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Algorithm {
    Crc32,
    Crc32c,
    Crc64Nvme,
    Sha1,
    Sha256,
}

impl Algorithm {
    pub(crate) const ALL: [Self; 5] = [
        Self::Crc32,
        Self::Crc32c,
        Self::Crc64Nvme,
        Self::Sha1,
        Self::Sha256,
    ];

    /// S3's name.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Crc32 => "CRC32",
            Self::Crc32c => "CRC32C",
            Self::Crc64Nvme => "CRC64NVME",
            Self::Sha1 => "SHA1",
            Self::Sha256 => "SHA256",
        }
    }

    const fn header(self) -> &'static str {
        match self {
            Self::Crc32 => "x-amz-checksum-crc32",
            Self::Crc32c => "x-amz-checksum-crc32c",
            Self::Crc64Nvme => "x-amz-checksum-crc64nvme",
            Self::Sha1 => "x-amz-checksum-sha1",
            Self::Sha256 => "x-amz-checksum-sha256",
        }
    }

    const fn digest_bytes(self) -> usize {
        match self {
            Self::Crc32 | Self::Crc32c => 4,
            Self::Crc64Nvme => 8,
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }

    fn crc(self) -> Option<crc_fast::CrcAlgorithm> {
        match self {
            Self::Crc32 => Some(crc_fast::CrcAlgorithm::Crc32IsoHdlc),
            Self::Crc32c => Some(crc_fast::CrcAlgorithm::Crc32Iscsi),
            Self::Crc64Nvme => Some(crc_fast::CrcAlgorithm::Crc64Nvme),
            Self::Sha1 | Self::Sha256 => None,
        }
    }

    /// The algorithm of this name, as clients write it.
    pub(crate) fn from_name(name: &str) -> S3Result<Self> {
        Self::ALL
            .into_iter()
            .find(|algorithm| algorithm.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| {
                s3_error!(
                    InvalidRequest,
                    "the checksum algorithm {name} cannot be used here; use CRC32, CRC32C, CRC64NVME, SHA1 or SHA256"
                )
            })
    }

    /// Returns what an upload's checksum covers if the client does not say; an error if it cannot be what the
    /// client says.
    pub(crate) fn upload_kind(self, asked: Option<&str>) -> S3Result<ChecksumKind> {
        match (asked, self) {
            (None, Self::Crc64Nvme) | (Some("FULL_OBJECT"), Self::Crc32 | Self::Crc32c | Self::Crc64Nvme) => {
                Ok(ChecksumKind::FullObject)
            }
            (None, _) | (Some("COMPOSITE"), Self::Crc32 | Self::Crc32c | Self::Sha1 | Self::Sha256) => {
                Ok(ChecksumKind::Composite)
            }
            _ => Err(s3_error!(
                InvalidRequest,
                "this checksum type cannot be used with {}",
                self.name()
            )),
        }
    }
}

/// Values as they stand in `s3s`'s inputs and outputs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Values {
    pub(crate) crc32: Option<String>,
    pub(crate) crc32c: Option<String>,
    pub(crate) crc64nvme: Option<String>,
    pub(crate) sha1: Option<String>,
    pub(crate) sha256: Option<String>,
}

impl Values {
    pub(crate) fn of(checksums: &[ObjectChecksum]) -> Self {
        let value = |algorithm: Algorithm| {
            checksums
                .iter()
                .find(|checksum| checksum.algorithm == algorithm.name())
                .map(|checksum| checksum.value.clone())
        };
        Self {
            crc32: value(Algorithm::Crc32),
            crc32c: value(Algorithm::Crc32c),
            crc64nvme: value(Algorithm::Crc64Nvme),
            sha1: value(Algorithm::Sha1),
            sha256: value(Algorithm::Sha256),
        }
    }

    fn take(&self, algorithm: Algorithm) -> Option<&String> {
        match algorithm {
            Algorithm::Crc32 => self.crc32.as_ref(),
            Algorithm::Crc32c => self.crc32c.as_ref(),
            Algorithm::Crc64Nvme => self.crc64nvme.as_ref(),
            Algorithm::Sha1 => self.sha1.as_ref(),
            Algorithm::Sha256 => self.sha256.as_ref(),
        }
    }

    /// Those that are there, as the engine has them.
    pub(crate) fn to_checksums(&self, kind: ChecksumKind) -> Vec<ObjectChecksum> {
        let one = |algorithm: Algorithm| {
            self.take(algorithm).map(|value| ObjectChecksum {
                algorithm: algorithm.name().to_owned(),
                value: value.clone(),
                kind,
            })
        };
        Algorithm::ALL.into_iter().filter_map(one).collect()
    }
}

/// S3's word for what a checksum covers.
pub(crate) fn kind_name(kind: ChecksumKind) -> &'static str {
    match kind {
        ChecksumKind::FullObject => "FULL_OBJECT",
        ChecksumKind::Composite => "COMPOSITE",
    }
}

/// Checksums that a client announced for a body, beside those of the body itself.
pub(crate) struct Verifier {
    hasher: ChecksumHasher,
    in_header: Option<(Algorithm, String)>,
    in_trailer: Option<(Algorithm, Option<TrailingHeaders>)>,
    checked_only: Option<CheckedOnlySum>,
}

/// A checksum that is compared and not kept.
struct CheckedOnlySum {
    algorithm: CheckedOnly,
    hasher: checked_only::Hasher,
    expected: Expected,
}

/// The place of a checksum.
enum Expected {
    Value(String),
    Trailer(Option<TrailingHeaders>),
}

impl CheckedOnlySum {
    /// The one that a header names, if there is one.
    fn in_header<T>(request: &S3Request<T>) -> S3Result<Option<Self>> {
        let mut found = None;
        for algorithm in CheckedOnly::ALL {
            let Some(value) = request.headers.get(algorithm.header()) else {
                continue;
            };
            if found.is_some() {
                return Err(single_header());
            }
            let value = value.to_str().unwrap_or_default();
            check_digest(algorithm.header(), algorithm.digest_bytes(), value)?;
            found = Some(Self::new(algorithm, Expected::Value(value.to_owned())));
        }
        Ok(found)
    }

    fn new(algorithm: CheckedOnly, expected: Expected) -> Self {
        Self {
            algorithm,
            hasher: algorithm.hasher(),
            expected,
        }
    }

    fn finish(self) -> Result<()> {
        let value = match self.expected {
            Expected::Value(value) => value,
            Expected::Trailer(trailers) => trailer_value(self.algorithm.header(), trailers.as_ref())?,
        };
        if self.hasher.finish() == value {
            return Ok(());
        }
        Err(mismatch(self.algorithm.name()))
    }
}

fn single_header() -> s3s::S3Error {
    s3_error!(InvalidRequest, "expecting a single x-amz-checksum- header")
}

fn mismatch(algorithm: &str) -> Error {
    let message = format!("the {algorithm} you specified did not match the calculated checksum");
    Error::new(Kind::Checksum, message).with("code", "BadDigest")
}

/// The names of all that can be checked, for messages.
pub(crate) fn names() -> String {
    let kept = Algorithm::ALL.map(Algorithm::name);
    let checked_only = CheckedOnly::ALL.map(CheckedOnly::name);
    [kept, checked_only].concat().join(", ")
}

/// Returns whether this is the checksum of an empty body under its header's name.
pub(crate) fn is_of_nothing(header: &str, value: &str) -> bool {
    let kept = Algorithm::ALL.into_iter().find(|one| one.header() == header);
    kept.is_some_and(|algorithm| BASE64.encode(digest_of(algorithm, b"")) == value)
        || CheckedOnly::of_header(header).is_some_and(|algorithm| algorithm.value_of(b"") == value)
}

impl Verifier {
    /// Reads the announcement; `given` are the `x-amz-checksum-*` headers.
    pub(crate) fn new<T>(request: &S3Request<T>, given: &Values) -> S3Result<Self> {
        let mut headers = given.to_checksums(ChecksumKind::FullObject).into_iter();
        let in_header = headers.next();
        if headers.next().is_some() {
            return Err(single_header());
        }
        let in_header = match in_header {
            Some(checksum) => {
                let algorithm = Algorithm::from_name(&checksum.algorithm)?;
                check_value(algorithm, &checksum.value)?;
                Some((algorithm, checksum.value))
            }
            None => None,
        };
        let mut checked_only = CheckedOnlySum::in_header(request)?;
        if in_header.is_some() && checked_only.is_some() {
            return Err(single_header());
        }
        let in_trailer = match announced_trailer(request)? {
            Some(Announced::Kept(algorithm)) => Some(algorithm),
            Some(Announced::CheckedOnly(algorithm)) => {
                let expected = Expected::Trailer(request.trailing_headers.clone());
                if checked_only
                    .replace(CheckedOnlySum::new(algorithm, expected))
                    .is_some()
                {
                    return Err(single_header());
                }
                None
            }
            None => None,
        };
        let announced = request.headers.get("x-amz-sdk-checksum-algorithm");
        if announced.is_some() && in_header.is_none() && in_trailer.is_none() && checked_only.is_none() {
            let message = "x-amz-sdk-checksum-algorithm is given without a checksum header or trailer";
            return Err(s3_error!(InvalidRequest, "{message}"));
        }
        let wanted = |algorithm| {
            in_header.as_ref().is_some_and(|(one, _)| *one == algorithm) || in_trailer == Some(algorithm)
        };
        let hasher = ChecksumHasher {
            crc32: wanted(Algorithm::Crc32).then(Crc32::new),
            crc32c: wanted(Algorithm::Crc32c).then(Crc32c::new),
            crc64nvme: wanted(Algorithm::Crc64Nvme).then(Crc64Nvme::new),
            sha1: wanted(Algorithm::Sha1).then(Sha1::new),
            sha256: wanted(Algorithm::Sha256).then(Sha256::new),
        };
        let in_trailer = in_trailer.map(|algorithm| (algorithm, request.trailing_headers.clone()));
        Ok(Self {
            hasher,
            in_header,
            in_trailer,
            checked_only,
        })
    }

    /// Returns what the headers announced; to be kept if the body turns out so.
    pub(crate) fn announced(&self) -> Vec<ObjectChecksum> {
        self.in_header
            .iter()
            .map(|(algorithm, value)| full(*algorithm, value))
            .collect()
    }

    /// Returns whether more may come after the body.
    pub(crate) fn has_trailer(&self) -> bool {
        self.in_trailer.is_some()
    }

    /// Takes the next bytes of the body.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        if let Some(sum) = &mut self.checked_only {
            sum.hasher.update(bytes);
        }
    }

    /// Compares, after the last byte. Returns the checksums to keep.
    pub(crate) fn finish(self) -> Result<Vec<ObjectChecksum>> {
        if let Some(sum) = self.checked_only {
            sum.finish()?;
        }
        let sums = self.hasher.finalize();
        let computed = Values {
            crc32: sums.checksum_crc32,
            crc32c: sums.checksum_crc32c,
            crc64nvme: sums.checksum_crc64nvme,
            sha1: sums.checksum_sha1,
            sha256: sums.checksum_sha256,
        };
        let mut expected: Vec<(Algorithm, String)> = self.in_header.into_iter().collect();
        if let Some((algorithm, trailers)) = self.in_trailer {
            expected.push((algorithm, trailer_value(algorithm.header(), trailers.as_ref())?));
        }
        for (algorithm, value) in expected {
            if computed.take(algorithm) != Some(&value) {
                return Err(mismatch(algorithm.name()));
            }
        }
        Ok(computed.to_checksums(ChecksumKind::FullObject))
    }
}

fn full(algorithm: Algorithm, value: &str) -> ObjectChecksum {
    ObjectChecksum {
        algorithm: algorithm.name().to_owned(),
        value: value.to_owned(),
        kind: ChecksumKind::FullObject,
    }
}

fn check_value(algorithm: Algorithm, value: &str) -> S3Result<()> {
    check_digest(algorithm.header(), algorithm.digest_bytes(), value)
}

fn check_digest(header: &str, bytes: usize, value: &str) -> S3Result<()> {
    match BASE64.decode(value) {
        Ok(digest) if digest.len() == bytes => Ok(()),
        _ => Err(s3_error!(InvalidRequest, "value for {header} header is invalid")),
    }
}

/// An algorithm whose value comes after the body.
#[derive(Clone, Copy)]
enum Announced {
    Kept(Algorithm),
    CheckedOnly(CheckedOnly),
}

fn announced_trailer<T>(request: &S3Request<T>) -> S3Result<Option<Announced>> {
    let Some(announced) = request
        .headers
        .get("x-amz-trailer")
        .and_then(|names| names.to_str().ok())
    else {
        return Ok(None);
    };
    let mut found = None;
    for name in announced.split(',').map(str::trim) {
        let algorithm = Algorithm::ALL
            .into_iter()
            .find(|one| one.header().eq_ignore_ascii_case(name))
            .map(Announced::Kept)
            .or_else(|| CheckedOnly::of_header(name).map(Announced::CheckedOnly));
        match (algorithm, found) {
            (Some(algorithm), None) => found = Some(algorithm),
            (Some(_), Some(_)) => {
                return Err(s3_error!(
                    InvalidRequest,
                    "expecting a single x-amz-checksum- trailer"
                ));
            }
            (None, _) => {
                return Err(s3_error!(
                    InvalidRequest,
                    "the trailer {name} cannot be checked here; use the checksum of one of {}",
                    names()
                ));
            }
        }
    }
    Ok(found)
}

fn trailer_value(header: &str, trailers: Option<&TrailingHeaders>) -> Result<String> {
    let read = |headers: &http::HeaderMap| {
        headers
            .get(header)
            .and_then(|value| value.to_str().ok())
            .map(|value| value.trim().to_owned())
    };
    trailers
        .and_then(|trailers| trailers.read(read))
        .flatten()
        .ok_or_else(|| {
            let message = format!("the trailer {header} was announced but did not come");
            Error::new(Kind::InvalidInput, message).with("code", "MalformedTrailerError")
        })
}

/// One part's share in the checksum of the whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PartSum<'a> {
    /// Base64.
    pub(crate) value: &'a str,
    /// The part's size.
    pub(crate) bytes: u64,
}

/// The checksum of an object made of these parts; `None` if a part's checksum makes no sense.
pub(crate) fn of_parts(algorithm: Algorithm, kind: ChecksumKind, parts: &[PartSum<'_>]) -> Option<String> {
    let mut digests = Vec::with_capacity(parts.len());
    for part in parts {
        let digest = BASE64
            .decode(part.value)
            .ok()
            .filter(|digest| digest.len() == algorithm.digest_bytes())?;
        digests.push((digest, part.bytes));
    }
    match kind {
        ChecksumKind::FullObject => combine(algorithm, &digests),
        ChecksumKind::Composite => {
            let all: Vec<u8> = digests
                .iter()
                .flat_map(|(digest, _)| digest.iter().copied())
                .collect();
            Some(format!(
                "{}-{}",
                BASE64.encode(digest_of(algorithm, &all)),
                parts.len()
            ))
        }
    }
}

fn combine(algorithm: Algorithm, digests: &[(Vec<u8>, u64)]) -> Option<String> {
    let crc = algorithm.crc()?;
    let number = |digest: &[u8]| digest.iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
    let ((first, _), rest) = digests.split_first()?;
    let joined = rest.iter().fold(number(first), |sum, (digest, bytes)| {
        crc_fast::checksum_combine(crc, sum, number(digest), *bytes)
    });
    Some(BASE64.encode(&joined.to_be_bytes()[8 - algorithm.digest_bytes()..]))
}

fn digest_of(algorithm: Algorithm, bytes: &[u8]) -> Vec<u8> {
    match algorithm {
        Algorithm::Crc32 => Crc32::checksum(bytes).to_vec(),
        Algorithm::Crc32c => Crc32c::checksum(bytes).to_vec(),
        Algorithm::Crc64Nvme => Crc64Nvme::checksum(bytes).to_vec(),
        Algorithm::Sha1 => Sha1::checksum(bytes).to_vec(),
        Algorithm::Sha256 => Sha256::checksum(bytes).to_vec(),
    }
}

#[cfg(test)]
mod tests;
