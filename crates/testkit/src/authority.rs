//! A certificate authority of a test: makes certificates for nodes and clients.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// An authority. Each one is trusted by those alone who were given its certificate.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A certificate and its private key, both in PEM form.
pub struct Identity {
    /// The certificate.
    pub cert: String,
    /// The private key.
    pub key: String,
}

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

impl Authority {
    /// Makes an authority with a fresh key.
    #[must_use]
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params
            .distinguished_name
            .push(DnType::CommonName, "Authority of a test");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    /// Returns its own certificate in PEM form.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Writes its own certificate to `ca.pem` in this folder.
    #[must_use]
    pub fn write(&self, folder: &Path) -> PathBuf {
        let path = folder.join("ca.pem");
        std::fs::write(&path, &self.pem).unwrap();
        path
    }

    /// Makes a certificate for a node at `localhost`, `127.0.0.1` and `::1`.
    #[must_use]
    pub fn node(&self) -> Identity {
        self.node_called("node of a test")
    }

    /// Makes one with this common name.
    #[must_use]
    pub fn node_called(&self, name: &str) -> Identity {
        self.sign(&node_params(name))
    }

    /// Makes one whose time has passed.
    #[must_use]
    pub fn expired_node(&self) -> Identity {
        let mut params = node_params("old node");
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2020, 2, 1);
        self.sign(&params)
    }

    /// Makes a certificate for a client of this name.
    #[must_use]
    pub fn client(&self, name: &str) -> Identity {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(&params)
    }

    fn sign(&self, params: &CertificateParams) -> Identity {
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        Identity {
            cert: cert.pem(),
            key: key.serialize_pem(),
        }
    }
}

impl Identity {
    /// Writes `<name>.pem` and `<name>.key` to this folder, each by a rename, and returns their paths.
    pub fn write(&self, folder: &Path, name: &str) -> (PathBuf, PathBuf) {
        let put = |ending: &str, text: &str| {
            let path = folder.join(format!("{name}.{ending}"));
            let temporary = folder.join(format!("{name}.{ending}.new"));
            std::fs::write(&temporary, text).unwrap();
            std::fs::rename(&temporary, &path).unwrap();
            path
        };
        (put("pem", &self.cert), put("key", &self.key))
    }
}

fn node_params(name: &str) -> CertificateParams {
    let names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
    let mut params = CertificateParams::new(names).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params
}
