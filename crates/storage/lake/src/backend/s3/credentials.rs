//! Access keys of an S3 lake and their sources.
//!
//! In this order: the options, the environment (`AWS_ACCESS_KEY_ID` …), the profile files, and last what the
//! machine offers (web identity, container or pod identity, instance metadata), which `object_store` knows
//! how to fetch and renew. Keys never appear in `Debug` output.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, Kind, Result};
use object_store::aws::{AmazonS3Builder, AwsCredentialProvider};
use object_store::{BackoffConfig, ClientOptions, RetryConfig};

use super::profile::Profile;

/// One set of keys.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) id: String,
    pub(crate) secret: String,
    pub(crate) token: Option<String>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").finish_non_exhaustive()
    }
}

/// Source of the keys, request by request.
#[derive(Debug, Clone)]
pub(crate) enum Credentials {
    /// Requests are not signed.
    Anonymous,
    /// The same keys for ever.
    Fixed(Arc<Keys>),
    /// Keys that the machine hands out for a while.
    Machine(AwsCredentialProvider),
}

impl Credentials {
    /// Looks for keys. `env` is a parameter so that tests need not change the process.
    pub(crate) fn find(
        given: Option<Keys>,
        profile: &Profile,
        env: &impl Fn(&str) -> Option<String>,
    ) -> Result<Self> {
        let is_true =
            |name: &str| env(name).is_some_and(|value| value.eq_ignore_ascii_case("true") || value == "1");
        if let Some(keys) = given {
            return Ok(Self::Fixed(Arc::new(keys)));
        }
        if is_true("AWS_SKIP_SIGNATURE") {
            return Ok(Self::Anonymous);
        }
        if let (Some(id), Some(secret)) = (env("AWS_ACCESS_KEY_ID"), env("AWS_SECRET_ACCESS_KEY")) {
            let token = env("AWS_SESSION_TOKEN").filter(|token| !token.is_empty());
            return Ok(Self::Fixed(Arc::new(Keys { id, secret, token })));
        }
        if let (Some(id), Some(secret)) = (
            profile.get("aws_access_key_id"),
            profile.get("aws_secret_access_key"),
        ) {
            let token = profile.get("aws_session_token").map(str::to_owned);
            return Ok(Self::Fixed(Arc::new(Keys {
                id: id.to_owned(),
                secret: secret.to_owned(),
                token,
            })));
        }
        Self::machine().map(Self::Machine)
    }

    fn machine() -> Result<AwsCredentialProvider> {
        let retry = RetryConfig {
            backoff: BackoffConfig::default(),
            max_retries: 1,
            retry_timeout: Duration::from_secs(5),
        };
        let client = ClientOptions::new()
            .with_allow_http(true)
            .with_connect_timeout(Duration::from_secs(2))
            .with_timeout(Duration::from_secs(5));
        let store = AmazonS3Builder::from_env()
            .with_bucket_name("credentials-only")
            .with_retry(retry)
            .with_client_options(client)
            .build()
            .map_err(|why| no_keys().caused_by(why))?;
        Ok(Arc::clone(store.credentials()))
    }

    /// The keys for a request now; `None` means unsigned.
    pub(crate) async fn keys(&self) -> Result<Option<Arc<Keys>>> {
        match self {
            Self::Anonymous => Ok(None),
            Self::Fixed(keys) => Ok(Some(Arc::clone(keys))),
            Self::Machine(provider) => {
                let found = provider
                    .get_credential()
                    .await
                    .map_err(|why| no_keys().caused_by(why))?;
                let (id, secret, token) = (
                    found.key_id.clone(),
                    found.secret_key.clone(),
                    found.token.clone(),
                );
                Ok(Some(Arc::new(Keys { id, secret, token })))
            }
        }
    }
}

fn no_keys() -> Error {
    Error::new(
        Kind::Denied,
        "no credentials for the lake; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, write ~/.aws/credentials, \
         or add ?anonymous=true for a public bucket",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys_of(credentials: &Credentials) -> Option<Keys> {
        match credentials {
            Credentials::Fixed(keys) => Some((**keys).clone()),
            _ => None,
        }
    }

    #[test]
    fn given_keys_win_over_the_environment() {
        let env = |name: &str| Some(format!("env {name}"));
        let given = Keys {
            id: "a".into(),
            secret: "b".into(),
            token: None,
        };
        let found = Credentials::find(Some(given.clone()), &Profile::default(), &env).unwrap();
        assert_eq!(keys_of(&found), Some(given));
        let found = Credentials::find(None, &Profile::default(), &env).unwrap();
        assert_eq!(keys_of(&found).unwrap().id, "env AWS_ACCESS_KEY_ID");
    }

    #[test]
    fn keys_do_not_show_in_debug_output() {
        let keys = Keys {
            id: "visible-id".into(),
            secret: "hunter2".into(),
            token: Some("tok".into()),
        };
        let text = format!("{:?}", Credentials::Fixed(Arc::new(keys)));
        assert!(
            !text.contains("hunter2") && !text.contains("tok") && !text.contains("visible-id"),
            "{text}"
        );
    }
}
