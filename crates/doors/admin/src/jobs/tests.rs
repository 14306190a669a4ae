use super::*;
use forebay_core::ManualClock;

const LONG: Duration = Duration::from_secs(20);

fn jobs(running_max: usize) -> Jobs {
    Jobs::new(running_max, Arc::new(ManualClock::default()))
}

#[tokio::test]
async fn a_job_goes_from_running_to_done_and_keeps_its_counts() {
    let jobs = jobs(2);
    let (release, released) = tokio::sync::oneshot::channel::<()>();
    let started = jobs
        .start(JobKind::Warm, "b/p".into(), |progress| async move {
            progress.objects_done.fetch_add(3, Ordering::Relaxed);
            released.await.map_err(|_| Error::new(Kind::Internal, "gone"))
        })
        .unwrap();
    assert_eq!(started.state, JobState::Running);
    release.send(()).unwrap();
    let ended = jobs.wait(&started.id, LONG).await.unwrap();
    assert_eq!((ended.state, ended.objects_done), (JobState::Done, 3));
    assert!(ended.ended.is_some());
}

#[tokio::test]
async fn a_failed_job_says_why() {
    let jobs = jobs(1);
    let job = jobs
        .start(JobKind::Warm, "b".into(), |_| async {
            Err(Error::new(Kind::NotFound, "no such bucket"))
        })
        .unwrap();
    let ended = jobs.wait(&job.id, LONG).await.unwrap();
    assert_eq!(ended.state, JobState::Failed);
    assert_eq!(ended.error.as_deref(), Some("no such bucket"));
}

#[tokio::test]
async fn a_stopped_job_ends_and_makes_room() {
    let jobs = jobs(1);
    let job = jobs
        .start(JobKind::Warm, "b".into(), |_| std::future::pending())
        .unwrap();
    let refused = jobs
        .start(JobKind::Warm, "b".into(), |_| std::future::pending())
        .unwrap_err();
    assert_eq!(refused.kind(), Kind::Busy);
    jobs.stop(&job.id).unwrap();
    assert_eq!(jobs.wait(&job.id, LONG).await.unwrap().state, JobState::Stopped);
    assert!(
        jobs.start(JobKind::Warm, "b".into(), |_| async { Ok(()) })
            .is_ok()
    );
}

#[tokio::test]
async fn waiting_past_the_deadline_shows_the_running_job() {
    let jobs = jobs(1);
    let job = jobs
        .start(JobKind::Pin, "b".into(), |_| std::future::pending())
        .unwrap();
    assert_eq!(
        jobs.wait(&job.id, Duration::from_millis(1)).await.unwrap().state,
        JobState::Running
    );
}

#[tokio::test]
async fn finished_jobs_are_forgotten_past_the_limit() {
    let jobs = jobs(4);
    for _ in 0..FINISHED_MAX + 20 {
        let job = jobs
            .start(JobKind::Evict, "b".into(), |_| async { Ok(()) })
            .unwrap();
        jobs.wait(&job.id, LONG).await.unwrap();
    }
    assert!(jobs.list().len() <= FINISHED_MAX + 1);
}

#[tokio::test]
async fn shutdown_stops_what_runs_and_refuses_more() {
    let jobs = jobs(2);
    let job = jobs
        .start(JobKind::Warm, "b".into(), |_| std::future::pending())
        .unwrap();
    jobs.shutdown(LONG).await;
    assert_eq!(jobs.show(&job.id).unwrap().state, JobState::Stopped);
    assert_eq!(
        jobs.start(JobKind::Warm, "b".into(), |_| async { Ok(()) })
            .unwrap_err()
            .kind(),
        Kind::Busy
    );
}

#[test]
fn an_unknown_job_is_not_found() {
    assert_eq!(jobs(1).show("nope").unwrap_err().kind(), Kind::NotFound);
}

#[tokio::test]
async fn a_job_with_failed_objects_is_not_called_done() {
    let jobs = jobs(1);
    let job = jobs
        .start(JobKind::Warm, "b/".into(), |progress| async move {
            progress.objects_found.store(3, Ordering::Relaxed);
            progress.objects_done.store(2, Ordering::Relaxed);
            progress.fail_object(&Error::new(Kind::Throttled, "the lake asks us to slow down"));
            Ok(())
        })
        .unwrap();
    let ended = jobs.wait(&job.id, Duration::from_secs(30)).await.unwrap();
    assert_eq!(ended.state, JobState::Failed);
    let error = ended.error.unwrap_or_default();
    assert!(error.starts_with("1 of 3 objects failed"), "{error}");
}

#[tokio::test]
async fn a_job_that_waits_says_why_until_it_ends() {
    let jobs = jobs(1);
    let (go_on, waits) = tokio::sync::oneshot::channel::<()>();
    let job = jobs
        .start(JobKind::Warm, "b/".into(), |progress| async move {
            progress.set_waiting(Some("the lake throttles".into()));
            drop(waits.await);
            Ok(())
        })
        .unwrap();
    let shown = || jobs.show(&job.id).unwrap().waiting;
    tokio::time::timeout(LONG, async {
        while shown().as_deref() != Some("the lake throttles") {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    drop(go_on);
    let ended = jobs.wait(&job.id, Duration::from_secs(30)).await.unwrap();
    assert_eq!((ended.state, ended.waiting), (JobState::Done, None));
}
