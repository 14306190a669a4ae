//! Manifests: the text as coreutils has it, names that escape, verdicts, signatures as openssl has them.

use std::fs;
use std::path::Path;
use std::process::Command;

use proptest::prelude::*;

use super::*;

fn digest(bytes: &[u8]) -> Digest {
    let mut hasher = Hasher::new();
    hasher.push(bytes);
    hasher.finish()
}

fn manifest(files: &[(&str, &[u8])]) -> Manifest {
    Manifest::new(
        files
            .iter()
            .map(|(name, bytes)| ((*name).to_owned(), digest(bytes))),
    )
    .unwrap()
}

const NAMES: [&str; 7] = [
    "a b",
    "b",
    " leading",
    "back\\slash",
    "c\nnew",
    "*star",
    "sub/täst",
];

/// A folder with files of these names, each with its name as content.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("sub")).unwrap();
    for name in NAMES {
        fs::write(folder.path().join(name), name).unwrap();
    }
    folder
}

fn sha256sum(folder: &Path, arguments: &[&str]) -> std::process::Output {
    Command::new("sha256sum")
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap()
}

#[test]
fn coreutils_checks_what_we_write() {
    let folder = folder();
    let files: Vec<(&str, &[u8])> = NAMES.iter().map(|name| (*name, name.as_bytes())).collect();
    fs::write(folder.path().join(SUMS_FILE), manifest(&files).to_text()).unwrap();
    let output = sha256sum(folder.path(), &["--strict", "--quiet", "-c", SUMS_FILE]);
    assert!(output.status.success(), "{output:?}");
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn we_read_and_write_what_coreutils_writes() {
    let folder = folder();
    let mut names = NAMES;
    names.sort_unstable();
    let text = sha256sum(folder.path(), &[&["--"], &names[..]].concat()).stdout;
    let read = Manifest::parse(&text).unwrap();
    assert!(read.entries().map(|(name, _)| name).eq(names));
    assert_eq!(read.to_text().as_bytes(), text);
    // In binary mode only the marker differs.
    let binary = sha256sum(folder.path(), &[&["-b", "--"], &names[..]].concat()).stdout;
    assert_ne!(binary, text);
    assert_eq!(Manifest::parse(&binary).unwrap(), read);
}

proptest! {
    #[test]
    fn any_names_come_back(names in prop::collection::btree_set("[a-c.\\\\\n\r*# é/]{1,6}", 0..6)) {
        let named = |name: String| { let sum = digest(name.as_bytes()); (name, sum) };
        let allowed = names.into_iter().filter(|name| !name.starts_with("./") && check_name(name).is_ok());
        let manifest = Manifest::new(allowed.map(named)).unwrap();
        let text = manifest.to_text();
        prop_assert_eq!(Manifest::parse(text.as_bytes()).unwrap(), manifest);
    }

    #[test]
    fn damaged_manifests_are_other_manifests_or_errors(at in 0_usize..1000, byte: u8, cut in 0_usize..1000) {
        let files: Vec<(&str, &[u8])> = NAMES.iter().map(|name| (*name, name.as_bytes())).collect();
        let mut text = manifest(&files).to_text().into_bytes();
        let at = at % text.len();
        text[at] = byte;
        for text in [&text[..], &text[..cut % text.len()]] {
            if let Ok(manifest) = Manifest::parse(text) {
                prop_assert_eq!(Manifest::parse(manifest.to_text().as_bytes()).unwrap(), manifest);
            }
        }
    }

    #[test]
    fn any_bytes_are_a_manifest_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(manifest) = Manifest::parse(&bytes) {
            prop_assert_eq!(Manifest::parse(manifest.to_text().as_bytes()).unwrap(), manifest);
        }
    }
}

#[test]
fn comments_and_an_empty_file_are_fine() {
    assert_eq!(Manifest::parse(b"").unwrap(), Manifest::default());
    let text = format!("# made by hand\n{}  ././a\n", digest(b"x"));
    assert_eq!(
        Manifest::parse(text.as_bytes()).unwrap().digest("a"),
        Some(digest(b"x"))
    );
}

