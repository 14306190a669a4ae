//! The settings of the cluster, validated.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use forebay_cluster::{ClusterOptions, WEIGHT_MAX};
use forebay_core::Result;

use super::{endpoint, wrong};
use crate::config::ClusterConfig;
use crate::value::Period;

/// Where other nodes reach a node that does not say.
const PEER_DEFAULT: &str = "127.0.0.1:9002";
const PORT_DEFAULT: u16 = 9002;
/// Weight for each GiB of both tiers.
const WEIGHT_PER_GIB: u64 = 16;
const NAME_BYTES_MAX: usize = 63;
const JOIN_MAX: usize = 256;
const SILENCE_MIN: Duration = Duration::from_millis(100);

/// The place of a node in a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterSettings {
    /// Name of the cluster.
    pub name: String,
    /// Address at which other nodes reach this one.
    pub peer: SocketAddr,
    /// Nodes to begin with, as `host:port`.
    pub join: Vec<String>,
    /// Share of the stripes.
    pub weight: u32,
    /// Folder with the keys of the cluster; `None` only on loopback.
    pub keys: Option<PathBuf>,
    /// Silence of a peer after which the next source is asked.
    pub silence_max: Duration,
}

impl ClusterSettings {
    pub(super) fn resolve(config: ClusterConfig, cache_bytes: u64) -> Result<Option<Self>> {
        let Some(name) = config.name else {
            return if config == ClusterConfig::default() {
                Ok(None)
            } else {
                Err(wrong(
                    "cluster.name",
                    "settings of a cluster need its name; give --cluster NAME too",
                ))
            };
        };
        let is_fine = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_fine) {
            let message =
                format!("'{name}' is not the name of a cluster; write lower case letters, digits and -");
            return Err(wrong("cluster.name", message));
        }
        let peer = peer_addr(config.peer.as_deref().unwrap_or(PEER_DEFAULT))?;
        if !peer.ip().is_loopback() && config.keys.is_none() {
            let message = format!(
                "{peer} can be reached by other hosts, so this node needs the keys of its cluster; run \
                 'forebay cluster init DIR' once, copy DIR to every host, and add --cluster-keys DIR"
            );
            return Err(wrong("cluster.keys", message));
        }
        let weight_default = ((cache_bytes * WEIGHT_PER_GIB) >> 30).clamp(1, u64::from(WEIGHT_MAX));
        let weight = config
            .weight
            .unwrap_or(u32::try_from(weight_default).unwrap_or(WEIGHT_MAX));
        if weight == 0 || weight > WEIGHT_MAX {
            return Err(wrong(
                "cluster.weight",
                format!("{weight} is not from 1 to {WEIGHT_MAX}"),
            ));
        }
        let silence_max = config
            .silence
            .map_or(ClusterOptions::SILENCE_DEFAULT, |period| period.0);
        if silence_max < SILENCE_MIN {
            let message = "this is shorter than a busy node is silent; give at least 100ms";
            return Err(wrong("cluster.silence", message));
        }
        let join = config.join.unwrap_or_default();
        if join.len() > JOIN_MAX {
            return Err(wrong(
                "cluster.join",
                format!("{} are too many; a few are enough", join.len()),
            ));
        }
        Ok(Some(Self {
            name,
            peer,
            join: join.iter().map(|seed| seed_of(seed)).collect::<Result<_>>()?,
            weight,
            keys: config.keys,
            silence_max,
        }))
    }

    /// The value as a file would have it.
    pub(super) fn to_config(&self) -> ClusterConfig {
        ClusterConfig {
            name: Some(self.name.clone()),
            peer: Some(self.peer.to_string()),
            join: Some(self.join.clone()),
            weight: Some(self.weight),
            keys: self.keys.clone(),
            silence: Some(Period(self.silence_max)),
        }
    }
}

fn peer_addr(text: &str) -> Result<SocketAddr> {
    let addr = endpoint::address(text, "cluster.peer")?;
    match addr {
        Some(addr) if !addr.ip().is_unspecified() => Ok(addr),
        _ => {
            let message =
                format!("other nodes have to reach this one at '{text}'; write an address of this host");
            Err(wrong("cluster.peer", message))
        }
    }
}

/// A node to begin with as `host:port`.
fn seed_of(text: &str) -> Result<String> {
    let bare = text.trim();
    let named = bare.strip_prefix("dns:");
    let with_port = match named {
        Some(name) if !name.contains(':') => format!("{name}:{PORT_DEFAULT}"),
        Some(name) => name.to_owned(),
        None => bare.to_owned(),
    };
    let has_port = with_port
        .rsplit_once(':')
        .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0));
    if has_port {
        return Ok(with_port);
    }
    let message = format!("'{text}' is not a node to join; write host:port, or dns:name");
    Err(wrong("cluster.join", message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(peer: &str) -> ClusterConfig {
        ClusterConfig {
            name: Some("lab".into()),
            peer: Some(peer.into()),
            ..ClusterConfig::default()
        }
    }

    #[test]
    fn beyond_loopback_a_node_without_keys_is_told_the_commands() {
        let error = ClusterSettings::resolve(config("10.0.0.7:9002"), 1 << 30)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("forebay cluster init") && error.contains("--cluster-keys"),
            "{error}"
        );
        let keys = ClusterConfig {
            keys: Some("keys".into()),
            ..config("10.0.0.7:9002")
        };
        assert!(ClusterSettings::resolve(keys, 1 << 30).unwrap().is_some());
        assert!(
            ClusterSettings::resolve(config("0.0.0.0:9002"), 1 << 30).is_err(),
            "nobody can connect to it"
        );
    }

    #[test]
    fn defaults_follow_the_tiers_and_seeds_get_ports() {
        let said = ClusterConfig {
            join: Some(vec![
                "dns:nodes".into(),
                "dns:nodes:1".into(),
                "10.0.0.1:7".into(),
            ]),
            ..config("127.0.0.1:0")
        };
        let settings = ClusterSettings::resolve(said, 4 << 30).unwrap().unwrap();
        assert_eq!(settings.weight, 64);
        assert_eq!(settings.join, ["nodes:9002", "nodes:1", "10.0.0.1:7"]);
        for wrong in ["nodes", "host:", ":1", "host:0", "dns:"] {
            assert!(seed_of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn settings_without_a_name_are_an_error() {
        let nameless = ClusterConfig {
            name: None,
            ..config("127.0.0.1:0")
        };
        assert!(ClusterSettings::resolve(nameless, 1).is_err());
        assert_eq!(
            ClusterSettings::resolve(ClusterConfig::default(), 1).unwrap(),
            None
        );
    }
}
