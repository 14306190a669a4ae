//! `forebay dataset keygen`: a pair of ed25519 keys in the PEM files that openssl reads too.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use forebay_dataset::manifest::SecretKey;

use super::args::KeygenArgs;
use crate::exit::Outcome;
use crate::output::Output;

pub(crate) fn run(args: &KeygenArgs, output: Output) -> Outcome {
    let mut seed = [0; 32];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut seed))
        .context("cannot get random bytes for a key")?;
    let key = SecretKey::from_seed(&seed);
    let public = public_path(&args.file);
    write_new(&args.file, &key.to_pem(), 0o600)?;
    write_new(&public, &key.public().to_pem(), 0o644)?;
    let (secret, public) = (args.file.display().to_string(), public.display().to_string());
    output.data(&serde_json::json!({"secret": secret, "public": public, "key": key.public().to_string()}));
    output.say(format!("{secret}  sign with it; keep it secret"));
    output.say(format!("{public}  give it to whoever verifies"));
    Ok(())
}

fn public_path(secret: &Path) -> PathBuf {
    let mut name = secret.as_os_str().to_owned();
    name.push(".pub");
    name.into()
}

/// Never over a file that is there: it may be the only copy of a key.
fn write_new(path: &Path, text: &str, mode: u32) -> Outcome {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(mode);
    let written = options
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()));
    Ok(written.with_context(|| format!("cannot write {}", path.display()))?)
}