#[test]
fn lines_that_cannot_be_read_are_refused_with_their_number() {
    let sum = digest(b"x").to_string();
    let good = format!("{sum}  good\n");
    for bad in [
        "\n".to_owned(),
        format!("{sum} one-space\n"),
        format!("{}  short\n", &sum[1..]),
        format!("{}g  digit\n", &sum[1..]),
        format!("\\{sum}  trailing\\\n"),
        format!("\\{sum}  unknown\\t\n"),
        format!("{sum}  windows\r\n"),
        format!("{sum}  good\n"),
        format!("{sum}  \n"),
        format!("{sum}\n"),
    ] {
        let error = Manifest::parse(format!("{good}{bad}").as_bytes()).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidInput, "{bad:?}");
        assert!(error.to_string().contains("line: 2"), "{error} {bad:?}");
    }
    let not_utf8 = [good.as_bytes(), sum.as_bytes(), b"  \xff\n"].concat();
    assert!(
        Manifest::parse(&not_utf8)
            .unwrap_err()
            .to_string()
            .contains("line: 2")
    );
}

#[test]
fn names_that_lead_out_of_the_folder_are_refused() {
    let sum = digest(b"x");
    for name in [
        "/etc/passwd",
        "..",
        "../a",
        "a/../b",
        "a/..",
        "./../a",
        "",
        "a\0b",
        &"x".repeat(4097),
    ] {
        assert!(Manifest::new([(name.to_owned(), sum)]).is_err(), "{name:?}");
        assert!(
            Manifest::parse(format!("{sum}  {name}\n").as_bytes()).is_err(),
            "{name:?}"
        );
    }
    assert!(Manifest::parse(format!("\\{sum}  ..\\n/a\n").as_bytes()).is_ok());
    for name in ["..a", "a..", "a/..b/c", "a//b"] {
        assert!(Manifest::new([(name.to_owned(), sum)]).is_ok(), "{name:?}");
    }
}

#[test]
fn each_file_gets_its_verdict() {
    let manifest = manifest(&[("same", b"1"), ("changed", b"2"), ("missing", b"3")]);
    let mut check = manifest.check();
    assert_eq!(check.found("same", digest(b"1")), Verdict::Same);
    assert_eq!(
        check.found("changed", digest(b"other")),
        Verdict::Changed {
            expected: digest(b"2")
        }
    );
    assert_eq!(check.found("extra", digest(b"4")), Verdict::Extra);
    let mut report = check.finish();
    assert_eq!(report.same, 1);
    let changed = Changed {
        name: "changed".to_owned(),
        expected: digest(b"2"),
        found: digest(b"other"),
    };
    assert_eq!(report.changed, [changed]);
    assert_eq!(report.missing, ["missing"]);
    assert_eq!(report.extra, ["extra"]);
    assert_eq!(report.require(Extra::Ignore).unwrap_err().kind(), Kind::Checksum);
    report.changed.clear();
    assert_eq!(report.require(Extra::Ignore).unwrap_err().kind(), Kind::NotFound);
    report.missing.clear();
    assert_eq!(report.require(Extra::Refuse).unwrap_err().kind(), Kind::Changed);
    assert!(report.require(Extra::Ignore).is_ok());
}

/// The key of the first test in RFC 8032, as openssl writes it.
const SECRET_PEM: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g
-----END PRIVATE KEY-----
";
const PUBLIC_PEM: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=
-----END PUBLIC KEY-----
";
/// Output of `openssl pkeyutl -sign -rawin` for the text `manifest` and a line feed.
const SIGNATURE: &str =
    "Lx5z1PZiAGc6FCLoESw7yI6YHCI9m2bqWwo9vxD81GxgRv38Hp4x0cINcbcP0tdFDRVyruMECKaxBXfQTHjQCw==";

