//! Certificate of a node's doors, which follows its files.
//!
//! The files are looked at when a connection comes in, at most once per second: a changed inode, time or size
//! of any of them (also behind a symbolic link, as Kubernetes swaps secrets) makes all of them be read again.
//! Files that cannot be used keep the old certificate in place and are warned about once. Connections that
//! are open keep what they were made with. A new configuration has a session cache of its own, so a client
//! that the new `client_ca` does not trust cannot resume.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_core::{Clock, Error, Kind, Result};
use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;

use super::certificate::CertificateInfo;
use super::{ALPN, pem, provider};

/// Time between two looks at the files.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// A certificate that ends sooner than this is warned about.
const EXPIRY_NOTICE: Duration = Duration::from_secs(7 * 24 * 3600);

/// Files of a node's certificate, all in PEM form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate and the intermediate ones up to the authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// Authorities of client certificates; where it is given, nobody gets in without one.
    pub client_ca: Option<PathBuf>,
}

/// Certificate of a node's doors.
#[derive(Debug)]
pub struct ServerTls {
    files: TlsFiles,
    clock: Arc<dyn Clock>,
    current: RwLock<Arc<ServerConfig>>,
    /// Time of the next look at the files, in milliseconds of the clock.
    next_look_ms: AtomicU64,
    /// Identity of the files when they were last read.
    seen: Mutex<[Fingerprint; 3]>,
}

/// Identity of a file: changes when it is replaced or written; `None` for a file that is not there.
type Fingerprint = Option<(u64, u64, u64, i64, i64, i64, i64)>;

impl ServerTls {
    /// Reads the files.
    pub fn load(files: TlsFiles, clock: Arc<dyn Clock>) -> Result<Arc<Self>> {
        // Before the files are read: a change that comes in between is then seen at the next look.
        let seen = files.fingerprints();
        pem::warn_if_shared(&files.key);
        let (config, info) = files.read()?;
        warn_of_expiry(info.as_ref(), clock.as_ref());
        Ok(Arc::new(Self {
            files,
            current: RwLock::new(Arc::new(config)),
            next_look_ms: AtomicU64::new(milliseconds(clock.monotonic() + LOOK_PERIOD)),
            seen: Mutex::new(seen),
            clock,
        }))
    }

    /// Returns the configuration for a new connection.
    #[must_use]
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.read())
    }

    /// Returns whether the files should be looked at now; only one caller in a period is told so.
    #[must_use]
    pub fn is_look_due(&self) -> bool {
        let now = self.clock.monotonic();
        let (now, next) = (milliseconds(now), milliseconds(now + LOOK_PERIOD));
        let due = self.next_look_ms.load(Ordering::Relaxed);
        let taken = |due| {
            self.next_look_ms
                .compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed)
        };
        now >= due && taken(due).is_ok()
    }

    /// Looks at the files and reads them if they have changed. Blocks on the disk.
    pub fn reload(&self) {
        let mut seen = self.seen.lock();
        let found = self.files.fingerprints();
        if *seen == found {
            return;
        }
        *seen = found;
        match self.files.read() {
            Ok((config, info)) => {
                *self.current.write() = Arc::new(config);
                let subject = info.as_ref().map_or("", |info| info.subject.as_str());
                let valid_until = info.as_ref().map(|info| info.not_after.to_string());
                tracing::info!(subject, valid_until, "took the new TLS certificate");
                pem::warn_if_shared(&self.files.key);
                warn_of_expiry(info.as_ref(), self.clock.as_ref());
            }
            Err(error) => {
                tracing::warn!(%error, "the new TLS certificate cannot be used; the old one stays");
            }
        }
    }
}

impl TlsFiles {
    fn read(&self) -> Result<(ServerConfig, Option<CertificateInfo>)> {
        let chain = pem::certificates(&self.cert).map_err(|error| error.with("setting", "tls.cert"))?;
        let key = pem::private_key(&self.key).map_err(|error| error.with("setting", "tls.key"))?;
        let info = chain.first().and_then(|first| CertificateInfo::read(first));
        let builder = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|why| Error::new(Kind::Internal, "TLS cannot be configured").caused_by(why))?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(ca) => {
                let setting = |error: Error| error.with("setting", "tls.client_ca");
                let roots = Arc::new(pem::authorities(ca).map_err(setting)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider())
                    .build()
                    .map_err(|why| {
                        setting(pem::wrong(ca, "no authority for client certificates").caused_by(why))
                    })?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|why| {
            pem::wrong(
                &self.cert,
                "the certificate and its private key do not belong together",
            )
            .with("key", self.key.display())
            .with("setting", "tls.cert")
            .caused_by(why)
        })?;
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok((config, info))
    }

    fn fingerprints(&self) -> [Fingerprint; 3] {
        let ca = self.client_ca.as_deref();
        [Some(self.cert.as_path()), Some(self.key.as_path()), ca].map(|path| path.and_then(fingerprint))
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn fingerprint(path: &Path) -> Fingerprint {
    let found = path.metadata().ok()?;
    let modified = (found.mtime(), found.mtime_nsec());
    let changed = (found.ctime(), found.ctime_nsec());
    Some((
        found.dev(),
        found.ino(),
        found.size(),
        modified.0,
        modified.1,
        changed.0,
        changed.1,
    ))
}

fn warn_of_expiry(info: Option<&CertificateInfo>, clock: &dyn Clock) {
    let (Some(info), Ok(now)) = (info, Timestamp::try_from(clock.wall())) else {
        return;
    };
    let valid_until = info.not_after.to_string();
    if info.not_after < now {
        tracing::warn!(
            valid_until,
            "the TLS certificate has expired: clients refuse it; put a new one in place"
        );
    } else if info.not_after.duration_since(now).unsigned_abs() < EXPIRY_NOTICE {
        tracing::warn!(
            valid_until,
            "the TLS certificate ends soon; put a new one in place"
        );
    }
}
