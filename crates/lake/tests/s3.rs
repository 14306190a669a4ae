//! The S3 lake against a real S3 server that is not ours.
//!
//! `FOREBAY_TEST_S3_ENDPOINT`, `FOREBAY_TEST_S3_KEY` and `FOREBAY_TEST_S3_SECRET` name a running server (`cargo xtask test`
//! starts SeaweedFS). Without them the tests print why they were skipped.

use std::sync::Arc;

use bytes::Bytes;
use forebay_core::{ByteRange, Kind, ObjectKey};
use forebay_lake::{
    AddressStyle, FetchPriority, GetOptions, Lake, ListOptions, OpenOptions, PutMode, PutOptions,
    ReadScheduler, SchedulerOptions, open, selftest,
};
use forebay_testkit::{LakeTraits, lake_model, lake_suite, patterned, read_all};

/// What SeaweedFS keeps of the promises; the rest is skipped by the suite.
const SEAWEED: LakeTraits = LakeTraits {
    marker_keys: false,
    plain_keys: false,
    any_part_size: false,
    ..LakeTraits::exact()
};

async fn server(test: &str) -> Option<Arc<dyn Lake>> {
    let Ok(endpoint) = std::env::var("FOREBAY_TEST_S3_ENDPOINT") else {
        println!("skipped: FOREBAY_TEST_S3_ENDPOINT is not set");
        return None;
    };
    let options = OpenOptions {
        endpoint: Some(endpoint),
        region: Some("us-east-1".into()),
        style: Some(AddressStyle::Path),
        access_key_id: std::env::var("FOREBAY_TEST_S3_KEY").ok(),
        secret_access_key: std::env::var("FOREBAY_TEST_S3_SECRET").ok(),
        session_token: None,
    };
    let url = format!("s3://lake-tests/{test}-{:08x}", fastrand::u32(..));
    Some(open(&url, &options).await.unwrap())
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new(name).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_server_behaves_like_a_lake() {
    let Some(lake) = server("suite").await else { return };
    lake_suite(lake, SEAWEED).await;
}
