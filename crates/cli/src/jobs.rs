//! `forebay jobs [show|wait|stop ID]`.

use anyhow::anyhow;
use forebay_admin::jobs::{JobInfo, JobState};
use forebay_core::format_bytes;

use crate::admin_client::AdminClient;
use crate::args::{JobsArgs, JobsVerb};
use crate::exit::{Exit, Outcome};
use crate::output::Output;

pub(crate) async fn run(args: JobsArgs, output: Output) -> Outcome {
    match args.verb {
        None => list(&AdminClient::new(&args.node)?, output).await,
        Some(JobsVerb::Show(target)) => {
            let job: JobInfo = AdminClient::new(&target.node)?.get(&path(&target.id)?).await?;
            show(&job, output);
            Ok(())
        }
        Some(JobsVerb::Wait(target)) => wait(&AdminClient::new(&target.node)?, &target.id, output).await,
        Some(JobsVerb::Stop(target)) => {
            let stop = format!("{}/stop", path(&target.id)?);
            let job: JobInfo = AdminClient::new(&target.node)?
                .post(&stop, &serde_json::json!({}))
                .await?;
            output.data(&job);
            output.say(format!("told job {} to stop", job.id));
            Ok(())
        }
    }
}

async fn list(client: &AdminClient, output: Output) -> Outcome {
    let jobs: Vec<JobInfo> = client.get("/v1/jobs").await?;
    for job in &jobs {
        output.data(job);
    }
    if jobs.is_empty() {
        output.say("no jobs");
        return Ok(());
    }
    let rows = jobs.into_iter().map(|job| {
        let objects = format!("{}/{}", job.objects_done, job.objects_found);
        let bytes = format!(
            "{}/{}",
            format_bytes(job.bytes_done),
            format_bytes(job.bytes_found)
        );
        [
            job.id,
            word(&job.kind),
            job.target,
            word(&job.state),
            objects,
            bytes,
            job.started,
        ]
    });
    output.table(
        ["ID", "KIND", "TARGET", "STATE", "OBJECTS", "BYTES", "STARTED"],
        rows,
    );
    Ok(())
}

/// Waits for a job with a bar, then shows it; fails if the job did.
pub(crate) async fn wait(client: &AdminClient, id: &str, output: Output) -> Outcome {
    let waiting = format!("{}?wait=1s", path(id)?);
    let bar = output.bar(0);
    let job = loop {
        let job: JobInfo = client.get(&waiting).await?;
        bar.set_length(job.bytes_found);
        bar.set_position(job.bytes_done);
        bar.set_message(match &job.waiting {
            Some(why) => format!("{} {}: waits, {why}", word(&job.kind), job.target),
            None => format!("{} {}", word(&job.kind), job.target),
        });
        if job.state != JobState::Running {
            break job;
        }
    };
    bar.finish_and_clear();
    show(&job, output);
    match job.state {
        JobState::Done => Ok(()),
        state => Err(Exit::failure(match &job.error {
            Some(error) => anyhow!("the job has {}: {error}", word(&state)),
            None => anyhow!("the job is {}", word(&state)),
        })),
    }
}

fn show(job: &JobInfo, output: Output) {
    output.data(job);
    output.say(format!(
        "job      {} ({} {})",
        job.id,
        word(&job.kind),
        job.target
    ));
    output.say(format!("state    {}", word(&job.state)));
    output.say(format!(
        "objects  {} of {}, {} failed",
        job.objects_done, job.objects_found, job.objects_failed
    ));
    output.say(format!(
        "bytes    {} of {}",
        format_bytes(job.bytes_done),
        format_bytes(job.bytes_found)
    ));
    if let Some(why) = &job.waiting {
        output.say(format!("waits    {why}"));
    }
    output.say(format!("started  {}", job.started));
    if let Some(ended) = &job.ended {
        output.say(format!("ended    {ended}"));
    }
    if let Some(error) = &job.error {
        output.say(format!("error    {error}"));
    }
}

/// The word that JSON uses.
fn word(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value)
        .ok()
        .and_then(|value| value.as_str().map(str::to_owned))
        .unwrap_or_default()
}

fn path(id: &str) -> Outcome<String> {
    let is_id = !id.is_empty() && id.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-');
    if is_id {
        Ok(format!("/v1/jobs/{id}"))
    } else {
        Err(Exit::usage(anyhow!("'{id}' is not a job id; see forebay jobs")))
    }
}
