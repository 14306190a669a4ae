//! Bucket settings that tools ask for and Forebay does not have: the answers of a bucket where nothing is
//! set.
//!
//! A tool that reads them goes on; one that tries to change them gets `501 NotImplemented`, never a silent
//! yes.

use http::StatusCode;
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Response, S3Result};

use super::{Request, Response};
use crate::map;
use crate::operations::Operations;

async fn check_bucket<T>(operations: &Operations, request: &Request<T>, name: &str) -> S3Result<()> {
    let bucket = map::bucket(name)?;
    operations
        .engine
        .head_bucket(&bucket)
        .await
        .map_err(|error| map::failure(&error, &request.extensions))
}

fn private_grants() -> Vec<Grant> {
    let grantee = Grantee {
        display_name: Some("forebay".to_owned()),
        email_address: None,
        id: Some("forebay".to_owned()),
        type_: Type::from_static(Type::CANONICAL_USER),
        uri: None,
    };
    let permission = Some(Permission::from_static(Permission::FULL_CONTROL));
    vec![Grant {
        grantee: Some(grantee),
        permission,
    }]
}

/// Settings that have an answer for "nothing is set".
macro_rules! empty_settings {
    ($($(#[$doc:meta])* $name:ident($input:ty) -> $output:ty = $value:expr;)+) => {
        $($(#[$doc])*
        pub(crate) async fn $name(operations: &Operations, request: Request<$input>) -> Response<$output> {
            check_bucket(operations, &request, &request.input.bucket).await?;
            Ok(S3Response::new($value))
        })+
    };
}

empty_settings! {
    /// Versioning was never switched on.
    versioning(GetBucketVersioningInput) -> GetBucketVersioningOutput = GetBucketVersioningOutput::default();
    /// Only the owner, as far as ACLs go.
    bucket_acl(GetBucketAclInput) -> GetBucketAclOutput =
        GetBucketAclOutput { grants: Some(private_grants()), owner: Some(map::owner()) };
    /// No access logs to buckets.
    logging(GetBucketLoggingInput) -> GetBucketLoggingOutput = GetBucketLoggingOutput::default();
    /// No accelerated endpoint.
    accelerate(GetBucketAccelerateConfigurationInput) -> GetBucketAccelerateConfigurationOutput =
        GetBucketAccelerateConfigurationOutput::default();
    /// No notifications.
    notification(GetBucketNotificationConfigurationInput) -> GetBucketNotificationConfigurationOutput =
        GetBucketNotificationConfigurationOutput::default();
    /// The owner pays.
    request_payment(GetBucketRequestPaymentInput) -> GetBucketRequestPaymentOutput =
        GetBucketRequestPaymentOutput { payer: Some(Payer::from_static(Payer::BUCKET_OWNER)) };
    /// ACLs have no effect.
    ownership(GetBucketOwnershipControlsInput) -> GetBucketOwnershipControlsOutput = {
        let object_ownership = ObjectOwnership::from_static(ObjectOwnership::BUCKET_OWNER_ENFORCED);
        let rules = vec![OwnershipControlsRule { object_ownership }];
        GetBucketOwnershipControlsOutput { ownership_controls: Some(OwnershipControls { rules }) }
    };
}

/// Settings whose absence S3 answers with an error of its own.
macro_rules! absent_settings {
    ($($name:ident($input:ty) -> $output:ty = $code:literal, $status:expr;)+) => {
        $(#[doc = concat!("Answers `", $code, "`.")]
        pub(crate) async fn $name(operations: &Operations, request: Request<$input>) -> Response<$output> {
            check_bucket(operations, &request, &request.input.bucket).await?;
            Err(absent($code, $status))
        })+
    };
}

fn absent(code: &'static str, status: StatusCode) -> S3Error {
    let code = code.parse().unwrap_or(S3ErrorCode::NotImplemented);
    let mut error = S3Error::with_message(code, "the bucket has no such configuration");
    error.set_status_code(status);
    error
}

absent_settings! {
    policy(GetBucketPolicyInput) -> GetBucketPolicyOutput = "NoSuchBucketPolicy", StatusCode::NOT_FOUND;
    policy_status(GetBucketPolicyStatusInput) -> GetBucketPolicyStatusOutput = "NoSuchBucketPolicy", StatusCode::NOT_FOUND;
    lifecycle(GetBucketLifecycleConfigurationInput) -> GetBucketLifecycleConfigurationOutput =
        "NoSuchLifecycleConfiguration", StatusCode::NOT_FOUND;
    cors(GetBucketCorsInput) -> GetBucketCorsOutput = "NoSuchCORSConfiguration", StatusCode::NOT_FOUND;
    tagging(GetBucketTaggingInput) -> GetBucketTaggingOutput = "NoSuchTagSet", StatusCode::NOT_FOUND;
    encryption(GetBucketEncryptionInput) -> GetBucketEncryptionOutput =
        "ServerSideEncryptionConfigurationNotFoundError", StatusCode::NOT_FOUND;
    website(GetBucketWebsiteInput) -> GetBucketWebsiteOutput = "NoSuchWebsiteConfiguration", StatusCode::NOT_FOUND;
    replication(GetBucketReplicationInput) -> GetBucketReplicationOutput =
        "ReplicationConfigurationNotFoundError", StatusCode::NOT_FOUND;
    object_lock(GetObjectLockConfigurationInput) -> GetObjectLockConfigurationOutput =
        "ObjectLockConfigurationNotFoundError", StatusCode::NOT_FOUND;
    public_access_block(GetPublicAccessBlockInput) -> GetPublicAccessBlockOutput =
        "NoSuchPublicAccessBlockConfiguration", StatusCode::NOT_FOUND;
}

/// The ACL of an object: only the owner.
pub(crate) async fn object_acl(
    operations: &Operations,
    request: Request<GetObjectAclInput>,
) -> Response<GetObjectAclOutput> {
    let input = &request.input;
    let (bucket, key) = (map::bucket(&input.bucket)?, map::readable_key(&input.key)?);
    map::refuse_version(input.version_id.as_deref())?;
    let found = operations.engine.head(&bucket, &key).await;
    found.map_err(|error| map::failure(&error, &request.extensions))?;
    let grants = Some(private_grants());
    Ok(S3Response::new(GetObjectAclOutput {
        grants,
        owner: Some(map::owner()),
        request_charged: None,
    }))
}
