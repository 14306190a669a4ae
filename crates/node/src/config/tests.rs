use std::collections::{BTreeMap, BTreeSet};

use super::reference::{BUCKET_KEYS, KEY_KEYS, SETTINGS};
use super::*;
use crate::machine::Machine;
use crate::options::NodeOptions;

fn env(pairs: &[(&str, &str)]) -> Result<Config> {
    let map: BTreeMap<_, _> = pairs.iter().copied().collect();
    Config::from_env(|name| map.get(name).map(ToString::to_string))
}

#[test]
fn flags_win_over_environment_and_environment_over_file() {
    let file =
        Config::parse("ram = '1GiB'\nnvme = '2GiB'\ns3 = '127.0.0.1:1'\n[limits]\njobs = 3\nconnections = 9")
            .unwrap();
    let env = env(&[
        ("FOREBAY_NVME", "3GiB"),
        ("FOREBAY_S3", "127.0.0.1:2"),
        ("FOREBAY_LIMITS_JOBS", "4"),
    ])
    .unwrap();
    let flags = Config {
        s3: Some("127.0.0.1:3".into()),
        ..Config::default()
    };
    let config = flags.over(env).over(file);
    assert_eq!(config.ram, Some(Size(1 << 30)));
    assert_eq!(config.nvme, Some(Size(3 << 30)));
    assert_eq!(config.s3.as_deref(), Some("127.0.0.1:3"));
    assert_eq!(
        (config.limits.jobs, config.limits.connections),
        (Some(4), Some(9))
    );
}

#[test]
fn unknown_keys_are_errors_that_name_key_and_line() {
    for (text, key, line) in [
        ("ram = '1GiB'\nlaek = 'x'", "laek", 2),
        ("\n\n[limits]\njbos = 1", "jbos", 4),
        ("[[bucket]]\nname = 'abc'\nlak = 'x'", "lak", 3),
    ] {
        let error = Config::parse(text).unwrap_err().to_string();
        assert!(error.contains(&format!("unknown field `{key}`")), "{error}");
        assert!(error.contains(&format!("line: {line}")), "{error}");
        assert_eq!(error.lines().count(), 1);
    }
}

#[test]
fn a_wrong_value_in_the_environment_names_the_variable() {
    for (name, value) in [
        ("FOREBAY_RAM", "lots"),
        ("FOREBAY_LIMITS_JOBS", "many"),
        ("FOREBAY_LOG_FORMAT", "xml"),
    ] {
        let error = env(&[(name, value)]).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn the_key_of_the_environment_comes_first_and_needs_both_halves() {
    let file = Config::parse("[[key]]\nid = 'reader'\nsecret = 'readersecret'").unwrap();
    let env_layer = env(&[
        ("FOREBAY_ACCESS_KEY_ID", "admin"),
        ("FOREBAY_SECRET_ACCESS_KEY", "adminsecret"),
    ])
    .unwrap();
    let ids: Vec<_> = env_layer.over(file).keys.into_iter().map(|key| key.id).collect();
    assert_eq!(ids, ["admin", "reader"]);
    let error = env(&[("FOREBAY_ACCESS_KEY_ID", "admin")]).unwrap_err();
    assert!(
        error.to_string().contains("FOREBAY_SECRET_ACCESS_KEY is not"),
        "{error}"
    );
}

#[test]
fn secrets_are_not_in_what_is_shown() {
    let text = "[[key]]\nid = 'reader'\nsecret = 'hunter2hunter2'";
    let machine = Machine {
        memory_bytes: 16 << 30,
        disk_bytes: 500 << 30,
    };
    let options = NodeOptions::resolve_on(Config::parse(text).unwrap(), &machine).unwrap();
    let shown = toml::to_string(&options.to_config()).unwrap();
    assert!(shown.contains("reader") && !shown.contains("hunter2"), "{shown}");
    assert!(!format!("{options:?}").contains("hunter2"));
}

#[test]
fn the_shown_configuration_reads_back_as_the_same() {
    let machine = Machine {
        memory_bytes: 16 << 30,
        disk_bytes: 500 << 30,
    };
    let options = NodeOptions::resolve_on(Config::default(), &machine).unwrap();
    let shown = options.to_config();
    let again = Config::parse(&toml::to_string(&shown).unwrap()).unwrap();
    assert_eq!(again, shown);
}

/// The table of settings and the schema know the same keys.
#[test]
fn every_setting_is_in_the_reference() {
    let text = "s3_domain = 's3.lab'\n[[key]]\nid = 'reader'\nsecret = 'hunter2hunter2'\nbuckets = ['abc']\n[[bucket]]\nname = 'abc'\nlake = 'memory://'\n[tls]\ncert = 'a.pem'\nkey = 'a.key'\nclient_ca = 'ca.pem'\n[cluster]\nname = 'lab'\nkeys = 'keys'";
    let machine = Machine {
        memory_bytes: 16 << 30,
        disk_bytes: 500 << 30,
    };
    let options = NodeOptions::resolve_on(Config::parse(text).unwrap(), &machine).unwrap();
    let toml::Value::Table(document) = toml::Value::try_from(options.to_config()).unwrap() else {
        panic!("a table")
    };
    let mut keys = BTreeSet::new();
    for (name, value) in &document {
        match value {
            toml::Value::Table(inner) => keys.extend(inner.keys().map(|key| format!("{name}.{key}"))),
            toml::Value::Array(items) if items.iter().any(toml::Value::is_table) => {
                let known = if name == "bucket" { BUCKET_KEYS } else { KEY_KEYS };
                for key in items[0].as_table().unwrap().keys() {
                    assert!(
                        known.iter().any(|(known, ..)| known == key),
                        "{name}.{key} is not in the reference"
                    );
                }
            }
            _ => {
                keys.insert(name.clone());
            }
        }
    }
    let known: BTreeSet<_> = SETTINGS.iter().map(|setting| setting.key.to_owned()).collect();
    assert_eq!(keys, known);
}

#[test]
fn a_secret_without_quotes_is_an_error_that_does_not_repeat_it() {
    for secret in ["1234567890", "-1234567890", "1234567890.5"] {
        let error = Config::parse(&format!("[[key]]\nid = 'abc'\nsecret = {secret}")).unwrap_err();
        assert!(error.to_string().contains("in quotes"), "{error}");
        assert!(!format!("{error:?}").contains("1234567890"), "{error:?}");
    }
}

#[test]
fn secrets_that_everybody_can_read_are_found() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("forebay.toml");
    let with = |text: &str, mode: u32| {
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        Config::open_secrets(&file)
    };
    let secret = "[[key]]\nid = 'a'\nsecret = 'hush-hush-hush'\n";
    assert_eq!(with(secret, 0o644), Some(0o644));
    assert_eq!(with(secret, 0o640), None);
    assert_eq!(with("[[key]]\nid = 'a'\nsecret_file = '/x'\n", 0o644), None);
    assert_eq!(with("ram = '1GiB'\n", 0o644), None);
    assert_eq!(Config::open_secrets(&dir.path().join("absent")), None);
}
