//! `forebay config show`, and how flags, environment and file become options.

use forebay_node::config::{ClusterConfig, Config, LogConfig, TlsConfig};
use forebay_node::options::NodeOptions;

use crate::args::{ConfigArgs, ConfigVerb, SettingsArgs};
use crate::exit::{Exit, Outcome};
use crate::output::Output;

pub(crate) fn run(args: ConfigArgs, output: Output) -> Outcome {
    let ConfigVerb::Show(settings) = args.verb;
    let shown = resolve(*settings)?.to_config();
    output.data(&shown);
    let text = toml::to_string(&shown).map_err(Exit::failure)?;
    output.say(text.trim_end());
    Ok(())
}

/// Flags over environment over file, checked. Whatever is wrong is exit code 2.
pub(crate) fn resolve(settings: SettingsArgs) -> Outcome<NodeOptions> {
    let file = settings
        .config
        .as_deref()
        .map(Config::read)
        .transpose()
        .map_err(Exit::usage)?;
    let env = Config::from_env(|name| std::env::var(name).ok()).map_err(Exit::usage)?;
    let config = layer(settings).over(env).over(file.unwrap_or_default());
    NodeOptions::resolve(config).map_err(Exit::usage)
}

fn layer(settings: SettingsArgs) -> Config {
    Config {
        lake: settings.lake,
        data: settings.data,
        ram: settings.ram,
        nvme: settings.nvme,
        s3: settings.s3,
        admin: settings.admin,
        socket: settings.socket,
        allow_uid: (!settings.allow_uid.is_empty()).then_some(settings.allow_uid),
        staging: settings.staging,
        region: settings.region,
        consistency: settings.consistency,
        shutdown: settings.shutdown,
        tls: TlsConfig {
            cert: settings.tls_cert,
            key: settings.tls_key,
            client_ca: settings.tls_client_ca,
        },
        cluster: ClusterConfig {
            name: settings.cluster,
            peer: settings.peer,
            join: (!settings.join.is_empty()).then_some(settings.join),
            weight: settings.weight,
            keys: settings.cluster_keys,
            silence: None,
        },
        log: LogConfig {
            format: settings.log_format,
            filter: settings.log,
            access: None,
        },
        ..Config::default()
    }
}
