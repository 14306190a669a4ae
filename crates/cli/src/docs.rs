//! `forebay docs DIR [--check]`: the reference pages, made from the code that they describe.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, anyhow};
use clap::CommandFactory;
use forebay_admin::metrics;
use forebay_node::config::reference::{ACCESS_KEY_ID, BUCKET_KEYS, KEY_KEYS, SECRET_ACCESS_KEY, SETTINGS};

use crate::args::{Cli, DocsArgs};
use crate::exit::{Exit, Outcome};

const HEAD: &str = "<!-- Made by `forebay docs`; change the code and run it again. -->\n\n";

pub(crate) fn run(args: &DocsArgs) -> Outcome {
    let mut stale = Vec::new();
    for (name, text) in [
        ("cli.md", cli()),
        ("config.md", config()),
        ("metrics.md", metrics()),
        ("admin.md", admin()?),
    ] {
        let path = args.dir.join(name);
        if std::fs::read_to_string(&path).is_ok_and(|found| found == text) {
            continue;
        }
        if args.check {
            stale.push(name);
        } else {
            write(&path, &text)?;
        }
    }
    if stale.is_empty() {
        return Ok(());
    }
    let dir = args.dir.display();
    Err(Exit::failure(anyhow!(
        "{} in {dir} not current; run 'forebay docs {dir}'",
        stale.join(", ")
    )))
}

fn write(path: &Path, text: &str) -> Outcome {
    let made = path
        .parent()
        .map_or(Ok(()), std::fs::create_dir_all)
        .and_then(|()| std::fs::write(path, text));
    Ok(made.with_context(|| format!("cannot write {}", path.display()))?)
}

fn cli() -> String {
    let mut text = format!("# Command line\n\n{HEAD}");
    text.push_str(
        "Exit codes: 0 ok, 1 failure, 2 wrong usage or configuration. Every command takes `--json`.\n",
    );
    let mut root = Cli::command().term_width(100);
    root.build();
    commands(&root, &mut Vec::new(), &mut text);
    text
}

fn commands(command: &clap::Command, above: &mut Vec<String>, text: &mut String) {
    above.push(command.get_name().to_owned());
    let path = above.join(" ");
    let help = command
        .clone()
        .bin_name(&path)
        .term_width(100)
        .render_help()
        .to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "\n## `{path}`\n\n```text\n{}\n```\n",
        lines.join("\n").trim_end()
    );
    for child in command.get_subcommands().filter(|child| !child.is_hide_set()) {
        commands(child, above, text);
    }
    above.pop();
}

fn config() -> String {
    let mut text = format!(
        "# Configuration\n\n{HEAD}Flags win over environment variables, those win over the file (`--config forebay.toml` or \
         `FOREBAY_CONFIG`). Unknown keys are errors. Sizes are written like `4GiB`, times like `5s`. \
         `forebay config show` prints what holds.\n\n| key | environment | default | meaning |\n| --- | --- | --- | --- |\n"
    );
    for setting in SETTINGS {
        let _ = writeln!(
            text,
            "| `{}` | `{}` | {} | {} |",
            setting.key, setting.env, setting.default, setting.help
        );
    }
    let _ = write!(
        text,
        "\n`{ACCESS_KEY_ID}` and `{SECRET_ACCESS_KEY}` set the first access key. Without any key in the environment or the \
         file, one is made at the first start and kept in `<data>/keys.toml` with mode 0600.\n"
    );
    for (name, keys) in [("bucket", BUCKET_KEYS), ("key", KEY_KEYS)] {
        let _ = write!(
            text,
            "\n## `[[{name}]]`\n\n| key | default | meaning |\n| --- | --- | --- |\n"
        );
        for (key, default, help) in keys {
            let _ = writeln!(text, "| `{key}` | {default} | {help} |");
        }
    }
    text.push_str(EXAMPLE);
    text
}

const EXAMPLE: &str = r#"
## Example

```toml
lake = "s3://training-data?region=eu-central-1"
data = "/nvme/forebay"
ram = "64GiB"
nvme = "2TiB"
s3 = "0.0.0.0:9000"

[[bucket]]
name = "models"
lake = "gs://our-models"
consistency = "immutable"

[[key]]
id = "trainer"
secret_file = "/run/secrets/trainer"
access = "read-only"
buckets = ["models"]
```
"#;

fn metrics() -> String {
    let mut text = format!(
        "# Metrics\n\n{HEAD}At `/metrics` of the admin API, as OpenMetrics text.\n\n| name | kind | labels | meaning |\n| --- | --- | --- | --- |\n"
    );
    for metric in metrics::all() {
        let kind = format!("{:?}", metric.kind).to_lowercase();
        let labels = metric.labels.replace('|', "\\|");
        let _ = writeln!(
            text,
            "| `{}` | {kind} | {labels} | {} |",
            metric.wire_name(),
            metric.help
        );
    }
    text
}

fn admin() -> Outcome<String> {
    let document = serde_json::to_value(forebay_admin::openapi()).map_err(Exit::failure)?;
    let mut text = format!(
        "# Admin API\n\n{HEAD}JSON over HTTP, on loopback by default. Whatever changes state needs \
         `Authorization: Bearer <admin_token of keys.toml>` and is sent as `Content-Type: application/json`; away \
         from loopback every page but the health checks needs the token; requests from other web pages are refused. `/openapi.json` describes all types.\n\n\
         | method | path | what | answers |\n| --- | --- | --- | --- |\n"
    );
    let empty = serde_json::Map::new();
    let paths = document["paths"].as_object().unwrap_or(&empty);
    for (path, methods) in paths {
        for (method, operation) in methods.as_object().unwrap_or(&empty) {
            let summary = operation["summary"].as_str().unwrap_or_default();
            let answers: Vec<&str> = operation["responses"]
                .as_object()
                .unwrap_or(&empty)
                .keys()
                .map(String::as_str)
                .collect();
            let _ = writeln!(
                text,
                "| {} | `{path}` | {summary} | {} |",
                method.to_uppercase(),
                answers.join(", ")
            );
        }
    }
    Ok(text)
}
