use super::*;
use crate::config::KeyAccess;

const MACHINE: Machine = Machine {
    memory_bytes: 8 << 30,
    disk_bytes: 60 << 30,
};

fn resolve(text: &str) -> Result<NodeOptions> {
    NodeOptions::resolve_on(Config::parse(text)?, &MACHINE)
}

#[test]
fn defaults_are_shares_of_the_machine() {
    let options = resolve("").unwrap();
    assert_eq!(options.ram_bytes, 2 << 30);
    assert_eq!(options.nvme_bytes, 30 << 30);
    assert_eq!(options.ipc.save_disk_bytes_max, 30 << 30);
    assert_eq!(options.s3_addr.unwrap().to_string(), "127.0.0.1:9000");
    assert_eq!(options.lake_origin, LakeOrigin::Default);
    assert!(options.lake.shown().ends_with("/forebay-data/lake"));
    let large = Machine {
        memory_bytes: 1 << 40,
        disk_bytes: 10 << 40,
    };
    let options = NodeOptions::resolve_on(Config::default(), &large).unwrap();
    assert_eq!((options.ram_bytes, options.nvme_bytes), (4 << 30, 100 << 30));
}

#[test]
fn a_full_disk_means_no_nvme_tier_by_default() {
    let full = Machine {
        memory_bytes: 8 << 30,
        disk_bytes: 1 << 20,
    };
    assert_eq!(
        NodeOptions::resolve_on(Config::default(), &full)
            .unwrap()
            .nvme_bytes,
        0
    );
}

#[test]
fn wrong_settings_are_named_in_one_line() {
    let cases = [
        ("ram = '1MiB'", "setting: ram"),
        ("nvme = '1MiB'", "setting: nvme"),
        ("s3 = 'here'", "setting: s3"),
        ("s3 = '127.0.0.1:7'\nadmin = '127.0.0.1:7'", "different ports"),
        ("lake = 'ftp://x'", "setting: lake"),
        ("region = 'a b'", "setting: region"),
        ("s3_domain = 'http://s3.lab.example'", "setting: s3_domain"),
        ("[limits]\njobs = 0", "limits.jobs"),
        ("[cors]\norigins = ['lab.example.org']", "cors.origins"),
        ("[[bucket]]\nname = 'No'", "bucket.name"),
        ("[[bucket]]\nname = 'abc'\n[[bucket]]\nname = 'abc'", "twice"),
        ("[[key]]\nid = 'reader'", "either secret or secret_file"),
        ("[[key]]\nid = 'a/b'\nsecret = 'longenough'", "key.id"),
        ("[[key]]\nid = 'reader'\nsecret = 'short'", "shorter than 8"),
        (
            "[[key]]\nid = 'reader'\nsecret_file = '/no/such'",
            "key.secret_file",
        ),
        (
            "[[key]]\nid = 'reader'\nsecret = 'longenough'\nbuckets = ['A']",
            "key.buckets",
        ),
    ];
    for (text, expected) in cases {
        let error = resolve(text).expect_err(text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn secret_files_lose_their_newline() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("secret");
    std::fs::write(&file, "longenough\n").unwrap();
    let text = format!(
        "[[key]]\nid = 'reader'\naccess = 'read-only'\nsecret_file = '{}'",
        file.display()
    );
    let options = resolve(&text).unwrap();
    assert_eq!(options.keys[0].secret.reveal(), "longenough");
    assert_eq!(options.keys[0].access, KeyAccess::ReadOnly);
}

#[test]
fn a_certificate_needs_its_key_and_client_certificates_need_tls() {
    let files = resolve("[tls]\ncert = 'a.pem'\nkey = 'a.key'")
        .unwrap()
        .tls
        .unwrap();
    assert_eq!((files.cert.to_str(), files.client_ca), (Some("a.pem"), None));
    for (text, setting) in [
        ("[tls]\ncert = 'a.pem'", "tls.key"),
        ("[tls]\nkey = 'a.key'", "tls.cert"),
        ("[tls]\nclient_ca = 'ca.pem'", "tls.client_ca"),
    ] {
        let error = resolve(text).unwrap_err().to_string();
        assert!(error.contains(setting), "{error}");
    }
}

#[test]
fn listen_addresses_may_be_endpoints() {
    assert_eq!(
        resolve("s3 = 'http://127.0.0.1:9100/'")
            .unwrap()
            .s3_addr
            .unwrap()
            .to_string(),
        "127.0.0.1:9100"
    );
    assert_eq!(
        resolve("s3 = ':9100'").unwrap().s3_addr.unwrap().to_string(),
        "0.0.0.0:9100"
    );
}

#[test]
fn every_listener_can_be_switched_off() {
    let options = resolve("s3 = 'off'\nadmin = 'off'\nsocket = 'off'").unwrap();
    assert_eq!((options.s3_addr, options.admin_addr), (None, None));
    assert_eq!(options.ipc.socket, SocketSetting::Off);
    let shown = options.to_config();
    assert_eq!(
        [shown.s3, shown.admin, shown.socket].map(|said| said.unwrap()),
        ["off"; 3]
    );
}

#[test]
fn clients_on_the_host_get_shares_of_the_ram_tier_by_default() {
    let ipc = resolve("ram = '1GiB'").unwrap().ipc;
    assert_eq!(
        (ipc.client_lease_bytes_max, ipc.staging_bytes),
        (512 << 20, 512 << 20)
    );
    assert!(matches!(ipc.socket, SocketSetting::Default(_)));
    let small = resolve("ram = '64MiB'").unwrap().ipc;
    assert_eq!(small.staging_bytes, 64 << 20, "one buffer of a usable size");
}

#[test]
fn users_are_numbers_and_a_socket_has_a_short_path() {
    let text = "allow_uid = [1000, '1001']\n[[bucket]]\nname = 'box'\nallow_uids = [7]";
    let options = resolve(text).unwrap();
    assert_eq!(options.ipc.allow_uids, [1000, 1001]);
    assert_eq!(options.buckets[0].allow_uids.as_deref(), Some(&[7][..]));
    let error = resolve("allow_uid = ['nobody']").unwrap_err();
    assert!(error.to_string().contains("is not a user id"), "{error}");
    let error = resolve(&format!("socket = '/{}'", "x".repeat(120))).unwrap_err();
    assert!(error.to_string().contains("choose a shorter one"), "{error}");
}