#[test]
fn keys_and_signatures_are_those_of_openssl() {
    let secret = SecretKey::from_pem(SECRET_PEM).unwrap();
    assert_eq!(secret.to_pem(), SECRET_PEM);
    assert_eq!(secret.public().to_pem(), PUBLIC_PEM);
    assert_eq!(PublicKey::from_pem(PUBLIC_PEM).unwrap(), secret.public());
    let line = format!("ed25519 11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo= {SIGNATURE}\n");
    assert_eq!(sign(b"manifest\n", &secret), line);
    assert_eq!(
        verify(b"manifest\n", &line, &[secret.public()]).unwrap(),
        secret.public()
    );
    assert!(!format!("{secret:?}").contains("nWGxne"));
}

#[test]
fn a_manifest_that_was_changed_after_signing_is_refused() {
    let key = SecretKey::from_seed(&[7; 32]);
    let text = manifest(&[("a", b"1")]).to_text();
    let signature = sign(text.as_bytes(), &key);
    let trusted = [key.public()];
    for at in 0..text.len() {
        let mut changed = text.clone().into_bytes();
        changed[at] ^= 1;
        assert_eq!(
            verify(&changed, &signature, &trusted).unwrap_err().kind(),
            Kind::Checksum
        );
    }
}

#[test]
fn only_trusted_keys_vouch() {
    let (known, other) = (SecretKey::from_seed(&[1; 32]), SecretKey::from_seed(&[2; 32]));
    let signature = sign(b"x", &other);
    let error = verify(b"x", &signature, &[known.public()]).unwrap_err();
    assert_eq!(error.kind(), Kind::Denied);
    assert!(error.to_string().contains(&other.public().to_string()));
    assert_eq!(
        verify(b"x", "", &[known.public()]).unwrap_err().kind(),
        Kind::Denied
    );
    assert_eq!(verify(b"x", &signature, &[]).unwrap_err().kind(), Kind::Denied);
    // With both signatures in the file, one trusted key is enough.
    let both = signature.clone() + &sign(b"x", &known);
    assert_eq!(verify(b"x", &both, &[known.public()]).unwrap(), known.public());
    // A signature that claims to be of a trusted key.
    let forged = signature.replace(&other.public().to_string(), &known.public().to_string());
    assert_eq!(
        verify(b"x", &forged, &[known.public()]).unwrap_err().kind(),
        Kind::Checksum
    );
}

#[test]
fn files_that_are_no_keys_or_signatures_are_refused() {
    let encrypted = SECRET_PEM.replace("PRIVATE", "ENCRYPTED PRIVATE");
    // X25519, by one byte.
    let other_algorithm = SECRET_PEM.replace("K2VwBCIE", "K2VuBCIE");
    for text in [
        "",
        "MC4CAQ",
        PUBLIC_PEM,
        &encrypted,
        &other_algorithm,
        &SECRET_PEM.replace("MC4", "MC"),
        &"-".repeat(9999),
    ] {
        assert_eq!(SecretKey::from_pem(text).unwrap_err().kind(), Kind::InvalidInput);
    }
    assert!(PublicKey::from_pem(SECRET_PEM).is_err());
    // The neutral element: every signature would be right for some message.
    let mut weak = [0; 32];
    weak[0] = 1;
    assert!(PublicKey::from_bytes(&weak).is_err());
    let key = SecretKey::from_seed(&[1; 32]);
    let good = sign(b"x", &key);
    for bad in [
        "\n",
        "ed25519\n",
        &good.replace("ed25519", "rsa"),
        &good.replace('\n', " x\n"),
        &good[..80],
        &good.repeat(65),
    ] {
        let trusted = [SecretKey::from_seed(&[2; 32]).public()];
        assert_eq!(
            verify(b"x", bad, &trusted).unwrap_err().kind(),
            Kind::InvalidInput,
            "{bad:?}"
        );
    }
}
