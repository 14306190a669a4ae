//! The AWS configuration files: `~/.aws/credentials` and `~/.aws/config`, one profile of them.
//!
//! Only plain settings are read (keys, token, region, endpoint); profiles that assume roles or run programs
//! are not followed. Missing files are no error: most machines have none.

use std::collections::BTreeMap;
use std::path::PathBuf;

use forebay_core::{Error, Result};

/// The settings of one profile.
#[derive(Default)]
pub(crate) struct Profile {
    settings: BTreeMap<String, String>,
}

impl Profile {
    /// Reads the profile that `AWS_PROFILE` names, else `default`.
    pub(crate) async fn load(env: &impl Fn(&str) -> Option<String>) -> Result<Self> {
        let name = env("AWS_PROFILE").unwrap_or_else(|| "default".to_owned());
        let home = env("HOME").map(PathBuf::from);
        let file = |variable: &str, usual: &str| {
            env(variable)
                .map(PathBuf::from)
                .or_else(|| home.as_ref().map(|home| home.join(".aws").join(usual)))
        };
        let mut profile = Self::default();
        // Keys in the credentials file win over those in the config file, so it is read last.
        for path in [
            file("AWS_CONFIG_FILE", "config"),
            file("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
        ] {
            let Some(path) = path else { continue };
            match tokio::fs::read_to_string(&path).await {
                Ok(text) => profile.add(&text, &name),
                Err(why) if why.kind() == std::io::ErrorKind::NotFound => {}
                Err(why) => {
                    return Err(Error::io("cannot read the AWS profile", why).with("file", path.display()));
                }
            }
        }
        Ok(profile)
    }

    /// One setting.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }

    fn add(&mut self, text: &str, profile: &str) {
        let mut in_profile = false;
        for line in text.lines() {
            // Indented lines are nested settings (`s3 = …`) that we do not use.
            if line.starts_with([' ', '\t', '#', ';']) {
                continue;
            }
            let line = line.trim();
            if let Some(section) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                in_profile = section.trim().trim_start_matches("profile ").trim() == profile;
            } else if let Some((name, value)) = line.split_once('=').filter(|_| in_profile) {
                self.settings
                    .insert(name.trim().to_lowercase(), value.trim().to_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_named_profile_counts() {
        let mut profile = Profile::default();
        profile.add(
            "[default]\nregion = here\n[profile team]\nregion=there\ns3 =\n  region = nested\n# x = y\n",
            "team",
        );
        assert_eq!(profile.get("region"), Some("there"));
        assert_eq!(profile.get("# x"), None);
    }

    #[tokio::test]
    async fn files_are_found_by_variable_and_missing_ones_are_fine() {
        let folder = tempfile::tempdir().unwrap();
        let credentials = folder.path().join("keys");
        std::fs::write(
            &credentials,
            "[default]\naws_access_key_id = A\naws_secret_access_key = B=\n",
        )
        .unwrap();
        let env = |name: &str| match name {
            "AWS_SHARED_CREDENTIALS_FILE" => Some(credentials.display().to_string()),
            "HOME" => Some(folder.path().display().to_string()),
            _ => None,
        };
        let profile = Profile::load(&env).await.unwrap();
        assert_eq!(profile.get("aws_access_key_id"), Some("A"));
        assert_eq!(profile.get("aws_secret_access_key"), Some("B="));
    }
}
